package blocking

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// PendingError means that the caller's context ended while the call was in flight. The
// outcome is not known: the call may still succeed, fail or hang.
type PendingError struct {
	Key   string
	Since time.Time // when the call was started
	Err   error     // the context's error

	done <-chan struct{}
}

// Error contains the key and the start time, not the age, so that retries have the same
// text and a CO can aggregate them into one event.
func (e *PendingError) Error() string {
	return fmt.Sprintf("%s: still running since %s: %v; the call cannot be cancelled; a retry waits for the same call",
		e.Key, e.Since.UTC().Format(time.RFC3339), e.Err)
}

func (e *PendingError) Unwrap() error { return e.Err }

// Pending returns a channel that is closed when the call is over. It is never
// nil for an error that Do returned.
func (e *PendingError) Pending() <-chan struct{} { return e.done }

// GRPCStatus returns DEADLINE_EXCEEDED, also for a cancelled context: COs then assume that
// the operation may still be in flight, and retry the same request.
func (e *PendingError) GRPCStatus() *status.Status {
	return status.New(codes.DeadlineExceeded, e.Error())
}

// LimitError means that a call was refused, and not started, because too many earlier ones
// hang.
type LimitError struct {
	Key   string
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: not started: %d earlier calls still hang in the kernel; repair the storage they wait for, then retry",
		e.Key, e.Limit)
}

// GRPCStatus returns UNAVAILABLE, which every CO component retries. RESOURCE_EXHAUSTED would
// be more specific and is retried by kubelet too, but external-provisioner treats it as
// final or moves the pod to another node, and external-attacher as a full node.
func (e *LimitError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// errGoexit is PanicError.Value when fn called runtime.Goexit.
var errGoexit = errors.New("runtime.Goexit called")

// PanicError means that the function passed to Do panicked, or called runtime.Goexit (as
// testing.T.FailNow does).
type PanicError struct {
	Key   string
	Value any    // what was passed to panic
	Stack []byte // of the goroutine that ran the function; not part of the text
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("%s: panic: %v; this is a bug in the driver", e.Key, e.Value)
}

// GRPCStatus returns UNAVAILABLE: what was done before the panic is not known, and after
// INTERNAL kubelet assumes that nothing was done and does not clean up.
func (e *PanicError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}
