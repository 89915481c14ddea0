package nodeops

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind classifies an error by what the CO can do about it.
type Kind int

// Kinds of errors, with the gRPC code that each becomes.
const (
	// KindUnknown is an error that is not classified; nothing is known about what the
	// operation has done. UNAVAILABLE, which every CO retries.
	KindUnknown Kind = iota
	// KindInvalid: the request can never succeed. Examples: a relative path, a file system
	// type or mount option that is not supported. INVALID_ARGUMENT.
	KindInvalid
	// KindNotFound: no volume is mounted at the path (Stats, Expand), or the server has no
	// such share. NOT_FOUND.
	KindNotFound
	// KindConflict: the mount at the path is not the requested one; Error.Diff lists the
	// differences. Examples: another device, read-only in place of read-write, a file where
	// a directory is needed. ALREADY_EXISTS.
	KindConflict
	// KindPrecondition: another operation has to come first, or an operator has to act.
	// Examples: the device does not exist, has another serial or size, holds data of an
	// unknown kind or another file system, or is mounted as another volume; a publish
	// without a stage; an unstage of a volume that is still published; a second target path
	// with Exclusive; files in an unmounted target path. FAILED_PRECONDITION.
	KindPrecondition
	// KindBusy: another process uses the device or the mount; retry. Examples: an open file
	// at the target path, a mkfs of an earlier call. ABORTED.
	KindBusy
	// KindUncertain: the operation may have taken effect in part; retry. Examples: an
	// unmount or a mkfs that failed, a caller's context that ended.
	// UNAVAILABLE, because kubelet does not clean up a path after a final code.
	KindUncertain
	// KindInternal: a failure on this node, after which nothing is mounted at the path.
	// Example: the kernel finds the file system damaged. INTERNAL, which kubelet treats as
	// final.
	KindInternal
)

var kinds = map[Kind]struct {
	code codes.Code
	text string
}{
	KindUnknown:      {codes.Unavailable, "unknown"},
	KindInvalid:      {codes.InvalidArgument, "invalid"},
	KindNotFound:     {codes.NotFound, "not found"},
	KindConflict:     {codes.AlreadyExists, "conflict"},
	KindPrecondition: {codes.FailedPrecondition, "precondition"},
	KindBusy:         {codes.Aborted, "busy"},
	KindUncertain:    {codes.Unavailable, "uncertain"},
	KindInternal:     {codes.Internal, "internal"},
}

// String returns the name of the kind in lower case, such as "not found".
func (k Kind) String() string {
	if known, ok := kinds[k]; ok {
		return known.text
	}
	return fmt.Sprintf("kind %d", int(k))
}

// KindOf returns the Kind of the first [*Error] that err wraps. For other errors it
// returns KindUncertain if the context ended, as the work may still be in flight, and
// else KindUnknown, also for nil.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case isInterrupted(err):
		return KindUncertain
	}
	return KindUnknown
}

// isInterrupted reports whether the caller's context ended before the work did.
func isInterrupted(err error) bool {
	return isPending(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Difference is one difference between an existing mount and the requested one.
type Difference struct {
	What string // the property, such as "device", "access" or "mount flag noexec"
	Want string // its value in the request
	Have string // its value in the existing mount
}

func (d Difference) String() string {
	return fmt.Sprintf("%s is %s, want %s", d.What, d.Have, d.Want)
}

// Error is the error type of every operation. If the caller's context ended while work was
// in flight, errors.As finds an interface{ Pending() <-chan struct{} } in it, whose channel
// is closed when the work ends; the code is DEADLINE_EXCEEDED then, whatever Kind is.
type Error struct {
	Op       string // "stage", "publish", "unpublish", "unstage", "expand", "stats"
	VolumeID string
	Path     string // as in the request
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

// GRPCStatus returns the gRPC status of the error, with its text as the message.
func (e *Error) GRPCStatus() *status.Status {
	code := codes.Unavailable
	if known, ok := kinds[e.Kind]; ok {
		code = known.code
	}
	// Errors of the context and of package blocking have codes of their own.
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

// fault is an error that wrap turns into an Error: inner functions know the kind but
// not the operation.
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
	} else if isInterrupted(err) {
		e.Kind = KindUncertain
	}
	return e
}
