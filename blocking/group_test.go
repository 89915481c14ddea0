package blocking_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/blocking"
)

// result is what one Do returned.
type result struct {
	value  any
	joined bool
	err    error
}

// start calls Do on a goroutine; the result can be received later.
func start(ctx context.Context, g *blocking.Group, key string, fn func() (any, error)) <-chan result {
	c := make(chan result, 1)
	go func() {
		v, joined, err := g.Do(ctx, key, fn)
		c <- result{v, joined, err}
	}()
	return c
}

// hang returns a function that blocks until release is closed, as a system call
// on a server that does not respond does.
func hang(release <-chan struct{}, value any) func() (any, error) {
	return func() (any, error) {
		<-release
		return value, nil
	}
}

func mustNotRun(t *testing.T) func() (any, error) {
	return func() (any, error) {
		t.Error("the function ran")
		return nil, nil
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// park leaves a hanging call without a caller and returns its error.
func park(t *testing.T, g *blocking.Group, key string, fn func() (any, error)) *blocking.PendingError {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := start(ctx, g, key, fn)
	synctest.Wait()
	cancel()
	r := <-c
	var pending *blocking.PendingError
	if !errors.As(r.err, &pending) {
		t.Fatalf("Do(%q) = %v, want a *PendingError", key, r.err)
	}
	return pending
}

func TestDoReturnsResult(t *testing.T) {
	var g blocking.Group
	cause := errors.New("no such device")
	v, joined, err := g.Do(t.Context(), "k", func() (any, error) { return 7, cause })
	if v != 7 || joined || err != cause {
		t.Errorf("Do = %v, %v, %v, want 7, false, %v", v, joined, err, cause)
	}
	if s := g.Snapshot(); len(s) != 0 {
		t.Errorf("Snapshot after the call = %v, want none", s)
	}
	// The result is not kept: the next call runs again.
	v, joined, err = g.Do(t.Context(), "k", func() (any, error) { return 8, nil })
	if v != 8 || joined || err != nil {
		t.Errorf("second Do = %v, %v, %v, want 8, false, nil", v, joined, err)
	}
}

func TestDoJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blocking.Group
		release := make(chan struct{})
		first := start(t.Context(), &g, "a", hang(release, "done"))
		synctest.Wait()
		second := start(t.Context(), &g, "a", mustNotRun(t))
		third := start(t.Context(), &g, "a", mustNotRun(t))
		v, joined, err := g.Do(t.Context(), "b", func() (any, error) { return "b", nil })
		if v != "b" || joined || err != nil {
			t.Errorf("another key: Do = %v, %v, %v, want b, false, nil", v, joined, err)
		}
		synctest.Wait()
		if s := g.Snapshot(); len(s) != 1 || s[0].Key != "a" || s[0].Waiters != 3 {
			t.Errorf("Snapshot = %+v, want one call of key a with 3 waiters", s)
		}
		close(release)
		if r := <-first; r != (result{"done", false, nil}) {
			t.Errorf("first = %+v", r)
		}
		for _, c := range []<-chan result{second, third} {
			if r := <-c; r != (result{"done", true, nil}) {
				t.Errorf("joined = %+v", r)
			}
		}
	})
}

func TestDoContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blocking.Group
		began := time.Now()
		release := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		v, joined, err := g.Do(ctx, "umount /t", hang(release, "late"))
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("Do returned after %v, want 2m", took)
		}
		var pending *blocking.PendingError
		if v != nil || joined || !errors.As(err, &pending) {
			t.Fatalf("Do = %v, %v, %v, want a *PendingError", v, joined, err)
		}
		if pending.Key != "umount /t" || !pending.Since.Equal(began) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("PendingError = %+v, want the key, the start and the context's error", pending)
		}
		if got := status.Code(err); got != codes.DeadlineExceeded {
			t.Errorf("code = %v, want DEADLINE_EXCEEDED", got)
		}
		for _, want := range []string{"umount /t", began.UTC().Format(time.RFC3339), "a retry waits for the same call"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("text %q lacks %q", err, want)
			}
		}
		if isClosed(pending.Pending()) {
			t.Error("Pending is closed while the call runs")
		}
		if s := g.Snapshot(); len(s) != 1 || s[0].Waiters != 0 || !s[0].Since.Equal(began) {
			t.Errorf("Snapshot = %+v, want the parked call", s)
		}

		// The retry joins and times out too, and a third one gets the result.
		again := park(t, &g, "umount /t", mustNotRun(t))
		if again.Pending() != pending.Pending() || !errors.Is(again, context.Canceled) {
			t.Errorf("retry = %+v, want the same pending call, cancelled", again)
		}
		if got := status.Code(again); got != codes.DeadlineExceeded {
			t.Errorf("code of a cancelled call = %v, want DEADLINE_EXCEEDED", got)
		}
		third := start(t.Context(), &g, "umount /t", mustNotRun(t))
		synctest.Wait()
		close(release)
		if r := <-third; r != (result{"late", true, nil}) {
			t.Errorf("third = %+v, want the result of the first call", r)
		}
		if !isClosed(pending.Pending()) {
			t.Error("Pending is open although the call is over")
		}
		if s := g.Snapshot(); len(s) != 0 {
			t.Errorf("Snapshot = %+v, want none", s)
		}
	})
}

func TestDoOneWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := blocking.Group{Limit: 1}
		release := make(chan struct{})
		stays := start(t.Context(), &g, "a", hang(release, 1))
		synctest.Wait()
		park(t, &g, "a", mustNotRun(t))
		if s := g.Snapshot(); len(s) != 1 || s[0].Waiters != 1 {
			t.Errorf("Snapshot = %+v, want one waiter", s)
		}
		// Not parked, hence not counted.
		if _, _, err := g.Do(t.Context(), "b", func() (any, error) { return nil, nil }); err != nil {
			t.Errorf("Do beside a call that is waited for: %v", err)
		}
		close(release)
		if r := <-stays; r != (result{1, false, nil}) {
			t.Errorf("the remaining caller got %+v", r)
		}
	})
}

func TestLanesHaveTheirOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := blocking.Group{Limit: 1}
		one, free := g.Lane(1), g.Lane(blocking.NoLimit)
		quick := func() (any, error) { return "done", nil }
		refused := func(err error) bool {
			var full *blocking.LimitError
			return errors.As(err, &full)
		}
		release := make(chan struct{})
		defer close(release)
		parkIn := func(l *blocking.Lane, key string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, _, err := l.Do(ctx, key, hang(release, nil)); err == nil || refused(err) {
				t.Fatalf("%s: %v", key, err)
			}
		}
		parkIn(one, "a")
		for i := range 3 {
			parkIn(free, fmt.Sprint("free ", i))
		}
		if _, _, err := one.Do(t.Context(), "b", quick); !refused(err) {
			t.Errorf("the full lane: %v", err)
		}
		if _, _, err := g.Do(t.Context(), "b", quick); err != nil {
			t.Errorf("the group: %v", err)
		}
		if _, _, err := free.Do(t.Context(), "b", quick); err != nil {
			t.Errorf("the lane without a limit: %v", err)
		}
		park(t, &g, "c", hang(release, nil))
		if _, _, err := g.Do(t.Context(), "b", quick); !refused(err) {
			t.Errorf("the full group: %v", err)
		}
		if s := g.Snapshot(); len(s) != 5 {
			t.Errorf("Snapshot = %+v, want all five", s)
		}
	})
}

func TestDoContextAlreadyOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blocking.Group
		release := make(chan struct{})
		running := start(t.Context(), &g, "running", hang(release, nil))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, key := range []string{"new", "running"} {
			_, joined, err := g.Do(ctx, key, mustNotRun(t))
			if joined || err != context.Canceled {
				t.Errorf("Do(%s) = joined %v, %v, want not joined, context.Canceled itself", key, joined, err)
			}
		}
		close(release)
		<-running
	})
}

// lateContext ends while Do is about to wait for it, after the call has ended.
type lateContext struct{ context.Context }

func (c lateContext) Done() <-chan struct{} {
	synctest.Wait() // the call has returned
	return c.Context.Done()
}

func (c lateContext) Err() error { return nil } // at the start of Do

// An available result has precedence over a context that has ended too.
func TestDoPrefersResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blocking.Group
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // select chooses at random
			v, _, err := g.Do(lateContext{ended}, "k", func() (any, error) { return "v", nil })
			if v != "v" || err != nil {
				t.Fatalf("Do = %v, %v, want the result", v, err)
			}
		}
	})
}

func TestLimit(t *testing.T) {
	for _, limit := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := blocking.Group{Limit: limit}
				want := limit
				if limit == 0 {
					want = blocking.DefaultLimit
				}
				release := make(chan struct{})
				for i := range want {
					park(t, &g, fmt.Sprint(i), hang(release, i))
				}

				_, _, err := g.Do(t.Context(), "one more", mustNotRun(t))
				var full *blocking.LimitError
				if !errors.As(err, &full) || full.Key != "one more" || full.Limit != want {
					t.Fatalf("Do at the limit = %v, want a *LimitError with limit %d", err, want)
				}
				if got := status.Code(err); got != codes.Unavailable {
					t.Errorf("code = %v, want UNAVAILABLE", got)
				}

				// A join is accepted, and while it waits its call is not parked.
				joiner := start(t.Context(), &g, "0", mustNotRun(t))
				synctest.Wait()
				if v, _, err := g.Do(t.Context(), "one more", func() (any, error) { return 1, nil }); v != 1 || err != nil {
					t.Errorf("Do below the limit = %v, %v", v, err)
				}
				close(release)
				if r := <-joiner; r != (result{0, true, nil}) {
					t.Errorf("joiner = %+v", r)
				}
				synctest.Wait()
				// All have ended: the full number may be parked again.
				release = make(chan struct{})
				for i := range want {
					park(t, &g, fmt.Sprint(i), hang(release, i))
				}
				if _, _, err := g.Do(t.Context(), "one more", mustNotRun(t)); !errors.As(err, &full) {
					t.Errorf("Do at the limit, second round = %v, want a *LimitError", err)
				}
				close(release)
			})
		})
	}
}

func TestPanicAndGoexit(t *testing.T) {
	cause := errors.New("index out of range")
	tests := []struct {
		name string
		fn   func()
		want any // PanicError.Value; nil: any
		text string
	}{
		{"panic", func() { panic(cause) }, cause, "panic: index out of range"},
		{"panic nil", func() { panic(nil) }, nil, "panic called with nil argument"},
		{"goexit", func() { runtime.Goexit() }, nil, "panic: runtime.Goexit called"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g blocking.Group
				release := make(chan struct{})
				fn := func() (any, error) {
					<-release
					tt.fn()
					return nil, nil
				}
				first := start(t.Context(), &g, "k", fn)
				synctest.Wait()
				second := start(t.Context(), &g, "k", mustNotRun(t))
				synctest.Wait()
				close(release)
				for _, c := range []<-chan result{first, second} {
					r := <-c
					var p *blocking.PanicError
					if !errors.As(r.err, &p) || r.value != nil {
						t.Fatalf("Do = %+v, want a *PanicError", r)
					}
					if tt.want != nil && p.Value != tt.want {
						t.Errorf("Value = %v, want %v", p.Value, tt.want)
					}
					if !strings.Contains(p.Error(), tt.text) {
						t.Errorf("text %q lacks %q", p, tt.text)
					}
					if !strings.Contains(string(p.Stack), "TestPanicAndGoexit") {
						t.Errorf("the stack does not show where:\n%s", p.Stack)
					}
					if got := status.Code(r.err); got != codes.Unavailable {
						t.Errorf("code = %v, want UNAVAILABLE", got)
					}
				}
				// The key is free again.
				if v, joined, err := g.Do(t.Context(), "k", func() (any, error) { return 1, nil }); v != 1 || joined || err != nil {
					t.Errorf("Do afterwards = %v, %v, %v", v, joined, err)
				}
			})
		})
	}
}

// A panic after the last caller has returned neither ends the process nor blocks the key.
func TestPanicWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := blocking.Group{Limit: 1}
		release := make(chan struct{})
		pending := park(t, &g, "k", func() (any, error) {
			<-release
			panic("late")
		})
		close(release)
		<-pending.Pending()
		if v, joined, err := g.Do(t.Context(), "k", func() (any, error) { return 1, nil }); v != 1 || joined || err != nil {
			t.Errorf("Do afterwards = %v, %v, %v", v, joined, err)
		}
	})
}

func TestSnapshotOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blocking.Group
		release := make(chan struct{})
		for _, key := range []string{"c", "a"} {
			park(t, &g, key, hang(release, nil))
			time.Sleep(time.Second) // the bubble's clock
		}
		for _, key := range []string{"z", "b"} { // same age: by key
			park(t, &g, key, hang(release, nil))
		}
		var got []string
		for _, c := range g.Snapshot() {
			got = append(got, c.Key)
		}
		if want := "c a b z"; strings.Join(got, " ") != want {
			t.Errorf("Snapshot = %v, want %s", got, want)
		}
		close(release)
	})
}

// Many keys with callers that stay, leave and join. synctest.Test itself fails
// if a goroutine leaks.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, callers = 1000, 4
		g := blocking.Group{Limit: keys}
		var mu sync.Mutex
		running := map[string]int{}
		var results sync.WaitGroup
		release := make(chan struct{})
		for i := range keys {
			key := fmt.Sprint(i)
			for j := range callers {
				results.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i+j)%callers)*time.Second)
					defer cancel()
					v, _, err := g.Do(ctx, key, func() (any, error) {
						mu.Lock()
						running[key]++
						if running[key] > 1 {
							t.Errorf("two concurrent calls of key %s", key)
						}
						mu.Unlock()
						<-release
						mu.Lock()
						running[key]--
						mu.Unlock()
						return key, nil
					})
					var pending *blocking.PendingError
					if !errors.As(err, &pending) && (err != nil || v != key) {
						t.Errorf("Do(%s) = %v, %v", key, v, err)
					}
				})
			}
		}
		time.Sleep(1500 * time.Millisecond) // a quarter of the callers has left
		if s := g.Snapshot(); len(s) != keys {
			t.Errorf("%d calls listed, want %d", len(s), keys)
		}
		close(release)
		results.Wait()
		synctest.Wait()
		if s := g.Snapshot(); len(s) != 0 {
			t.Errorf("%d calls listed after the end", len(s))
		}
	})
}

func TestIdleGroupHoldsNothing(t *testing.T) {
	var g blocking.Group
	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			if _, _, err := g.Do(t.Context(), fmt.Sprint(i), func() (any, error) { return nil, nil }); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if blocking.HoldsMap(&g) {
		t.Error("an idle group keeps its map")
	}
}

// A call whose key changes is found by the new one alone, and waits for no call itself.
func TestRekey(t *testing.T) {
	var g blocking.Group
	lane := g.Lane(0)
	begun, release := make(chan struct{}), make(chan struct{})
	first := start(t.Context(), &g, "taken", func() (any, error) {
		close(begun)
		<-release
		return nil, nil
	})
	<-begun

	ctx, cancel := context.WithCancel(t.Context())
	reached, end := make(chan struct{}), make(chan struct{})
	second := make(chan result, 1)
	go func() {
		v, joined, err := lane.DoRekeyed(ctx, "draft", func(rekey func(string) bool) (any, error) {
			if rekey("taken") {
				t.Error("the key of another call was taken")
			}
			if !rekey("final") {
				t.Error("the key is free, and was not taken")
			}
			close(reached)
			<-end
			return "value", nil
		})
		second <- result{v, joined, err}
	}()
	<-reached
	if _, joined, err := g.Do(t.Context(), "draft", func() (any, error) { return nil, nil }); joined || err != nil {
		t.Errorf("the old key is still in use: %v, %v", joined, err)
	}
	cancel()
	r := <-second
	var pending *blocking.PendingError
	if !errors.As(r.err, &pending) || pending.Key != "final" {
		t.Errorf("error is %v, want one that is pending with the new key", r.err)
	}
	if err := g.Wait(ctx, "final"); !errors.Is(err, context.Canceled) || errors.As(err, new(*blocking.PendingError)) {
		t.Errorf("a wait whose context has ended before: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := g.Wait(short, "final"); !errors.As(err, &pending) {
		t.Errorf("error is %v, want one that is pending", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- g.Wait(t.Context(), "final") }()
	close(end)
	if err := <-waited; err != nil {
		t.Error(err)
	}
	<-pending.Pending()
	if err := g.Wait(t.Context(), "final"); err != nil {
		t.Errorf("a wait for no call: %v", err)
	}
	close(release)
	<-first
	if blocking.HoldsMap(&g) {
		t.Error("a call is left")
	}
}

// A panic has the key that the call had then.
func TestPanicAfterRekey(t *testing.T) {
	var g blocking.Group
	_, _, err := g.Lane(0).DoRekeyed(t.Context(), "draft", func(rekey func(string) bool) (any, error) {
		rekey("final")
		panic("oh")
	})
	var p *blocking.PanicError
	if !errors.As(err, &p) || p.Key != "final" {
		t.Errorf("error is %v", err)
	}
}
