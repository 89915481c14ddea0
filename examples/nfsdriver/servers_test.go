package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var testExport = export{Server: "nas", Share: "/srv"}

func testServers() *servers {
	s := newServers(30 * time.Second)
	s.dial = nil
	return s
}

func (s *servers) row(t *testing.T, name string) serverRow {
	t.Helper()
	for _, r := range s.Snapshot() {
		if r.Server == name {
			return r
		}
	}
	t.Fatalf("%s is not listed", name)
	return serverRow{}
}

// A server that hangs delays its callers once; then their calls fail immediately, calls
// for other servers are not affected, and it is used again when it responds.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServers()
		hang := make(chan struct{})
		hung := func(*job) (any, error) { <-hang; return "late", nil }
		fine := func(*job) (any, error) { return "fine", nil }
		start := time.Now()
		_, err := s.Do(t.Context(), testExport, "create a", hung)
		if status.Code(err) != codes.DeadlineExceeded || time.Since(start) != 30*time.Second {
			t.Errorf("the first call: %v after %v", err, time.Since(start))
		}
		var parked interface{ Pending() <-chan struct{} }
		if !errors.As(err, &parked) {
			t.Errorf("want a pending error: %v", err)
		}
		start = time.Now()
		for range 3 {
			_, err = s.Do(t.Context(), testExport, "create b", fine)
			if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "no response since") || time.Since(start) != 0 {
				t.Errorf("while the breaker is open: %v after %v", err, time.Since(start))
			}
		}
		if err := s.Allow("nas"); err == nil {
			t.Error("statistics are requested")
		}
		if v, err := s.Do(t.Context(), export{Server: "other", Share: "/"}, "create b", fine); err != nil || v != "fine" {
			t.Errorf("another server: %v, %v", v, err)
		}
		if r := s.row(t, "nas"); r.Breaker != "open" || r.Failures != 1 || r.Hanging != 1 {
			t.Errorf("row is %+v", r)
		}
		time.Sleep(minBackoff)
		if r := s.row(t, "nas"); r.Breaker != "half-open" {
			t.Errorf("row is %+v", r)
		}
		// One call is the trial, the others fail.
		trial := make(chan error)
		go func() {
			_, err := s.Do(t.Context(), testExport, "create c", hung)
			trial <- err
		}()
		synctest.Wait()
		if _, err := s.Do(t.Context(), testExport, "create b", fine); err == nil {
			t.Error("two concurrent trials")
		}
		<-trial
		if r := s.row(t, "nas"); r.Breaker != "open" || r.Failures != 2 || r.Hanging != 2 {
			t.Errorf("row is %+v", r)
		}
		time.Sleep(minBackoff)
		if _, err := s.Do(t.Context(), testExport, "create b", fine); err == nil {
			t.Error("the rest does not grow")
		}
		time.Sleep(minBackoff)
		if v, err := s.Do(t.Context(), testExport, "create b", fine); err != nil || v != "fine" {
			t.Errorf("when it answers again: %v, %v", v, err)
		}
		if r := s.row(t, "nas"); r.Breaker != "closed" || r.Error != "" {
			t.Errorf("row is %+v", r)
		}
		close(hang)
		synctest.Wait()
		if jobs := s.Jobs(); len(jobs) > 0 {
			t.Errorf("jobs stay: %+v", jobs)
		}
	})
}

// A blocked call that returns closes the breaker, even if its callers have returned.
func TestBreakerClosedByLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServers()
		hang := make(chan struct{})
		_, err := s.Do(t.Context(), testExport, "create", func(*job) (any, error) { <-hang; return nil, nil })
		if err == nil || s.row(t, "nas").Breaker != "open" {
			t.Errorf("%v, %+v", err, s.row(t, "nas"))
		}
		close(hang)
		synctest.Wait()
		if r := s.row(t, "nas"); r.Breaker != "closed" {
			t.Errorf("row is %+v", r)
		}
	})
}

// A long copy does not count as a server that hangs: its callers get an error when their
// deadline ends, and the retry joins it.
func TestLongWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServers()
		runs := 0
		long := func(j *job) (any, error) {
			runs++
			for range 100 {
				time.Sleep(20 * time.Second)
				j.Progress(1, 10)
			}
			return "copied", nil
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			_, err := s.Do(ctx, testExport, "copy", long)
			cancel()
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("after ten minutes: %v", err)
			}
		}
		synctest.Wait()
		if jobs := s.Jobs(); len(jobs) != 1 || jobs[0].Files < 89 || jobs[0].Bytes != 10*jobs[0].Files {
			t.Errorf("jobs are %+v", jobs)
		}
		if r := s.row(t, "nas"); r.Breaker != "closed" || r.Hanging != 1 {
			t.Errorf("row is %+v", r)
		}
		v, err := s.Do(t.Context(), testExport, "copy", long)
		if err != nil || v != "copied" || runs != 1 {
			t.Errorf("%v, %v after %d runs", v, err, runs)
		}
	})
}

// An unreachable server is detected before a call that would block in the kernel.
func TestUnreachableServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServers()
		var dialled []string
		var answer error
		s.dial = func(_ context.Context, address string) error {
			dialled = append(dialled, address)
			return answer
		}
		call := func() error {
			_, err := s.Do(t.Context(), testExport, "x", func(*job) (any, error) { return nil, nil })
			return err
		}
		if err := errors.Join(call(), call()); err != nil || len(dialled) != 1 || dialled[0] != "nas:2049" {
			t.Errorf("%v, dialled %v", err, dialled)
		}
		time.Sleep(time.Minute) // it answered long ago
		answer = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		if err := call(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "nas:2049") || !strings.Contains(err.Error(), "refused") {
			t.Errorf("without a listener: %v", err)
		}
		if err := call(); status.Code(err) != codes.Unavailable || len(dialled) != 2 {
			t.Errorf("the breaker is not open: %v, dialled %v", err, dialled)
		}
		time.Sleep(minBackoff)
		answer = nil
		if err := call(); err != nil {
			t.Error(err)
		}
	})
	for options, want := range map[string]string{
		"": "nas:2049", "port=2050,vers=4.2": "nas:2050", "vers=3": "nas:111", "proto=udp": "", "proto=rdma": "", "proto=tcp6": "nas:2049",
	} {
		if got := (export{"nas", "/", options}).address(); got != want {
			t.Errorf("with %q: %q, want %q", options, got, want)
		}
	}
}

// A caller whose deadline ends early proves nothing about the server.
func TestCallerWithShortDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServers()
		hang := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Do(ctx, testExport, "x", func(*job) (any, error) { <-hang; return nil, nil })
		if status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
		err = s.Watch(ctx, testExport, func(ctx context.Context) error { return nil })
		if err == nil {
			t.Error("worked after the caller's time")
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = s.Watch(ctx, testExport, func(ctx context.Context) error {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		})
		if r := s.row(t, "nas"); r.Breaker != "closed" || status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v, row is %+v", err, r)
		}
		err = s.Watch(t.Context(), testExport, func(ctx context.Context) error {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		})
		if r := s.row(t, "nas"); r.Breaker != "open" || status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v, row is %+v", err, r)
		}
		close(hang)
		synctest.Wait()
	})
}

// breakerMeters keeps the callback that reads the state.
type breakerMeters struct {
	metricnoop.MeterProvider
	ask metric.Callback
}

type breakerMeter struct {
	metricnoop.Meter
	p *breakerMeters
}

type breakerObserver struct {
	metricnoop.Observer
	said []string
}

func (p *breakerMeters) Meter(string, ...metric.MeterOption) metric.Meter { return breakerMeter{p: p} }

func (m breakerMeter) RegisterCallback(f metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	m.p.ask = f
	return metricnoop.Registration{}, nil
}

func (o *breakerObserver) ObserveInt64(_ metric.Int64Observable, v int64, opts ...metric.ObserveOption) {
	attributes := metric.NewObserveConfig(opts).Attributes()
	server, _ := attributes.Value("server")
	o.said = append(o.said, fmt.Sprint(server.AsString(), " ", v))
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := testServers(), &breakerMeters{}
		if err := s.Instrument(p); err != nil {
			t.Fatal(err)
		}
		want := func(state string) {
			t.Helper()
			o := &breakerObserver{}
			if err := p.ask(t.Context(), o); err != nil || strings.Join(o.said, ", ") != state {
				t.Errorf("breaker and hanging calls are %q (%v), want %q", o.said, err, state)
			}
		}
		hang := make(chan struct{})
		want("")
		if _, err := s.Do(t.Context(), testExport, "x", func(*job) (any, error) { return nil, nil }); err != nil {
			t.Error(err)
		}
		want("nas 0, nas 0")
		if _, err := s.Do(t.Context(), testExport, "x", func(*job) (any, error) { <-hang; return nil, nil }); err == nil {
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

// Progress of a copy counts as a response: other calls need not wait for its end,
// possibly for hours.
func TestBreakerClosedByProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServers()
		hang, on, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		_, _ = s.Do(t.Context(), testExport, "list", func(*job) (any, error) { <-hang; return nil, nil })
		time.Sleep(minBackoff)
		trial := make(chan error)
		go func() {
			_, err := s.Do(t.Context(), testExport, "copy", func(j *job) (any, error) {
				<-on
				j.Progress(1, 0)
				<-end
				return nil, nil
			})
			trial <- err
		}()
		synctest.Wait()
		if r := s.row(t, "nas"); r.Breaker != "half-open" {
			t.Errorf("row is %+v", r)
		}
		on <- struct{}{}
		synctest.Wait()
		if v, err := s.Do(t.Context(), testExport, "create", func(*job) (any, error) { return "fine", nil }); err != nil || v != "fine" {
			t.Errorf("while the copy gets on: %v, %v", v, err)
		}
		close(end)
		if err := <-trial; err != nil {
			t.Error(err)
		}
		close(hang)
		synctest.Wait()
	})
}

// A call whose deadline ended before any request to the server proves nothing.
func TestBreakerInconclusive(t *testing.T) {
	s := newServer("nas")
	s.report(false, &unanswered{server: "nas", err: errors.New("gone"), code: codes.DeadlineExceeded})
	s.report(true, context.DeadlineExceeded)
	if s.failures != 1 {
		t.Errorf("%d failures are counted", s.failures)
	}
}
