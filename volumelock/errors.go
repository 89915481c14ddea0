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
	RPC    string // who was refused
	Key    Key    // the first key, in order of kind and ID, that could not be taken
	Holder Op     // the oldest one in the way
	Age    time.Duration
	Parked bool // the holder has returned, its work has not ended
}

func (e *BusyError) Error() string {
	holder := e.Holder.RPC
	if e.Holder.RequestID != "" {
		holder += " (request " + e.Holder.RequestID + ")"
	}
	age := e.Age.Truncate(time.Millisecond)
	if age > time.Second {
		age = age.Truncate(time.Second)
	}
	if e.Parked {
		return fmt.Sprintf("%s: %s is parked by %s, %v old: that call has returned but its work still hangs; see what it waits for",
			e.RPC, e.Key, holder, age)
	}
	return fmt.Sprintf("%s: %s is held by %s for %v; retry when that call has ended", e.RPC, e.Key, holder, age)
}

// GRPCStatus returns ABORTED, the code of the CSI specification for an operation
// that is pending on the same object: the caller retries with backoff.
func (e *BusyError) GRPCStatus() *status.Status {
	return status.New(codes.Aborted, e.Error())
}
