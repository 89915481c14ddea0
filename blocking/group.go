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
	key     string
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
	return g.do(ctx, &g.own, key, withKey(fn))
}

// Do is [Group.Do] in this lane. A call that joins another one does not count: the lane that
// started it does.
func (l *Lane) Do(ctx context.Context, key string, fn func() (any, error)) (v any, joined bool, err error) {
	return l.group.do(ctx, l, key, withKey(fn))
}

// DoRekeyed is Do for a call whose key is known only after work that may block as well, such as
// the resolution of a path: it starts with the given key, and fn changes that. rekey returns
// false, and changes nothing, if another call with the new key is in flight: fn then returns,
// and its caller waits for that call ([Group.Wait]) and starts again.
func (l *Lane) DoRekeyed(ctx context.Context, key string, fn func(rekey func(key string) bool) (any, error)) (v any, joined bool, err error) {
	return l.group.do(ctx, l, key, fn)
}

func withKey(fn func() (any, error)) func(func(string) bool) (any, error) {
	return func(func(string) bool) (any, error) { return fn() }
}

// Wait waits for the call in flight with that key, if there is one, and not for its result. If
// ctx ends first, it returns a [*PendingError].
func (g *Group) Wait(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	c := g.join(key)
	g.mu.Unlock()
	if c == nil {
		return nil
	}
	return g.await(ctx, c)
}

func (g *Group) do(ctx context.Context, lane *Lane, key string, fn func(func(string) bool) (any, error)) (v any, joined bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	c, joined, err := g.enter(lane, key, fn)
	if err != nil {
		return nil, false, err
	}
	if err := g.await(ctx, c); err != nil {
		return nil, joined, err
	}
	return c.value, joined, c.err
}

// await returns nil when the call is over.
func (g *Group) await(ctx context.Context, c *call) error {
	select {
	case <-c.done:
	case <-ctx.Done():
		if key, left := g.leave(c); left {
			return &PendingError{Key: key, Since: c.since, Err: ctx.Err(), done: c.done}
		}
	}
	return nil
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
func (g *Group) enter(lane *Lane, key string, fn func(func(string) bool) (any, error)) (c *call, joined bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.join(key); c != nil {
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
	c = &call{key: key, lane: lane, since: time.Now(), waiters: 1, done: make(chan struct{})}
	if g.calls == nil {
		g.calls = make(map[string]*call)
	}
	g.calls[key] = c
	go g.run(c, fn)
	return c, false, nil
}

// join adds the caller to the call with that key; nil if there is none. g.mu is held.
func (g *Group) join(key string) *call {
	c := g.calls[key]
	if c == nil {
		return nil
	}
	if c.waiters == 0 {
		c.lane.parked--
	}
	c.waiters++
	return c
}

// leave removes the caller, and returns the call's key. It returns false if the call has ended
// in the meantime: a known result must not be reported as pending.
func (g *Group) leave(c *call) (key string, left bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.over {
		return "", false
	}
	c.waiters--
	if c.waiters == 0 {
		c.lane.parked++
	}
	return c.key, true
}

// rekey changes the key of a call in flight.
func (g *Group) rekey(c *call, key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.over || g.calls[key] != nil {
		return false
	}
	delete(g.calls, c.key)
	c.key = key
	g.calls[key] = c
	return true
}

func (g *Group) run(c *call, fn func(func(string) bool) (any, error)) {
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
			value, err = nil, &PanicError{Key: g.keyOf(c), Value: reason, Stack: debug.Stack()}
		}
		g.finish(c, value, err)
	}()
	value, err = fn(func(key string) bool { return g.rekey(c, key) })
	returned = true
}

func (g *Group) keyOf(c *call) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.key
}

func (g *Group) finish(c *call, value any, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.value, c.err, c.over = value, err, true
	if c.waiters == 0 {
		c.lane.parked--
	}
	delete(g.calls, c.key)
	if len(g.calls) == 0 {
		g.calls = nil // a map keeps the buckets of its largest burst
	}
	close(c.done)
}
