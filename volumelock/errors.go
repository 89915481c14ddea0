package volumelock

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// BusyError says that a key is held by somebody else. Nothing was taken, and
// nothing has been done.
type BusyError struct {
	RPC    string        // who was refused
	Key    Key           // the first key, in order of kind and ID, that could not be taken
	Holder Op            // of those in the way one that is parked, if there is one, and else the oldest
	Age    time.Duration // since Holder took the key
	Asked  time.Duration // since somebody was first refused because of that, or began to wait
	Parked bool          // Holder has returned, its work has not ended

	// Waiting is set after a wait when the key is not held by Holder: it has
	// waited for it longer, for Age. See [Table.AcquireWait].
	Waiting bool
}

// newBusyError is for the refused rpc. The shard of blocker is locked.
func newBusyError(rpc string, blocker *slot, now time.Duration) *BusyError {
	return &BusyError{
		RPC: rpc, Key: blocker.Key, Holder: blocker.hold.op,
		Age: max(now-blocker.hold.since, 0), Asked: max(now-blocker.asked, 0), Parked: blocker.hold.parked(),
	}
}

func (e *BusyError) Error() string {
	holder := e.Holder.RPC
	if e.Holder.RequestID != "" {
		holder += " (request " + e.Holder.RequestID + ")"
	}
	refused := ""
	if e.Asked >= time.Millisecond {
		refused = fmt.Sprintf(" and refused to others for %v", short(e.Asked))
	}
	switch {
	case e.Parked:
		return fmt.Sprintf("%s: %s is parked by %s, %v old%s: that call has returned but its work still hangs; see what it waits for",
			e.RPC, e.Key, holder, short(e.Age), refused)
	case e.Waiting:
		return fmt.Sprintf("%s: %s has been waited for by %s for %v, which comes first; retry", e.RPC, e.Key, holder, short(e.Age))
	}
	return fmt.Sprintf("%s: %s is held by %s for %v%s; retry when that call has ended", e.RPC, e.Key, holder, short(e.Age), refused)
}

// short leaves out digits that nobody needs.
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
