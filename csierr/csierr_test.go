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

func (p pending) Unwrap() error          { return p.error }
func (pending) Pending() <-chan struct{} { return nil }

// nilStatus has a status that is none.
type nilStatus struct{ error }

func (nilStatus) GRPCStatus() *status.Status { return nil }

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
		"the outermost":            {fmt.Errorf("%w: %w", Uncertain, fmt.Errorf("%w: %w", errors.New("x"), NotFound)), Uncertain, codes.Unavailable, false},
		"joined":                   {errors.Join(errors.New("x"), NoSpace, NotFound), NoSpace, codes.ResourceExhausted, true},
		"busy":                     {Busy, Busy, codes.Aborted, false},
		"canceled":                 {fmt.Errorf("x: %w", context.Canceled), Uncertain, codes.Canceled, false},
		"deadline":                 {context.DeadlineExceeded, Uncertain, codes.DeadlineExceeded, false},
		"deadline, with a kind":    {fmt.Errorf("%w: %w", Precondition, context.DeadlineExceeded), Uncertain, codes.DeadlineExceeded, false},
		"in flight":                {pending{errors.New("x")}, Uncertain, codes.DeadlineExceeded, false},
		"in flight, canceled":      {pending{context.Canceled}, Uncertain, codes.DeadlineExceeded, false},
		"in flight, with a kind":   {fmt.Errorf("%w: %w", NotFound, pending{errors.New("x")}), Uncertain, codes.DeadlineExceeded, false},
		"a status":                 {status.Error(codes.OutOfRange, "x"), Unknown, codes.OutOfRange, true},
		"a status, wrapped":        {fmt.Errorf("x: %w", status.Error(codes.Aborted, "y")), Unknown, codes.Aborted, false},
		"a status without meaning": {status.Error(codes.Unknown, "x"), Unknown, codes.Unavailable, false},
		"no canonical code":        {status.Error(42, "x"), Unknown, codes.Unavailable, false},
		"no status":                {nilStatus{errors.New("x")}, Unknown, codes.Unavailable, false},
		"a kind and a status":      {fmt.Errorf("%w: %w", Invalid, status.Error(codes.OutOfRange, "x")), Invalid, codes.InvalidArgument, true},
		"a status and a kind":      {fmt.Errorf("%w: %w", status.Error(codes.NotFound, "x"), Uncertain), Uncertain, codes.Unavailable, false},
		"an operation":             {Errorf("op", "x", "%w", NoSpace), NoSpace, codes.ResourceExhausted, true},
		"no kind":                  {Kind(99), Kind(99), codes.Unavailable, false},
		"a negative kind":          {Kind(-1), Kind(-1), codes.Unavailable, false},
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

// Every kind has a text of its own and a code, which is never one that gRPC gives to errors
// it does not know. A kind may be compared with ==, as any error.
func TestKinds(t *testing.T) {
	seen := map[string]Kind{}
	for k := Unknown; k <= Unauthenticated; k++ {
		if k.Error() == "" || k.Code() == codes.OK || k.Code() == codes.Unknown {
			t.Errorf("kind %d: %q, %v", k, k.Error(), k.Code())
		}
		if other, used := seen[k.Error()]; used {
			t.Errorf("%d and %d are both %q", int(k), int(other), k.Error())
		}
		seen[k.Error()] = k
		if err := error(k); err != k || !errors.Is(k.New("x"), k) || errors.Is(k, k+1) {
			t.Errorf("%v is not found, or another kind is", k)
		}
		wrapped := fmt.Errorf("volume v: %w", k)
		if s, ok := status.FromError(wrapped); !ok || s.Code() != k.Code() || s.Message() != wrapped.Error() {
			t.Errorf("gRPC sends %v for %v", s, wrapped)
		}
		if status.Code(k) != k.Code() || status.Code(k.New("x")) != k.Code() {
			t.Errorf("%v is sent as %v and %v", k, status.Code(k), status.Code(k.New("x")))
		}
	}
}
