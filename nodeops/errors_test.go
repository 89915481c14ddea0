package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestKindOf(t *testing.T) {
	var group blocking.Group
	finish := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _, pending := group.Do(ctx, "/p", func() (any, error) { <-finish; return nil, nil })
	defer close(finish)

	for name, tt := range map[string]struct {
		err  error
		want csierr.Kind
		code codes.Code // after wrap
	}{
		"none":                                {nil, csierr.Unknown, codes.OK},
		"not classified":                      {errors.New("x"), csierr.Unknown, codes.Unavailable},
		"classified":                          {faultf(csierr.Busy, "x"), csierr.Busy, codes.Aborted},
		"classified, inner":                   {fmt.Errorf("outer: %w", faultf(csierr.NotFound, "x")), csierr.NotFound, codes.NotFound},
		"an error of a caller's function":     {fmt.Errorf("rescan: %w", csierr.Precondition), csierr.Precondition, codes.FailedPrecondition},
		"classified, after the context ended": {faultf(csierr.Precondition, "x: %w", context.DeadlineExceeded), csierr.Uncertain, codes.DeadlineExceeded},
		"classified, in flight":               {faultf(csierr.Internal, "x: %w", pending), csierr.Uncertain, codes.DeadlineExceeded},
		"classified, not started":             {faultf(csierr.Internal, "x: %w", &blocking.LimitError{}), csierr.Uncertain, codes.Unavailable},
		"classified, panic":                   {faultf(csierr.Internal, "x: %w", &blocking.PanicError{}), csierr.Uncertain, codes.Unavailable},
		"deadline":                            {fmt.Errorf("outer: %w", context.DeadlineExceeded), csierr.Uncertain, codes.DeadlineExceeded},
		"canceled":                            {context.Canceled, csierr.Uncertain, codes.Canceled},
		"in flight":                           {pending, csierr.Uncertain, codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			err := wrap("stage", "v", "/p", tt.err)
			if got := csierr.KindOf(err); got != tt.want {
				t.Errorf("KindOf(%v) = %v, want %v", err, got, tt.want)
			}
			if tt.err != nil {
				if got := csierr.KindOf(fmt.Errorf("caller: %w", err)); got != tt.want {
					t.Errorf("KindOf of the wrapped error = %v, want %v", got, tt.want)
				}
			}
			if got := status.Code(err); got != tt.code || csierr.CodeOf(err) != tt.code {
				t.Errorf("code is %v, and %v of CodeOf, want %v", got, csierr.CodeOf(err), tt.code)
			}
		})
	}
}

// A kind is found as an error, as is what Err wraps.
func TestErrorIs(t *testing.T) {
	err := error(&Error{Op: "stage", Path: "/p", Kind: csierr.Conflict})
	if !errors.Is(err, csierr.Conflict) || errors.Is(err, csierr.NotFound) {
		t.Errorf("kinds of %v", err)
	}
	err = wrap("stage", "v", "/p", faultf(csierr.Precondition, "x; %w", fs.ErrNotExist))
	if !errors.Is(err, csierr.Precondition) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what %v wraps is not found", err)
	}
}

// A Kind that is not set, or not known, must never become a final code, or OK.
func TestKindNotSet(t *testing.T) {
	for _, kind := range []csierr.Kind{Error{}.Kind, -1, 99} {
		if got := (&Error{Op: "stage", Path: "/p", Kind: kind}).GRPCStatus().Code(); got != codes.Unavailable {
			t.Errorf("%v: code is %v, want UNAVAILABLE", kind, got)
		}
	}
}
