package nodeops

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind says what is wrong in terms of what the CO can do about it.
type Kind int

// Kinds of errors, with the gRPC code that each becomes.
const (
	// KindInternal is a failure whose cause lies on this node; nothing is mounted
	// at the path. INTERNAL, which kubelet takes for final.
	KindInternal Kind = iota
	// KindInvalid is a request that can never work. INVALID_ARGUMENT.
	KindInvalid
	// KindNotFound: there is no volume at that path. NOT_FOUND.
	KindNotFound
	// KindConflict: the path holds something else than is asked for; see
	// Error.Diff. ALREADY_EXISTS.
	KindConflict
	// KindPrecondition: the order of things is wrong, or the device holds what it
	// should not; somebody has to act. FAILED_PRECONDITION.
	KindPrecondition
	// KindBusy: somebody else uses what the operation needs; it will pass. ABORTED.
	KindBusy
	// KindUncertain: the operation may have taken effect in part; repeat it.
	// UNAVAILABLE, because kubelet would forget about the path after a final code.
	KindUncertain
)

var kindCodes = map[Kind]codes.Code{
	KindInternal:     codes.Internal,
	KindInvalid:      codes.InvalidArgument,
	KindNotFound:     codes.NotFound,
	KindConflict:     codes.AlreadyExists,
	KindPrecondition: codes.FailedPrecondition,
	KindBusy:         codes.Aborted,
	KindUncertain:    codes.Unavailable,
}

// Difference is one way in which what is there is not what was asked for.
type Difference struct{ What, Want, Have string }

func (d Difference) String() string {
	return fmt.Sprintf("%s is %s, want %s", d.What, d.Have, d.Want)
}

// Error is what every operation returns. Work that goes on after the caller's
// context ended is found with errors.As as interface{ Pending() <-chan struct{} };
// its code is DEADLINE_EXCEEDED whatever Kind says.
type Error struct {
	Op       string // "stage", "publish", "unpublish", "unstage", "expand", "stats"
	VolumeID string
	Path     string // the path that was worked on
	Kind     Kind
	Diff     []Difference // with KindConflict
	Err      error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.VolumeID != "" {
		b.WriteString(" volume " + e.VolumeID)
	}
	b.WriteString(" at " + e.Path + ": ")
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	}
	for i, d := range e.Diff {
		if i > 0 || e.Err != nil {
			b.WriteString("; ")
		}
		b.WriteString(d.String())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus makes the error a gRPC status; its message is the error's text.
func (e *Error) GRPCStatus() *status.Status {
	code := kindCodes[e.Kind]
	// The context's end and the blocking group's own errors carry their codes.
	var inner interface{ GRPCStatus() *status.Status }
	switch {
	case errors.As(e.Err, &inner):
		code = inner.GRPCStatus().Code()
	case errors.Is(e.Err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(e.Err, context.Canceled):
		code = codes.Canceled
	}
	return status.New(code, e.Error())
}

// fault is an error on its way to becoming an Error: inner functions know the
// kind but not the operation.
type fault struct {
	kind Kind
	diff []Difference
	err  error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func faultf(kind Kind, format string, args ...any) error {
	return &fault{kind: kind, err: fmt.Errorf(format, args...)}
}

func conflict(what string, diff []Difference) error {
	return &fault{kind: KindConflict, diff: diff, err: errors.New(what)}
}

func wrap(op, volumeID, path string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op, VolumeID: volumeID, Path: path, Err: err}
	if f := (*fault)(nil); errors.As(err, &f) {
		e.Kind, e.Diff = f.kind, f.diff
	}
	return e
}
