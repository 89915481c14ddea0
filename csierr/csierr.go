// Package csierr has the kinds of failure of a CSI driver and the gRPC code of each, so
// that the code which a CO receives is chosen in one place.
//
// The code decides what the CO does next. kubelet and the sidecars take most codes as
// final: nothing was changed, nothing needs to be cleaned up, and a repeat is a new
// request. ABORTED, CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE leave the outcome open,
// and the CO repeats the request or undoes it. An error that nobody has classified is
// therefore UNAVAILABLE, never INTERNAL or UNKNOWN: it may have occurred after the change
// became visible.
//
// A [Kind] is an error itself, to be wrapped where the failure is found:
//
//	return fmt.Errorf("volume %q: %w", id, csierr.NotFound)
//
// [Errorf] adds the operation and the object. Package csiserver sends every error with the
// code of [CodeOf], wrapped or not.
//
// # Without csiserver
//
// gRPC itself sends the first status that errors.As finds in an error, and UNKNOWN for an
// error without one. A handler that a bare grpc.Server calls has to return the error of
// [Errorf], or any other error whose GRPCStatus uses CodeOf.
//
// # When not to use it
//
// Not for errors that stay inside the driver. Not to pass on the code of another gRPC
// service: what NOT_FOUND of a storage's API means for the volume is for the driver to
// decide, by wrapping a Kind as well.
//
// # Concurrency, privileges, platforms
//
// The package has no state, needs no privilege, and runs on every platform.
package csierr

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind classifies a failure by what the CO can do about it. It is an error, and is found
// with errors.Is(err, csierr.NotFound). An error may wrap several kinds, and errors.Is finds
// each of them; [KindOf] is the one that decides the code.
type Kind int

// The kinds, with the gRPC code that each becomes.
const (
	// Unknown is a failure that is not classified; nothing is known about what the
	// operation has done. UNAVAILABLE, which every CO repeats.
	Unknown Kind = iota
	// Invalid: the request can never succeed. INVALID_ARGUMENT.
	Invalid
	// NotFound: the volume, snapshot or node of the request does not exist. NOT_FOUND.
	NotFound
	// Conflict: the object exists with other properties; the text lists the
	// differences. ALREADY_EXISTS.
	Conflict
	// Precondition: another operation has to come first, or an operator has to act.
	// FAILED_PRECONDITION.
	Precondition
	// OutOfRange: the capacity range cannot be satisfied, here or by any retry.
	// OUT_OF_RANGE.
	OutOfRange
	// NoSpace: there is no room for a new object, or a node takes no more volumes.
	// RESOURCE_EXHAUSTED.
	NoSpace
	// Busy: another operation or process uses the object; retry. ABORTED.
	Busy
	// Uncertain: the operation may have taken effect, in part or in whole; retry.
	// UNAVAILABLE.
	Uncertain
	// DataLoss: the object is damaged. DATA_LOSS.
	DataLoss
	// Internal: a failure after which nothing is left changed. INTERNAL, which kubelet
	// and the sidecars take as final.
	Internal
	// Unauthenticated: the secrets of the request are not accepted, such as a wrong
	// passphrase; the same request succeeds once they are repaired. UNAUTHENTICATED.
	Unauthenticated
)

var kinds = [...]struct {
	code codes.Code
	text string
}{
	Unknown:      {codes.Unavailable, "unknown"},
	Invalid:      {codes.InvalidArgument, "invalid"},
	NotFound:     {codes.NotFound, "not found"},
	Conflict:     {codes.AlreadyExists, "exists with other properties"},
	Precondition: {codes.FailedPrecondition, "precondition not met"},
	OutOfRange:   {codes.OutOfRange, "out of range"},
	NoSpace:      {codes.ResourceExhausted, "no space"},
	Busy:         {codes.Aborted, "busy"},
	Uncertain:    {codes.Unavailable, "outcome uncertain"},
	DataLoss:     {codes.DataLoss, "data loss"},
	Internal:     {codes.Internal, "internal"},

	Unauthenticated: {codes.Unauthenticated, "secrets not accepted"},
}

// Error returns the name of the kind in lower case, such as "not found".
func (k Kind) Error() string {
	if k >= 0 && int(k) < len(kinds) {
		return kinds[k].text
	}
	return fmt.Sprintf("kind %d", int(k))
}

// Code returns the gRPC code of the kind.
func (k Kind) Code() codes.Code {
	if k >= 0 && int(k) < len(kinds) {
		return kinds[k].code
	}
	return codes.Unavailable
}

// GRPCStatus returns the status of the kind alone.
func (k Kind) GRPCStatus() *status.Status { return status.New(k.Code(), k.Error()) }

// New returns an error of the kind with a text of its own, to be a variable of a package
// or to be wrapped, as in:
//
//	var ErrInUse = csierr.Precondition.New("in use")
func (k Kind) New(text string) error { return &named{k, text} }

type named struct {
	kind Kind
	text string
}

func (n *named) Error() string              { return n.text }
func (n *named) Unwrap() error              { return n.kind }
func (n *named) GRPCStatus() *status.Status { return status.New(n.kind.Code(), n.text) }

// KindOf returns the kind of err, the first of these that applies:
//   - Uncertain if err has a method Pending() <-chan struct{}, wrapped or not, as those of
//     package blocking have: the work is still in flight, and no other kind can be known.
//   - Uncertain if err wraps an error of a context: what ended early has not found out more.
//   - The first [Kind] that err wraps, in the order of [errors.As]: the outermost one, and of
//     several in one fmt.Errorf the one on the left.
//   - Unknown, also for nil and for an error that has only a gRPC status.
func KindOf(err error) Kind {
	var k Kind
	switch {
	case isPending(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Uncertain
	case errors.As(err, &k):
		return k
	}
	return Unknown
}

func isPending(err error) bool {
	var pending interface{ Pending() <-chan struct{} }
	return errors.As(err, &pending)
}

// CodeOf returns the gRPC code for err, the first of these that applies:
//   - OK for nil.
//   - DEADLINE_EXCEEDED while the work of the call is in flight, as for [KindOf]: the CO must
//     not take any other code as the outcome.
//   - DEADLINE_EXCEEDED or CANCELLED for an error of a context.
//   - The code of the first [Kind] that err wraps.
//   - The code of the first gRPC status that err has or wraps, such as ABORTED of a lock; but
//     UNAVAILABLE for UNKNOWN, which is final for kubelet, and for a code that gRPC does not
//     define. Of several errors in one, as errors.Join returns it, a code that is not final
//     takes precedence: as long as one outcome is open, that of the call is.
//   - UNAVAILABLE.
func CodeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	var k Kind
	switch {
	case isPending(err), errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.As(err, &k):
		return k.Code()
	}
	if code, found := statusCode(err); found {
		return code
	}
	return codes.Unavailable
}

// statusCode returns the code of the statuses in the tree of err.
func statusCode(err error) (code codes.Code, found bool) {
	for err != nil {
		if c, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
			if code := c.GRPCStatus().Code(); code != codes.OK && code != codes.Unknown && code <= codes.Unauthenticated {
				return code, true
			}
			return codes.Unavailable, true
		}
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range several.Unwrap() {
				if c, ok := statusCode(e); ok && (!found || final(code) && !final(c)) {
					code, found = c, true
				}
			}
			return code, found
		}
		err = errors.Unwrap(err)
	}
	return codes.OK, false
}

// IsFinal reports whether a CO may take the code of err as final and never repeat the
// request, so that nothing may be left behind. nil is final. RESOURCE_EXHAUSTED is final
// because external-provisioner takes it so; kubelet repeats the request.
func IsFinal(err error) bool {
	return final(CodeOf(err))
}

func final(code codes.Code) bool {
	switch code {
	case codes.Aborted, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return false
	}
	return true
}

// Error is a failure with the operation and the object. Its kind is that of Err.
type Error struct {
	Op     string // such as "create volume"
	Object string // the ID or name; may be empty
	Err    error  // not nil
}

// Errorf returns an [*Error], and never nil. Its kind is that of the errors which format wraps
// with %w.
func Errorf(op, object, format string, args ...any) error {
	return &Error{Op: op, Object: object, Err: fmt.Errorf(format, args...)}
}

// Error quotes the object, because names and unknown IDs come from requests and may
// contain any characters.
func (e *Error) Error() string {
	if e.Object == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus returns the status that gRPC sends: the code of [CodeOf], with the text of the
// error as the message.
func (e *Error) GRPCStatus() *status.Status { return status.New(CodeOf(e.Err), e.Error()) }
