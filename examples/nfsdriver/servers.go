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

// servers keeps a server that is gone from taking anything else along. Work runs per
// server, on goroutines that a caller can leave; and a server that did not answer is
// left alone for a while, by a circuit breaker: calls for it fail at once, and one
// at a time tries whether it is back.
type servers struct {
	patience time.Duration // without progress for so long, a server does not answer
	dial     func(ctx context.Context, address string) error

	mu     sync.Mutex
	byName map[string]*server
}

func newServers(patience time.Duration) *servers {
	return &servers{patience: patience, dial: dialTCP, byName: map[string]*server{}}
}

func dialTCP(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// The breaker stays open for minRest after the first failure, for twice as long after
// each trial that failed, and for maxRest at the most.
const (
	minRest = 2 * time.Second
	maxRest = time.Minute
)

// server is one server's work and the state of its breaker.
type server struct {
	name  string
	group blocking.Group

	mu       sync.Mutex
	answered time.Time // when it last did
	failures int       // since then; 0: the breaker is closed
	since    time.Time // of the first of them
	rest     time.Time // until then nobody tries
	trying   bool      // somebody does
	last     error     // of the last failure
	jobs     map[string]*job
}

// Do runs fn, or joins the run of an earlier call with the same key: it has to name
// the whole work. It returns DEADLINE_EXCEEDED when ctx ends before the work does, and
// when the work made no progress for as long as a server may take to answer; the
// work goes on. fn gets no context because nobody can take back what it does.
func (s *servers) Do(ctx context.Context, e export, key string, fn func(*job) (any, error)) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	srv := s.get(e.Server)
	trial, err := srv.admit(time.Now())
	if err != nil {
		return nil, err
	}
	if err := s.reach(ctx, srv, e); err != nil {
		srv.report(trial, err)
		return nil, err
	}
	j := srv.join(key)
	defer srv.leave(j)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := j.watch(s.patience, cancel)
	v, _, err := srv.group.Do(ctx, key, func() (_ any, err error) {
		j := srv.begin(key)
		defer func() { srv.end(j, err) }()
		return fn(j)
	})
	stop()
	var pending *blocking.PendingError
	if errors.As(err, &pending) {
		if idle := j.idle(); idle >= s.patience {
			srv.report(trial, &unanswered{server: e.Server, err: fmt.Errorf("%s: no answer for %v", key, s.patience), code: codes.DeadlineExceeded})
		} else {
			srv.report(trial, errNoVerdict)
		}
		return nil, err
	}
	srv.report(trial, err)
	return v, err
}

// Watch is Do for fn that bounds itself when its context ends.
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
	if err = s.reach(ctx, srv, e); err == nil {
		bounded, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		err = fn(bounded)
	}
	if noAnswer(err) && ctx.Err() != nil && time.Since(start) < s.patience {
		srv.report(trial, errNoVerdict) // the caller had no more time
		return err
	}
	srv.report(trial, err)
	return err
}

// errNoVerdict: nothing was learnt about the server.
var errNoVerdict = errors.New("no verdict")

// unanswered says that a server does not answer. Nothing was done, or not by this call.
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

// noAnswer reports whether an error means that nobody answered.
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

// reach looks whether anybody is there before anything is asked that the kernel
// would wait for.
func (s *servers) reach(ctx context.Context, srv *server, e export) error {
	address := e.address()
	if s.dial == nil || address == "" || srv.answeredWithin(s.patience) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.patience, 10*time.Second))
	defer cancel()
	err := s.dial(ctx, address)
	if err == nil {
		return nil
	}
	u := &unanswered{server: e.Server, code: codes.Unavailable,
		err: fmt.Errorf("nothing answers at %s; if it serves NFS at another port, say so with the mount option port: %w", address, err)}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || ctx.Err() != nil {
		u.code = codes.DeadlineExceeded
	}
	return u
}

// address is where the server of an export is reached by TCP, "" if it is not.
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

// Allow is for work that goes another way than Do: it is refused while the server is
// left alone.
func (s *servers) Allow(name string) error {
	srv := s.get(name)
	trial, err := srv.admit(time.Now())
	if trial {
		srv.report(trial, errNoVerdict)
	}
	return err
}

// admit lets a call pass if the breaker is closed, or as the one that tries.
func (s *server) admit(now time.Time) (trial bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == 0 {
		return false, nil
	}
	if s.trying || now.Before(s.rest) {
		return false, &unanswered{server: s.name, code: status.Code(s.last),
			err: fmt.Errorf("has not answered since %s and is not asked before %s: %w", s.since.Format(time.TimeOnly), s.rest.Format(time.TimeOnly), s.last)}
	}
	s.trying = true
	return true, nil
}

// report closes or opens the breaker.
func (s *server) report(trial bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if trial {
		s.trying = false
	}
	var open *unanswered
	var full *blocking.LimitError
	switch {
	case errors.Is(err, errNoVerdict) || errors.As(err, &full) || errors.Is(err, context.Canceled):
	case !noAnswer(err) && errors.Is(err, context.DeadlineExceeded): // the caller's, before anything was asked
	case !noAnswer(err):
		s.answered, s.failures, s.last = time.Now(), 0, nil
	case s.failures > 0 && !trial: // several were under way; the first one counts
	default:
		if s.failures == 0 {
			s.since = time.Now()
		}
		if errors.As(err, &open) {
			err = open // what is around it names one volume
		} else {
			err = &unanswered{server: s.name, err: err, code: codes.DeadlineExceeded}
		}
		rest := min(minRest<<min(s.failures, 10), maxRest)
		s.failures, s.rest, s.last = s.failures+1, time.Now().Add(rest), err
	}
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
	Hanging  int // calls in the kernel that nobody waits for
	Error    string
}

// Snapshot lists the servers that were talked to.
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
			if srv.trying || !time.Now().Before(srv.rest) {
				r.Breaker = "half-open"
			}
		}
		srv.mu.Unlock()
		rows = append(rows, r)
	}
	return rows
}

// Instrument makes the servers tell meters about themselves.
func (s *servers) Instrument(meters metric.MeterProvider) error {
	meter := meters.Meter("github.com/csikit/csikit/examples/nfsdriver")
	breaker, err1 := meter.Int64ObservableGauge("csikit.nfsdriver.server.breaker", metric.WithUnit("1"),
		metric.WithDescription("Circuit breaker of a server: 0 closed, 1 half-open, 2 open."))
	hanging, err2 := meter.Int64ObservableGauge("csikit.nfsdriver.server.hanging", metric.WithUnit("{call}"),
		metric.WithDescription("Calls for a server that hang in the kernel, and copies, that nobody waits for."))
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
