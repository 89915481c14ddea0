package csierr_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// As long as the outcome of one part is open, that of the call is.
func TestCodeOfSeveralStatuses(t *testing.T) {
	internal, deadline := status.Error(codes.Internal, "a"), status.Error(codes.DeadlineExceeded, "b")
	for _, tt := range []struct {
		err  error
		want codes.Code
	}{
		{errors.Join(internal, deadline), codes.DeadlineExceeded},
		{errors.Join(deadline, internal), codes.DeadlineExceeded},
		{fmt.Errorf("undo: %w, after %w", internal, fmt.Errorf("x: %w", errors.Join(errors.New("y"), deadline))), codes.DeadlineExceeded},
		{errors.Join(internal, status.Error(codes.NotFound, "b")), codes.Internal},
		{errors.Join(status.Error(codes.Unknown, "a"), internal), codes.Unavailable},
		{errors.Join(errors.New("a"), internal), codes.Internal},
		{errors.Join(errors.New("a"), errors.New("b")), codes.Unavailable},
		{csierr.Errorf("create", "v", "%w, then %w", internal, deadline), codes.DeadlineExceeded},
	} {
		if got := csierr.CodeOf(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
		if csierr.IsFinal(tt.err) != (tt.want == codes.Internal) {
			t.Errorf("%v: final is %v", tt.err, csierr.IsFinal(tt.err))
		}
	}
}
