package volumelock

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// BusyError means that another call holds a key. No key was taken, and
// nothing has been done.
type BusyError struct {
	RPC          string        // the call that was refused
	Key          Key           // a key that is parked, else the first in order of kind and ID that could not be taken
	Holder       Op            // the conflicting holder: the parked one if there is one, otherwise the oldest
	Age          time.Duration // since Holder took the key
	ContendedFor time.Duration // since a call was first refused because of Holder, or began to wait for it
	Parked       bool          // Holder has returned, but its work is still in flight

	// HolderWaiting is set after a wait when Holder does not hold the key, but precedes RPC in
	// the queue and has waited for Age. See [Table.AcquireWait].
	HolderWaiting bool
}

// newBusyError is for the refused rpc. The shard of blocker is locked.
func newBusyError(rpc string, blocker *slot, now time.Duration) *BusyError {
	return &BusyError{
		RPC: rpc, Key: blocker.Key, Holder: blocker.hold.op,
		Age: max(now-blocker.hold.since, 0), ContendedFor: max(now-blocker.contended, 0), Parked: blocker.hold.parked(),
	}
}

func (e *BusyError) Error() string {
	holder := e.Holder.RPC
	if e.Holder.RequestID != "" {
		holder += " (request " + e.Holder.RequestID + ")"
	}
	contended := ""
	if e.ContendedFor >= time.Millisecond {
		contended = fmt.Sprintf(", contended for %v", short(e.ContendedFor))
	}
	switch {
	case e.Parked:
		return fmt.Sprintf("%s: %s is held by %s for %v%s: that call has returned, but its work is still in flight; check the storage that it uses",
			e.RPC, e.Key, holder, short(e.Age), contended)
	case e.HolderWaiting:
		return fmt.Sprintf("%s: %s was requested earlier by %s, which has waited for %v and is served first; retry", e.RPC, e.Key, holder, short(e.Age))
	}
	return fmt.Sprintf("%s: %s is held by %s for %v%s; retry when that call has ended", e.RPC, e.Key, holder, short(e.Age), contended)
}

// short truncates to seconds, or below one second to milliseconds.
func short(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Truncate(time.Second)
	}
	return d.Truncate(time.Millisecond)
}

// GRPCStatus returns ABORTED, the code of the CSI specification for an operation
// that is pending on the same object: the caller retries with backoff.
func (e *BusyError) GRPCStatus() *status.Status {
	return status.New(codes.Aborted, e.Error())
}
