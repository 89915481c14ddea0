package nodeops

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// digitalocean/csi-digitalocean@4438af45: codes were chosen as it came, and sidecars and
// kubelet repeated what was hopeless or gave up what went on. hetznercloud/csi-driver had
// used ABORTED for more than work under way. There is one table.
func TestCodes(t *testing.T) {
	for kind, want := range map[Kind]codes.Code{
		KindUnknown:      codes.Unavailable,
		KindInternal:     codes.Internal,
		KindInvalid:      codes.InvalidArgument,
		KindNotFound:     codes.NotFound,
		KindConflict:     codes.AlreadyExists,
		KindPrecondition: codes.FailedPrecondition,
		KindBusy:         codes.Aborted,
		KindUncertain:    codes.Unavailable,
	} {
		if got := status.Code(wrap("op", "v", "/p", fmt.Errorf("outer: %w", faultf(kind, "inner")))); got != want {
			t.Errorf("kind %v: code %v, want %v", kind, got, want)
		}
	}
	n, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	// What goes on is not over, and what did not begin is the caller's doing.
	finish := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	err = n.run(ctx, "op", "v", "/p", func(context.Context, resolvedPath) error { cancel(); <-finish; return errors.New("too late") })
	if got := status.Code(err); got != codes.DeadlineExceeded {
		t.Errorf("work that goes on: %v, want DEADLINE_EXCEEDED", err)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	err = n.run(short, "op", "v", "/p", func(context.Context, resolvedPath) error { return nil })
	if got := status.Code(err); got != codes.DeadlineExceeded && got != codes.Canceled && got != codes.Aborted {
		t.Errorf("work behind it: %v, want a code that is not final", err)
	}
	close(finish)
}
