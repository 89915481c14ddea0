package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/csikit/csikit/blocking"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// servers isolates an unresponsive server from the others. Operations run per server, on
// goroutines that their callers need not wait for; and a server that did not respond has
// an open circuit breaker for a while: calls for it fail immediately, and one at a time
// tests whether it is back.
type servers struct {
	timeout time.Duration // without progress for so long, a server counts as unresponsive
	dial    func(ctx context.Context, address string) error

	mu     sync.Mutex
	byName map[string]*server
}

func newServers(timeout time.Duration) *servers {
	return &servers{timeout: timeout, dial: dialTCP, byName: map[string]*server{}}
}

func dialTCP(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// server holds the operations on one server and the state of its breaker.
type server struct {
	name  string
	group blocking.Group

	mu       sync.Mutex
	answered time.Time // time of its last response
	failures int       // since then; 0: the breaker is closed
	since    time.Time // time of the first failure
	retryAt  time.Time // no trial before
	probing  bool      // a trial is in flight
	last     error     // of the last failure
	jobs     map[string]*job
}

// Do runs fn, or joins an earlier call in flight with the same key, which must identify
// the whole operation. It returns DEADLINE_EXCEEDED when ctx ends before the operation
// does, and when the operation made no progress for the servers' timeout; the operation
// continues. fn gets no context because it cannot be aborted.
func (s *servers) Do(ctx context.Context, e export, key string, fn func(*job) (any, error)) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	srv := s.get(e.Server)
	trial, err := srv.admit(time.Now())
	if err != nil {
		return nil, err
	}
	if err := s.checkReachable(ctx, srv, e); err != nil {
		srv.report(trial, err)
		return nil, err
	}
	j := srv.join(key)
	defer srv.leave(j)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := j.watch(s.timeout, cancel)
	v, _, err := srv.group.Do(ctx, key, func() (_ any, err error) {
		j := srv.begin(key)
		defer func() { srv.end(j, err) }()
		return fn(j)
	})
	stop()
	var pending *blocking.PendingError
	if errors.As(err, &pending) {
		if idle := j.idle(); idle >= s.timeout {
			srv.report(trial, &unanswered{server: e.Server, err: fmt.Errorf("%s: no response for %v", key, s.timeout), code: codes.DeadlineExceeded})
		} else {
			srv.report(trial, errInconclusive)
		}
		return nil, err
	}
	srv.report(trial, err)
	return v, err
}

// Watch is Do for an fn that returns when its context ends.
func (s *servers) Watch(ctx context.Context, e export, fn func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	srv := s.get(e.Server)
	trial, err := srv.admit(time.Now())
	if err != nil {
		return err
	}
	start := time.Now()
	if err = s.checkReachable(ctx, srv, e); err == nil {
		bounded, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		err = fn(bounded)
	}
	if noAnswer(err) && ctx.Err() != nil && time.Since(start) < s.timeout {
		srv.report(trial, errInconclusive) // the caller's deadline ended first
		return err
	}
	srv.report(trial, err)
	return err
}

// errInconclusive: the result says nothing about the server.
var errInconclusive = errors.New("inconclusive")

// unanswered means that a server does not respond. Nothing was changed, at least not by
// this call.
type unanswered struct {
	server string
	err    error
	code   codes.Code
}

func (u *unanswered) Error() string { return fmt.Sprintf("server %s: %v", u.server, u.err) }
func (u *unanswered) Unwrap() error { return u.err }
func (u *unanswered) GRPCStatus() *status.Status {
	return status.New(u.code, u.Error())
}

// noAnswer reports whether an error means that the server did not respond.
func noAnswer(err error) bool {
	var u *unanswered
	if errors.As(err, &u) {
		return true
	}
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.EHOSTDOWN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return status.Code(err) == codes.DeadlineExceeded // a mount helper was killed
}

// checkReachable connects to the server before a call that could block in the kernel.
func (s *servers) checkReachable(ctx context.Context, srv *server, e export) error {
	address := e.address()
	if s.dial == nil || address == "" || srv.answeredWithin(s.timeout) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.timeout, 10*time.Second))
	defer cancel()
	err := s.dial(ctx, address)
	if err == nil {
		return nil
	}
	u := &unanswered{server: e.Server, code: codes.Unavailable,
		err: fmt.Errorf("no response at %s; if the server uses another port for NFS, set the mount option port: %w", address, err)}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || ctx.Err() != nil {
		u.code = codes.DeadlineExceeded
	}
	return u
}

// address returns the TCP address of an export's server, "" if it is not reached by TCP.
func (e export) address() string {
	port := "2049"
	for _, option := range e.options() {
		key, value := canonical(option)
		switch {
		case key == "port":
			return net.JoinHostPort(e.Server, value)
		case key == "vers" && strings.HasPrefix(value, "3"):
			port = "111" // mount.nfs asks there for the ports
		case key == "proto" && !strings.HasPrefix(value, "tcp"):
			return ""
		}
	}
	return net.JoinHostPort(e.Server, port)
}

func (s *servers) get(name string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	srv := s.byName[name]
	if srv == nil {
		srv = newServer(name)
		s.byName[name] = srv
	}
	return srv
}

func newServer(name string) *server { return &server{name: name, jobs: map[string]*job{}} }

func (s *servers) all() []*server {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*server
	for _, srv := range s.byName {
		all = append(all, srv)
	}
	slices.SortFunc(all, func(a, b *server) int { return cmp.Compare(a.name, b.name) })
	return all
}

// Allow is for operations that do not use Do. It returns an error while the server's
// breaker is open.
func (s *servers) Allow(name string) error {
	srv := s.get(name)
	trial, err := srv.admit(time.Now())
	if trial {
		srv.report(trial, errInconclusive)
	}
	return err
}

func (s *server) answeredWithin(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.answered) < d
}

// serverRow is a server on the debug page.
type serverRow struct {
	Server   string
	Breaker  string
	Since    time.Time // of the first failure
	Failures int
	Hanging  int // calls in flight without a caller
	Error    string
}

// Snapshot lists the servers that were used.
func (s *servers) Snapshot() []serverRow {
	var rows []serverRow
	for _, srv := range s.all() {
		r := serverRow{Server: srv.name, Breaker: "closed"}
		for _, call := range srv.group.Snapshot() {
			if call.Waiters == 0 {
				r.Hanging++
			}
		}
		srv.mu.Lock()
		if srv.failures > 0 {
			r.Breaker, r.Since, r.Failures, r.Error = "open", srv.since, srv.failures, srv.last.Error()
			if srv.probing || !time.Now().Before(srv.retryAt) {
				r.Breaker = "half-open"
			}
		}
		srv.mu.Unlock()
		rows = append(rows, r)
	}
	return rows
}

// Instrument registers OpenTelemetry instruments for the servers.
func (s *servers) Instrument(meters metric.MeterProvider) error {
	meter := meters.Meter("github.com/csikit/csikit/examples/nfsdriver")
	breaker, err1 := meter.Int64ObservableGauge("csikit.nfsdriver.server.breaker", metric.WithUnit("1"),
		metric.WithDescription("Circuit breaker of a server: 0 closed, 1 half-open, 2 open."))
	hanging, err2 := meter.Int64ObservableGauge("csikit.nfsdriver.server.hanging", metric.WithUnit("{call}"),
		metric.WithDescription("Calls for a server that block in the kernel, and copies, whose callers have returned."))
	_, err3 := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, r := range s.Snapshot() {
			of := metric.WithAttributes(attribute.String("server", r.Server))
			o.ObserveInt64(breaker, map[string]int64{"closed": 0, "half-open": 1, "open": 2}[r.Breaker], of)
			o.ObserveInt64(hanging, int64(r.Hanging), of)
		}
		return nil
	}, breaker, hanging)
	return errors.Join(err1, err2, err3)
}
