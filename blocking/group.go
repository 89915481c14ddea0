package blocking

import (
	"cmp"
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// DefaultLimit is the number of parked calls that a Group with Limit 0 allows.
// A call blocked in the kernel occupies a thread, and the Go runtime ends the process at
// 10 000 threads; 128 is far below that, and far above what one failed server causes, since
// retries join.
const DefaultLimit = 128

// Group runs calls, at most one per key at a time. The zero value is ready to
// use. A Group must not be copied after first use.
type Group struct {
	// Limit bounds the parked calls: those in flight whose callers have all returned.
	// Calls with a waiting caller do not count. 0 or less means DefaultLimit. It must not
	// be changed after the first Do.
	Limit int

	mu    sync.Mutex
	calls map[string]*call
	own   Lane // of the calls of Group.Do
}

// Lane is a part of a Group whose parked calls are counted apart: those of one lane do not
// cause calls of another one to be refused. All lanes share the keys and the list of calls.
type Lane struct {
	group  *Group
	limit  int
	parked int // calls without waiters, guarded by Group.mu
}

// NoLimit is the limit of a lane whose calls are never refused.
const NoLimit = -1

// Lane returns a new lane with that limit of parked calls: 0 means DefaultLimit, and a negative
// one, such as [NoLimit], none.
func (g *Group) Lane(limit int) *Lane { return &Lane{group: g, limit: limit} }

// call is one run of fn. The fields are guarded by Group.mu; value and err may
// also be read once done is closed.
type call struct {
	lane    *Lane // that started it
	since   time.Time
	waiters int
	over    bool
	done    chan struct{}
	value   any
	err     error
}

// Call describes a call in flight.
type Call struct {
	Key     string
	Since   time.Time // when fn was started
	Waiters int       // callers inside Do; 0: the call is parked
}

// Do runs fn on a separate goroutine and returns its result. If a call with the same key is
// in flight, Do joins it: fn is not run, joined is true, and all callers get the same v and
// err. The key therefore has to identify the whole operation: two mounts with different
// options need different keys. Callers must not modify v.
//
// If ctx ends before the call does, Do immediately returns a [*PendingError] and the call
// stays in flight: fn is not interrupted, and its result goes to callers that join before it
// ends, or is dropped. So fn must be safe to repeat, and must not use anything that its
// caller releases on return: a lock, an open descriptor, the context.
//
// If ctx has ended before Do is called, fn is not run and ctx.Err() is returned: nothing is
// pending. If the number of parked calls has reached Limit, a call that cannot join is
// refused with a [*LimitError].
//
// A panic in fn does not end the process, which serves other volumes as well; it is
// returned to all callers as a [*PanicError], and so is runtime.Goexit. A recovery handler
// around Do would not see it, since fn runs on another goroutine. Like any result, a panic is
// dropped if no caller waits.
func (g *Group) Do(ctx context.Context, key string, fn func() (any, error)) (v any, joined bool, err error) {
	return g.do(ctx, &g.own, key, fn)
}

// Do is [Group.Do] in this lane. A call that joins another one does not count: the lane that
// started it does.
func (l *Lane) Do(ctx context.Context, key string, fn func() (any, error)) (v any, joined bool, err error) {
	return l.group.do(ctx, l, key, fn)
}

func (g *Group) do(ctx context.Context, lane *Lane, key string, fn func() (any, error)) (v any, joined bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	c, joined, err := g.enter(lane, key, fn)
	if err != nil {
		return nil, false, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if g.leave(c) {
			return nil, joined, &PendingError{Key: key, Since: c.since, Err: ctx.Err(), done: c.done}
		}
	}
	return c.value, joined, c.err
}

// Snapshot lists the calls in flight, oldest first.
func (g *Group) Snapshot() []Call {
	g.mu.Lock()
	list := make([]Call, 0, len(g.calls))
	for key, c := range g.calls {
		list = append(list, Call{Key: key, Since: c.since, Waiters: c.waiters})
	}
	g.mu.Unlock()
	slices.SortFunc(list, func(a, b Call) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key))
	})
	return list
}

// enter joins the call with that key or starts it, and adds the caller.
func (g *Group) enter(lane *Lane, key string, fn func() (any, error)) (c *call, joined bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, joined = g.calls[key]; joined {
		if c.waiters == 0 {
			c.lane.parked--
		}
		c.waiters++
		return c, true, nil
	}
	limit := lane.limit
	if lane == &g.own {
		limit = max(g.Limit, 0)
	}
	if limit == 0 {
		limit = DefaultLimit
	}
	if limit > 0 && lane.parked >= limit {
		return nil, false, &LimitError{Key: key, Limit: limit}
	}
	c = &call{lane: lane, since: time.Now(), waiters: 1, done: make(chan struct{})}
	if g.calls == nil {
		g.calls = make(map[string]*call)
	}
	g.calls[key] = c
	go g.run(key, c, fn)
	return c, false, nil
}

// leave removes the caller. It returns false if the call has ended in the meantime: a known
// result must not be reported as pending.
func (g *Group) leave(c *call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.over {
		return false
	}
	c.waiters--
	if c.waiters == 0 {
		c.lane.parked++
	}
	return true
}

func (g *Group) run(key string, c *call, fn func() (any, error)) {
	// Not set if fn panics or calls runtime.Goexit; only a deferred function runs then, and
	// has to end the call too.
	var value any
	var err error
	returned := false
	defer func() {
		if !returned {
			// recover returns nil only for Goexit: since Go 1.21 panic(nil)
			// is a *runtime.PanicNilError.
			reason := recover()
			if reason == nil {
				reason = errGoexit
			}
			value, err = nil, &PanicError{Key: key, Value: reason, Stack: debug.Stack()}
		}
		g.finish(key, c, value, err)
	}()
	value, err = fn()
	returned = true
}

func (g *Group) finish(key string, c *call, value any, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.value, c.err, c.over = value, err, true
	if c.waiters == 0 {
		c.lane.parked--
	}
	delete(g.calls, key)
	if len(g.calls) == 0 {
		g.calls = nil // a map keeps the buckets of its largest burst
	}
	close(c.done)
}
