package nodeops

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// digitalocean/csi-digitalocean@4438af45: codes were chosen ad hoc, and sidecars and
// kubelet retried what could not succeed or treated operations in flight as failed.
// hetznercloud/csi-driver used ABORTED for other errors too. Here one table has all codes.
func TestCodes(t *testing.T) {
	for kind, want := range map[csierr.Kind]codes.Code{
		csierr.Unknown:      codes.Unavailable,
		csierr.Internal:     codes.Internal,
		csierr.Invalid:      codes.InvalidArgument,
		csierr.NotFound:     codes.NotFound,
		csierr.Conflict:     codes.AlreadyExists,
		csierr.Precondition: codes.FailedPrecondition,
		csierr.Busy:         codes.Aborted,
		csierr.Uncertain:    codes.Unavailable,
	} {
		if got := status.Code(wrap("op", "v", "/p", fmt.Errorf("outer: %w", faultf(kind, "inner")))); got != want {
			t.Errorf("kind %v: code %v, want %v", kind, got, want)
		}
	}
	n, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	// An operation in flight has no final code, nor has one that did not start.
	finish := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	err = n.run(ctx, "op", "v", "/p", func(context.Context, resolvedPath) error { cancel(); <-finish; return errors.New("too late") })
	if got := status.Code(err); got != codes.DeadlineExceeded {
		t.Errorf("operation in flight: %v, want DEADLINE_EXCEEDED", err)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	err = n.run(short, "op", "v", "/p", func(context.Context, resolvedPath) error { return nil })
	if got := status.Code(err); got != codes.DeadlineExceeded && got != codes.Canceled && got != codes.Aborted {
		t.Errorf("waiting operation: %v, want a code that is not final", err)
	}
	close(finish)
}
