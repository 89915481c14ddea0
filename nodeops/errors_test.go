package nodeops

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/csikit/csikit/blocking"
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
		want Kind
		code codes.Code // after wrap
	}{
		"none":              {nil, KindUnknown, codes.OK},
		"not classified":    {errors.New("x"), KindUnknown, codes.Unavailable},
		"classified":        {faultf(KindBusy, "x"), KindBusy, codes.Aborted},
		"classified, inner": {fmt.Errorf("outer: %w", faultf(KindNotFound, "x")), KindNotFound, codes.NotFound},
		"deadline":          {fmt.Errorf("outer: %w", context.DeadlineExceeded), KindUncertain, codes.DeadlineExceeded},
		"canceled":          {context.Canceled, KindUncertain, codes.Canceled},
		"in flight":         {pending, KindUncertain, codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			err := wrap("stage", "v", "/p", tt.err)
			if got := KindOf(err); got != tt.want {
				t.Errorf("KindOf(%v) = %v, want %v", err, got, tt.want)
			}
			if tt.err != nil {
				if got := KindOf(fmt.Errorf("caller: %w", err)); got != tt.want {
					t.Errorf("KindOf of the wrapped error = %v, want %v", got, tt.want)
				}
			}
			if got := status.Code(err); got != tt.code {
				t.Errorf("code is %v, want %v", got, tt.code)
			}
		})
	}
	// Errors that no operation returned.
	for _, err := range []error{pending, context.Canceled, fmt.Errorf("x: %w", context.DeadlineExceeded)} {
		if got := KindOf(err); got != KindUncertain {
			t.Errorf("KindOf(%v) = %v, want %v", err, got, KindUncertain)
		}
	}
}

// A Kind that is not set, or not known, must never become a final code, or OK.
func TestKindNotSet(t *testing.T) {
	for _, kind := range []Kind{Error{}.Kind, -1, 99} {
		if got := (&Error{Op: "stage", Path: "/p", Kind: kind}).GRPCStatus().Code(); got != codes.Unavailable {
			t.Errorf("%v: code is %v, want UNAVAILABLE", kind, got)
		}
	}
}

func TestKindString(t *testing.T) {
	seen := make(map[string]Kind)
	for kind := range kinds {
		if other, used := seen[kind.String()]; used || kind.String() == "" {
			t.Errorf("%d and %d are both %q", int(kind), int(other), kind)
		}
		seen[kind.String()] = kind
	}
	if got := Kind(99).String(); got != "kind 99" {
		t.Errorf("String = %q", got)
	}
}
