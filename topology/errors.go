package topology

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is the error of this package's functions.
type Error struct {
	Op   string // the operation, such as "choose a storage pool"
	Code codes.Code
	Err  error
}

func (e *Error) Error() string { return e.Op + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus returns a status with Code and the text.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Error()) }

func fail(code codes.Code, op, format string, args ...any) error {
	return &Error{Op: op, Code: code, Err: fmt.Errorf(format, args...)}
}

func invalid(op, format string, args ...any) error {
	return fail(codes.InvalidArgument, op, format, args...)
}

// several joins the first few reasons, because Kubernetes truncates long errors.
func several(reasons []string) string {
	const most = 6
	if more := len(reasons) - most; more > 0 {
		reasons = append(reasons[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(reasons, "; ")
}

// quote quotes s and truncates it.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
