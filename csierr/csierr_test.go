package csierr

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type pending struct{ error }

func (pending) Pending() <-chan struct{} { return nil }

func TestCodeOf(t *testing.T) {
	inUse := Precondition.New("in use")
	for name, tt := range map[string]struct {
		err   error
		kind  Kind
		code  codes.Code
		final bool
	}{
		"none":                     {nil, Unknown, codes.OK, true},
		"not classified":           {errors.New("x"), Unknown, codes.Unavailable, false},
		"kind":                     {NotFound, NotFound, codes.NotFound, true},
		"wrapped":                  {fmt.Errorf("x: %w", Conflict), Conflict, codes.AlreadyExists, true},
		"named":                    {fmt.Errorf("x: %w", inUse), Precondition, codes.FailedPrecondition, true},
		"the first of several":     {fmt.Errorf("%w: %w", Uncertain, NoSpace), Uncertain, codes.Unavailable, false},
		"busy":                     {Busy, Busy, codes.Aborted, false},
		"canceled":                 {fmt.Errorf("x: %w", context.Canceled), Uncertain, codes.Canceled, false},
		"deadline":                 {context.DeadlineExceeded, Uncertain, codes.DeadlineExceeded, false},
		"in flight":                {pending{errors.New("x")}, Uncertain, codes.DeadlineExceeded, false},
		"in flight, with a kind":   {fmt.Errorf("%w: %w", NotFound, pending{errors.New("x")}), NotFound, codes.DeadlineExceeded, false},
		"a status":                 {status.Error(codes.OutOfRange, "x"), Unknown, codes.OutOfRange, true},
		"a status without meaning": {status.Error(codes.Unknown, "x"), Unknown, codes.Unavailable, false},
		"a kind and a status":      {fmt.Errorf("%w: %w", Invalid, status.Error(codes.OutOfRange, "x")), Invalid, codes.InvalidArgument, true},
		"an operation":             {Errorf("op", "x", "%w", NoSpace), NoSpace, codes.ResourceExhausted, true},
		"no kind":                  {Kind(99), Kind(99), codes.Unavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := KindOf(tt.err); got != tt.kind {
				t.Errorf("kind %v, want %v", got, tt.kind)
			}
			if got := CodeOf(tt.err); got != tt.code {
				t.Errorf("code %v, want %v", got, tt.code)
			}
			if got := IsFinal(tt.err); got != tt.final {
				t.Errorf("final: %t, want %t", got, tt.final)
			}
			if tt.err == nil {
				return
			}
			outer := Errorf("create volume", "a\nb", "%w", tt.err)
			if s := status.Convert(outer); s.Code() != tt.code || s.Message() != `create volume "a\nb": `+tt.err.Error() {
				t.Errorf("sent as %v", s)
			}
			if !errors.Is(outer, tt.err) {
				t.Error("the cause is lost")
			}
		})
	}
}

// Every kind has a text and a code, which is never one that gRPC gives to errors it does
// not know.
func TestKinds(t *testing.T) {
	for k := Unknown; k <= Internal; k++ {
		if k.Error() == "" || k.Code() == codes.OK || k.Code() == codes.Unknown {
			t.Errorf("kind %d: %q, %v", k, k.Error(), k.Code())
		}
		if status.Code(k) != k.Code() || status.Code(k.New("x")) != k.Code() {
			t.Errorf("%v is sent as %v and %v", k, status.Code(k), status.Code(k.New("x")))
		}
	}
}
