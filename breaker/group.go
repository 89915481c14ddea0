package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/csikit/csikit/blocking"
)

// DefaultTimeout is the Timeout of a Group that sets none. It leaves time for an answer to
// kubelet, which waits for 2 minutes.
const DefaultTimeout = 30 * time.Second

const (
	maxProbe    = 10 * time.Second
	forgetAfter = time.Hour
)

// Group isolates servers from each other. The zero value is ready to use. The exported
// fields must not be changed, and a Group must not be copied, after first use.
type Group struct {
	// Timeout is how long a server may take for a response: a call of Do without
	// progress, and a call of Watch, for so long opens the breaker. 0 or less means
	// DefaultTimeout.
	Timeout time.Duration
	// NoResponse reports whether an error means that the server did not respond, which
	// opens the breaker; any other error closes it. nil means the function [NoResponse].
	NoResponse func(error) bool

	mu      sync.Mutex
	servers map[string]*server
}

// Server identifies a server.
type Server struct {
	// Name identifies the breaker: host or address, and port if the ports fail
	// independently of each other.
	Name string
	// Probe checks whether the server can be reached, such as [DialTCP]; nil does not
	// check. It is called before a call if the server has not responded for the Group's
	// Timeout, because a call that blocks in the kernel is worse than a connection that
	// times out. It must return when its context ends, after at most 10 seconds. Any error
	// opens the breaker.
	Probe func(context.Context) error
}

// Do runs fn on a separate goroutine and returns its result. If a call for this server with
// the same key is in flight, Do joins it, as [blocking.Group.Do] does: joined is true, fn is
// not run, and the key must identify the whole operation.
//
// fn gets no context because it cannot be aborted, and must be safe to repeat. It may call
// [Job.Progress] for as long as it runs.
//
// Do returns when fn does, when ctx ends, and when the call has made no progress for the
// Group's Timeout. In the latter two cases fn continues, and the error has a method Pending()
// <-chan struct{}. A deadline of the caller that ends earlier says nothing about the server.
// fn is not run, and nothing is changed, if the breaker is open, if the probe fails (both
// are an [*Error] that is not pending), if ctx has ended, or if too many calls for this server
// hang ([*blocking.LimitError]). A panic in fn is returned as a [*blocking.PanicError].
func (g *Group) Do(ctx context.Context, target Server, key string, fn func(*Job) (any, error)) (v any, joined bool, err error) {
	c, err := g.begin(ctx, target)
	if err != nil {
		return nil, false, err
	}
	defer c.end()
	j := c.server.join(key)
	defer c.server.leave(j)
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	defer j.watch(g.timeout(), cancel)()
	v, joined, err = c.server.calls.Do(bounded, key, func() (v any, err error) {
		j, result := c.server.run(key), inconclusive
		defer func() { c.server.finish(j, result, err) }()
		v, err = fn(j)
		result = g.outcome(err)
		return v, err
	})
	var pending *blocking.PendingError
	switch {
	case errors.As(err, &pending) && j.idle() >= g.timeout():
		c.result, c.err = failed, fmt.Errorf("%s: no progress for %v", key, g.timeout())
		err = &Error{Server: target.Name, Err: fmt.Errorf("no progress for %v: %w", g.timeout(), err)}
	case err != nil && ctx.Err() != nil: // the caller's deadline ended first, perhaps before fn was run
	default:
		c.result, c.err = g.outcome(err), err
	}
	return v, joined, err
}

// Watch runs fn, whose context ends after the Group's Timeout at the latest. An error that
// NoResponse classifies as such opens the breaker; one after ctx has ended, before the timeout,
// says nothing about the server.
//
// fn is not run, and nothing is changed, if the breaker is open, if the probe fails (both are
// an [*Error]), or if ctx has ended. Otherwise the error is that of fn.
func (g *Group) Watch(ctx context.Context, target Server, fn func(context.Context) error) error {
	c, err := g.begin(ctx, target)
	if err != nil {
		return err
	}
	defer c.end()
	bounded, cancel := context.WithTimeoutCause(ctx, g.timeout(), errTimeout)
	defer cancel()
	err = fn(bounded)
	if err == nil || ctx.Err() == nil || errors.Is(context.Cause(bounded), errTimeout) {
		c.result, c.err = g.outcome(err), err
	}
	return err
}

// Allow returns an [*Error] while the breaker of a server is open, and nil if a call for it
// would be let through. It is for work that does not use the server through Do or Watch, such
// as statistics of a mount, and starts no trial.
func (g *Group) Allow(name string) error {
	s := g.server(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal(time.Now())
}

// errTimeout is the cause of a context that ended because of the Group's timeout.
var errTimeout = errors.New("no response from the server")

// call is a call that was let through. Its result is inconclusive until it is set, so that
// a panic ends a trial.
type call struct {
	server *server
	result outcome
	err    error
}

func (c *call) end() { c.server.report(c, c.result, c.err) }

// begin lets a call through: the caller calls end.
func (g *Group) begin(ctx context.Context, target Server) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &call{server: g.server(target.Name), result: inconclusive}
	if err := c.server.admit(c, time.Now()); err != nil {
		return nil, err
	}
	if err := g.probe(ctx, target, c); err != nil {
		return nil, err
	}
	return c, nil
}

// probe ends c if the server cannot be reached.
func (g *Group) probe(ctx context.Context, target Server, c *call) error {
	if target.Probe == nil || c.server.respondedWithin(g.timeout()) {
		return nil
	}
	reached := false
	defer func() {
		if !reached {
			c.end()
		}
	}()
	bounded, cancel := context.WithTimeoutCause(ctx, min(g.timeout(), maxProbe), errTimeout)
	defer cancel()
	err := target.Probe(bounded)
	switch {
	case err == nil:
		reached = true
		return nil
	case ctx.Err() != nil && !errors.Is(context.Cause(bounded), errTimeout):
		return ctx.Err()
	}
	c.result, c.err = failed, err
	return &Error{Server: target.Name, Err: err}
}

func (g *Group) timeout() time.Duration {
	if g.Timeout > 0 {
		return g.Timeout
	}
	return DefaultTimeout
}

// server returns the state of a server, and forgets those that were not used for long.
func (g *Group) server(name string) *server {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	s := g.servers[name]
	if s == nil {
		g.forget(now)
		if g.servers == nil {
			g.servers = map[string]*server{}
		}
		s = &server{name: name, jobs: map[string]*Job{}}
		g.servers[name] = s
	}
	s.used = now
	return s
}

// forget is called with mu held. A call that has not joined its job yet was let through less
// than the timeouts ago.
func (g *Group) forget(now time.Time) {
	for name, s := range g.servers {
		if now.Sub(s.used) > max(forgetAfter, 2*g.timeout()) && s.isIdle() {
			delete(g.servers, name)
		}
	}
}

// all lists the servers by name.
func (g *Group) all() []*server {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(time.Now())
	all := make([]*server, 0, len(g.servers))
	for _, s := range g.servers {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *server) int { return cmp.Compare(a.name, b.name) })
	return all
}
