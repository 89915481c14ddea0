package breaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var nas = Server{Name: "nas"}

func (g *Group) status(t *testing.T, name string) ServerStatus {
	t.Helper()
	for _, r := range g.Snapshot() {
		if r.Server == name {
			return r
		}
	}
	t.Fatalf("%s is not listed", name)
	return ServerStatus{}
}

func fine(*Job) (any, error) { return "fine", nil }

// isPending reports whether a lock would be held for err until the work ends.
func isPending(err error) bool {
	var p interface{ Pending() <-chan struct{} }
	return errors.As(err, &p)
}

// isRefused reports whether the call was not started because the server does not respond.
func isRefused(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Server == "nas" && !isPending(err) && status.Code(err) == codes.Unavailable
}

// A server that hangs delays its callers once; then their calls fail immediately, calls
// for other servers are not affected, and it is used again when it responds.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		hang := make(chan struct{})
		hung := func(*Job) (any, error) { <-hang; return "late", nil }
		start := time.Now()
		_, _, err := g.Do(t.Context(), nas, "create a", hung)
		if status.Code(err) != codes.DeadlineExceeded || csierr.CodeOf(err) != codes.DeadlineExceeded || time.Since(start) != DefaultTimeout || !isPending(err) {
			t.Errorf("the first call: %v after %v", err, time.Since(start))
		}
		var e *Error
		if !errors.As(err, &e) || e.Server != "nas" {
			t.Errorf("the server is not in %v", err)
		}
		start = time.Now()
		for range 3 {
			_, _, err = g.Do(t.Context(), nas, "create b", fine)
			if !isRefused(err) || !strings.Contains(err.Error(), "create a: no progress for 30s") || time.Since(start) != 0 {
				t.Errorf("while the breaker is open: %v after %v", err, time.Since(start))
			}
			if err := g.Watch(t.Context(), nas, func(context.Context) error { return nil }); !isRefused(err) {
				t.Errorf("while the breaker is open: %v", err)
			}
		}
		if err := g.Allow("nas"); !isRefused(err) {
			t.Errorf("statistics are requested: %v", err)
		}
		if v, _, err := g.Do(t.Context(), Server{Name: "other"}, "create b", fine); err != nil || v != "fine" {
			t.Errorf("another server: %v, %v", v, err)
		}
		if r := g.status(t, "nas"); r.State != Open || r.Failures != 1 || r.Parked != 1 || r.Since.IsZero() {
			t.Errorf("status is %+v", r)
		}
		time.Sleep(minBackoff)
		if r := g.status(t, "nas"); r.State != HalfOpen || g.Allow("nas") != nil {
			t.Errorf("status is %+v", r)
		}
		// One call is the trial, the others fail.
		trial := make(chan error)
		go func() {
			_, _, err := g.Do(t.Context(), nas, "create c", hung)
			trial <- err
		}()
		synctest.Wait()
		if _, _, err := g.Do(t.Context(), nas, "create b", fine); !isRefused(err) || !strings.Contains(err.Error(), "the next attempt is in flight") {
			t.Errorf("two concurrent trials: %v", err)
		}
		<-trial
		if r := g.status(t, "nas"); r.State != Open || r.Failures != 2 || r.Parked != 2 {
			t.Errorf("status is %+v", r)
		}
		time.Sleep(minBackoff)
		if _, _, err := g.Do(t.Context(), nas, "create b", fine); err == nil {
			t.Error("the interval does not grow")
		}
		time.Sleep(minBackoff)
		if v, _, err := g.Do(t.Context(), nas, "create b", fine); err != nil || v != "fine" {
			t.Errorf("when it responds again: %v, %v", v, err)
		}
		if r := g.status(t, "nas"); r.State != Closed || r.Error != "" || !r.Since.IsZero() {
			t.Errorf("status is %+v", r)
		}
		close(hang)
		synctest.Wait()
		if jobs := g.Jobs(); len(jobs) > 0 {
			t.Errorf("jobs stay: %+v", jobs)
		}
	})
}

// The interval between trials grows to a minute, and starts at 2 seconds after a response.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		var intervals []time.Duration
		for range 7 {
			_ = g.Watch(t.Context(), nas, func(context.Context) error { return syscall.ECONNREFUSED })
			start := time.Now()
			for g.Allow("nas") != nil {
				time.Sleep(time.Second)
			}
			intervals = append(intervals, time.Since(start)/time.Second)
		}
		if want := []time.Duration{2, 4, 8, 16, 32, 60, 60}; !slices.Equal(intervals, want) {
			t.Errorf("intervals in seconds: %d, want %d", intervals, want)
		}
		if err := g.Watch(t.Context(), nas, func(context.Context) error { return csierr.NotFound }); !errors.Is(err, csierr.NotFound) {
			t.Error(err)
		}
		_ = g.Watch(t.Context(), nas, func(context.Context) error { return syscall.ECONNREFUSED })
		time.Sleep(minBackoff)
		if err := g.Allow("nas"); err != nil {
			t.Errorf("after a response: %v", err)
		}
	})
}

// Calls in flight that fail together are one failure: the interval stays the shortest.
func TestConcurrentFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		hang := make(chan struct{})
		for i := range 5 {
			go func() {
				_, _, _ = g.Do(t.Context(), nas, fmt.Sprint("create ", i), func(*Job) (any, error) { <-hang; return nil, syscall.ETIMEDOUT })
			}()
		}
		time.Sleep(DefaultTimeout)
		synctest.Wait()
		if r := g.status(t, "nas"); r.State != Open || r.Failures != 1 || r.Parked != 5 {
			t.Errorf("status is %+v", r)
		}
		close(hang)
		synctest.Wait()
		if r := g.status(t, "nas"); r.State != Open || r.Failures != 1 || r.Parked != 0 {
			t.Errorf("status is %+v", r)
		}
	})
}

// A blocked call that returns closes the breaker, even if its callers have returned.
func TestClosedByLateResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		hang := make(chan struct{})
		_, _, err := g.Do(t.Context(), nas, "create", func(*Job) (any, error) { <-hang; return nil, nil })
		if err == nil || g.status(t, "nas").State != Open {
			t.Errorf("%v, %+v", err, g.status(t, "nas"))
		}
		close(hang)
		synctest.Wait()
		if r := g.status(t, "nas"); r.State != Closed {
			t.Errorf("status is %+v", r)
		}
	})
}

// A long copy does not count as a server that hangs: its callers get an error when their
// deadline ends, and the retry joins it.
func TestLongWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		runs := 0
		long := func(j *Job) (any, error) {
			runs++
			for range 100 {
				time.Sleep(20 * time.Second)
				j.Progress(1, 10)
			}
			return "copied", nil
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			_, _, err := g.Do(ctx, nas, "copy", long)
			cancel()
			if status.Code(err) != codes.DeadlineExceeded || !isPending(err) {
				t.Errorf("after ten minutes: %v", err)
			}
		}
		synctest.Wait()
		if jobs := g.Jobs(); len(jobs) != 1 || jobs[0].Items < 89 || jobs[0].Bytes != 10*jobs[0].Items || jobs[0].Server != "nas" || jobs[0].Key != "copy" {
			t.Errorf("jobs are %+v", jobs)
		}
		if r := g.status(t, "nas"); r.State != Closed || r.Parked != 1 {
			t.Errorf("status is %+v", r)
		}
		v, joined, err := g.Do(t.Context(), nas, "copy", long)
		if err != nil || v != "copied" || !joined || runs != 1 {
			t.Errorf("%v, %v after %d runs", v, err, runs)
		}
	})
}

// Progress of a copy counts as a response: other calls need not wait for its end,
// possibly for hours.
func TestClosedByProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		hang, on, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		_, _, _ = g.Do(t.Context(), nas, "list", func(*Job) (any, error) { <-hang; return nil, nil })
		time.Sleep(minBackoff)
		trial := make(chan error)
		go func() {
			_, _, err := g.Do(t.Context(), nas, "copy", func(j *Job) (any, error) {
				<-on
				j.Progress(1, 0)
				<-end
				return nil, nil
			})
			trial <- err
		}()
		synctest.Wait()
		if r := g.status(t, "nas"); r.State != HalfOpen {
			t.Errorf("status is %+v", r)
		}
		on <- struct{}{}
		synctest.Wait()
		if v, _, err := g.Do(t.Context(), nas, "create", fine); err != nil || v != "fine" {
			t.Errorf("while the copy makes progress: %v, %v", v, err)
		}
		// It is no trial any more: another one may start if the server fails again.
		_ = g.Watch(t.Context(), nas, func(context.Context) error { return syscall.ECONNREFUSED })
		time.Sleep(minBackoff)
		if err := g.Allow("nas"); err != nil {
			t.Error(err)
		}
		close(end)
		if err := <-trial; err != nil {
			t.Error(err)
		}
		close(hang)
		synctest.Wait()
	})
}

// A copy that stalls is a server that does not respond, from its latest progress on.
func TestStalledWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Group{Timeout: 10 * time.Second}
		hang := make(chan struct{})
		start := time.Now()
		_, _, err := g.Do(t.Context(), nas, "copy", func(j *Job) (any, error) {
			time.Sleep(9 * time.Second)
			j.Progress(0, 1)
			<-hang
			return nil, nil
		})
		if !isPending(err) || time.Since(start) != 19*time.Second || g.status(t, "nas").State != Open {
			t.Errorf("%v after %v, %+v", err, time.Since(start), g.status(t, "nas"))
		}
		close(hang)
		synctest.Wait()
	})
}

// An unreachable server is detected before a call that would block in the kernel.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		probes := 0
		var answer error
		target := Server{Name: "nas", Probe: func(context.Context) error { probes++; return answer }}
		ran := false
		call := func() error {
			_, _, err := g.Do(t.Context(), target, "x", func(*Job) (any, error) { ran = true; return nil, nil })
			return err
		}
		if err := errors.Join(call(), call()); err != nil || probes != 1 {
			t.Errorf("%v, %d probes", err, probes)
		}
		time.Sleep(time.Minute) // it responded long ago
		ran, answer = false, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		if err := call(); !isRefused(err) || !errors.Is(err, syscall.ECONNREFUSED) || ran {
			t.Errorf("without a listener: %v, ran: %t", err, ran)
		}
		if err := call(); !isRefused(err) || probes != 2 || !strings.Contains(err.Error(), "refused") {
			t.Errorf("the breaker is not open: %v, %d probes", err, probes)
		}
		time.Sleep(minBackoff)
		answer = nil
		if err := call(); err != nil {
			t.Error(err)
		}
		// A probe that does not end has its own timeout.
		time.Sleep(time.Minute)
		target.Probe = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		start := time.Now()
		if err := call(); status.Code(err) != codes.DeadlineExceeded || csierr.CodeOf(err) != codes.DeadlineExceeded || time.Since(start) != maxProbe {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		// What it finds out about the server is no outcome of the call.
		time.Sleep(time.Minute)
		target.Probe = func(context.Context) error { return fmt.Errorf("login: %w", csierr.NotFound) }
		if err := call(); !isRefused(err) || csierr.CodeOf(err) != codes.Unavailable {
			t.Error(err)
		}
	})
}

// A caller whose deadline ends early proves nothing about the server, in a trial either.
func TestCallerWithShortDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		untilEnd := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		hang := make(chan struct{})
		hung := func(*Job) (any, error) { <-hang; return nil, nil }
		key := "x"
		calls := map[string]func(context.Context) error{
			"do": func(ctx context.Context) error { _, _, err := g.Do(ctx, nas, key, hung); return err },
			"watch": func(ctx context.Context) error {
				return g.Watch(ctx, nas, func(ctx context.Context) error { return status.FromContextError(untilEnd(ctx)).Err() })
			},
			"watch, plain": func(ctx context.Context) error { return g.Watch(ctx, nas, untilEnd) },
			"probe":        func(ctx context.Context) error { return g.Watch(ctx, Server{"nas", untilEnd}, untilEnd) },
		}
		for range 2 { // closed, and as a trial
			before := Closed
			if len(g.Snapshot()) > 0 {
				before = g.status(t, "nas").State
			}
			for name, call := range calls {
				for _, canceled := range []bool{true, false} {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					if canceled {
						time.AfterFunc(time.Second/2, cancel)
					}
					err := call(ctx)
					if r := g.status(t, "nas"); r.State != before || err == nil || isRefused(err) {
						t.Errorf("%s: %v, status is %+v", name, err, r)
					}
					if err := call(ctx); !errors.Is(err, ctx.Err()) || isPending(err) {
						t.Errorf("%s worked after the caller's time: %v", name, err)
					}
					cancel()
				}
			}
			if before == Closed {
				err := calls["watch"](t.Context())
				if r := g.status(t, "nas"); r.State != Open || status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("%v, status is %+v", err, r)
				}
				time.Sleep(minBackoff)
				key = "y"
			}
		}
		key = "x"
		// But it does if the work that it joined has made no progress for the timeout.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := calls["do"](ctx); !isPending(err) || g.status(t, "nas").Failures != 2 {
			t.Errorf("%v, status is %+v", err, g.status(t, "nas"))
		}
		close(hang)
		synctest.Wait()
	})
}

// The error of a call that failed while in flight is not one that other calls get: their
// locks would be held for it.
func TestRefusalIsNotPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		var calls blocking.Group
		hang := make(chan struct{})
		err := g.Watch(t.Context(), nas, func(ctx context.Context) error {
			_, _, err := calls.Do(ctx, "mount", func() (any, error) { <-hang; return nil, nil })
			return err
		})
		if !isPending(err) {
			t.Error(err)
		}
		if err := g.Allow("nas"); !isRefused(err) || !strings.Contains(err.Error(), "mount: still running") {
			t.Error(err)
		}
		close(hang)
		synctest.Wait()
	})
}

// A panic says nothing about the server, and ends a trial.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		refused := func(context.Context) error { return syscall.ECONNREFUSED }
		boom := func(context.Context) error { panic("boom") }
		_ = g.Watch(t.Context(), nas, refused)
		for name, call := range map[string]func(){
			"watch": func() { _ = g.Watch(t.Context(), nas, boom) },
			"probe": func() { _, _, _ = g.Do(t.Context(), Server{"nas", boom}, "x", fine) },
			"do": func() {
				_, _, err := g.Do(t.Context(), nas, "x", func(*Job) (any, error) { panic("boom") })
				var p *blocking.PanicError
				if !errors.As(err, &p) {
					t.Error(err)
				}
			},
		} {
			time.Sleep(maxBackoff)
			func() {
				defer func() { _ = recover() }()
				call()
			}()
			if r := g.status(t, "nas"); r.Failures != 1 || g.Allow("nas") != nil {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if jobs := g.Jobs(); len(jobs) > 0 {
			t.Errorf("jobs stay: %+v", jobs)
		}
	})
}

// Names come from requests: one that is not used any more is forgotten, with its breaker.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		hang := make(chan struct{})
		for i := range 100 {
			_ = g.Watch(t.Context(), Server{Name: fmt.Sprint("gone ", i)}, func(context.Context) error { return syscall.EHOSTDOWN })
		}
		_, _, _ = g.Do(t.Context(), nas, "x", func(*Job) (any, error) { <-hang; return nil, nil })
		time.Sleep(forgetAfter - g.timeout()) // that call has taken the timeout
		if list := g.Snapshot(); len(list) != 101 {
			t.Errorf("%d servers after an hour", len(list))
		}
		time.Sleep(time.Minute)
		if list := g.Snapshot(); len(list) != 1 || list[0].Parked != 1 {
			t.Errorf("servers are %+v", list)
		}
		close(hang)
		synctest.Wait()
		if list := g.Snapshot(); len(list) != 0 {
			t.Errorf("servers are %+v", list)
		}
	})
}

func TestNoResponse(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want outcome
	}{
		{nil, responded},
		{errors.New("no such volume"), responded},
		{csierr.NotFound, responded},
		{csierr.Uncertain, responded},
		{status.Error(codes.Unavailable, "x"), responded},
		{&os.PathError{Op: "stat", Path: "/x", Err: syscall.EIO}, responded},
		{&os.PathError{Op: "stat", Path: "/x", Err: syscall.ETIMEDOUT}, failed},
		{fmt.Errorf("x: %w", syscall.EHOSTUNREACH), failed},
		{syscall.ENETUNREACH, failed},
		{syscall.ECONNREFUSED, failed},
		{syscall.EHOSTDOWN, failed},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, failed},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), failed},
		{status.Error(codes.DeadlineExceeded, "x"), failed},
		{&Error{Server: "nas", Err: errors.New("x")}, failed},
		{fmt.Errorf("x: %w", context.Canceled), inconclusive},
		{status.Error(codes.Canceled, "x"), inconclusive},
		{&blocking.LimitError{}, inconclusive},
		{&blocking.PanicError{}, inconclusive},
	} {
		if got := new(Group).outcome(tt.err); got != tt.want || NoResponse(tt.err) != (tt.want == failed) {
			t.Errorf("%v: %d, %t, want %d", tt.err, got, NoResponse(tt.err), tt.want)
		}
	}
	g := Group{NoResponse: func(err error) bool { return status.Code(err) == codes.Unavailable || NoResponse(err) }}
	if err := g.Watch(t.Context(), nas, func(context.Context) error { return status.Error(codes.Unavailable, "down") }); err == nil || g.Allow("nas") == nil {
		t.Errorf("the breaker is closed after %v", err)
	}
}

func TestDialTCP(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	probe := DialTCP(lis.Addr().String())
	if err := probe(t.Context()); err != nil {
		t.Error(err)
	}
	lis.Close()
	if err := probe(t.Context()); err == nil {
		t.Error("connected to a closed port")
	}
}

// meters keeps the callback that reads the state.
type meters struct {
	metricnoop.MeterProvider
	observe metric.Callback
}

type meter struct {
	metricnoop.Meter
	p *meters
}

type observer struct {
	metricnoop.Observer
	seen []string
}

func (p *meters) Meter(string, ...metric.MeterOption) metric.Meter { return meter{p: p} }

func (m meter) RegisterCallback(f metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	m.p.observe = f
	return metricnoop.Registration{}, nil
}

func (o *observer) ObserveInt64(_ metric.Int64Observable, v int64, opts ...metric.ObserveOption) {
	attributes := metric.NewObserveConfig(opts).Attributes()
	server, _ := attributes.Value("server")
	o.seen = append(o.seen, fmt.Sprint(server.AsString(), " ", v))
}

func TestInstrument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		p := &meters{}
		if err := errors.Join(g.Instrument(nil), g.Instrument(p)); err != nil {
			t.Fatal(err)
		}
		want := func(state string) {
			t.Helper()
			o := &observer{}
			if err := p.observe(t.Context(), o); err != nil || strings.Join(o.seen, ", ") != state {
				t.Errorf("state and parked calls are %q (%v), want %q", o.seen, err, state)
			}
		}
		hang := make(chan struct{})
		want("")
		if _, _, err := g.Do(t.Context(), nas, "x", fine); err != nil {
			t.Error(err)
		}
		want("nas 0, nas 0")
		if _, _, err := g.Do(t.Context(), nas, "x", func(*Job) (any, error) { <-hang; return nil, nil }); err == nil {
			t.Error("no error")
		}
		want("nas 2, nas 1")
		time.Sleep(minBackoff)
		want("nas 1, nas 1")
		close(hang)
		synctest.Wait()
		want("nas 0, nas 0")
	})
}

func TestStateString(t *testing.T) {
	if got := fmt.Sprint(Closed, HalfOpen, Open, State(7)); got != "closed half-open open state 7" {
		t.Error(got)
	}
}
