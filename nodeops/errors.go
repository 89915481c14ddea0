package nodeops

import (
	"errors"
	"fmt"
	"strings"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/status"
)

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
//
// The kinds that nodeops uses, with examples:
//   - [csierr.Invalid]: a relative path, a file system type or mount option that is not
//     supported.
//   - [csierr.NotFound]: no volume is mounted at the path (Stats, Expand), or the server has
//     no such share.
//   - [csierr.Conflict]: the mount at the path is not the requested one, and Diff lists the
//     differences: another device, read-only in place of read-write, a file where a directory
//     is needed.
//   - [csierr.Precondition]: the device does not exist, has another serial or size, holds
//     data of an unknown kind or another file system, or is mounted as another volume; a
//     publish without a stage; an unstage of a volume that is still published; a second
//     target path with Exclusive; files in an unmounted target path.
//   - [csierr.Busy]: another process uses the device or the mount: an open file at the
//     target path, a mkfs of an earlier call.
//   - [csierr.Uncertain]: an unmount or a mkfs that failed, a caller's context that ended.
//     It is not Internal because kubelet does not clean up a path after a final code.
//   - [csierr.Internal]: a failure on this node, after which nothing is mounted at the path,
//     such as a file system that the kernel finds damaged.
//   - [csierr.Unknown]: any other error.
type Error struct {
	Op       string // "stage", "publish", "unpublish", "unstage", "expand", "stats"
	VolumeID string
	Path     string // as in the request
	Kind     csierr.Kind
	Diff     []Difference // with csierr.Conflict
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

// Unwrap returns Kind and Err, so that errors.Is(err, csierr.NotFound) finds the former.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// GRPCStatus returns the gRPC status of the error: the code of [csierr.CodeOf], and its text
// as the message.
func (e *Error) GRPCStatus() *status.Status { return status.New(csierr.CodeOf(e), e.Error()) }

// fault is an error that wrap turns into an Error: inner functions know the kind but
// not the operation.
type fault struct {
	kind csierr.Kind
	diff []Difference
	err  error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func faultf(kind csierr.Kind, format string, args ...any) error {
	return &fault{kind: kind, err: fmt.Errorf(format, args...)}
}

func conflict(what string, diff []Difference) error {
	return &fault{kind: csierr.Conflict, diff: diff, err: errors.New(what)}
}

func wrap(op, volumeID, path string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op, VolumeID: volumeID, Path: path, Err: err}
	var f *fault
	var refused *blocking.LimitError
	var panicked *blocking.PanicError
	switch {
	case errors.As(err, &refused), errors.As(err, &panicked):
		e.Kind = csierr.Uncertain // also if a step above made more of it
	case errors.As(err, &f):
		e.Kind, e.Diff = f.kind, f.diff
	default:
		e.Kind = csierr.KindOf(err)
	}
	return e
}
