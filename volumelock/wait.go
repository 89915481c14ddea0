package volumelock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queue holds the calls that wait, in order of arrival.
type queue struct {
	length  atomic.Int64  // of waiters
	shards  atomic.Uint64 // a shardSet: of all waiters
	mu      sync.Mutex    // taken before the locks of shards
	waiters []*waiter
	claims  map[Key]claim // of serve
}

type waiter struct {
	hold   *hold
	since  time.Duration
	served chan struct{} // closed when the keys are held, or found parked (refused)
	got    bool          // the keys are held
	busy   *BusyError    // why it is refused

	before *waiter // that is to be served first; nil: a key is held
	on     Key     // for which it waits
}

// A claim withholds a key from later waiters.
type claim struct {
	by   *waiter
	mode Mode
}

// AcquireWait is [Table.Acquire], but waits until busy keys are
// free, up to limit or until ctx ends; then it returns the [*BusyError]. It does
// not wait for parked keys, whose release is not foreseeable.
//
// A waiting call holds none of its keys meanwhile, so that waiting calls cannot
// deadlock. Keys are granted in order of arrival: a later call that needs the key for which
// an earlier call waits, the first one that it cannot have, waits as well. So a delete is
// not starved by a stream of readers. The other keys of a call that waits stay free for all.
func (t *Table) AcquireWait(ctx context.Context, limit time.Duration, op Op, reqs ...Request) (Held, error) {
	if len(reqs) == 0 {
		return Held{}, nil
	}
	h := t.newHold(op, reqs)
	if t.queue.shards.Load()&uint64(h.shards) == 0 && t.take(h) == nil {
		t.serveQueue(h.shards)
		return h.handle(), nil
	}
	w := &waiter{hold: h, since: clock(), served: make(chan struct{})}
	t.queue.mu.Lock()
	t.queue.waiters = append(t.queue.waiters, w)
	// Before serve, so that a release after it sees the waiter.
	t.queue.shards.Or(uint64(h.shards))
	t.serve()
	t.queue.mu.Unlock()

	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-w.served:
	case <-timeout.C:
		t.leave(w)
	case <-ctx.Done():
		// Nothing has been done: ABORTED says so, where DEADLINE_EXCEEDED would leave the
		// outcome unknown.
		t.leave(w)
	}
	if w.got {
		return h.handle(), nil
	}
	h.recycle()
	t.refused(w.busy)
	return Held{}, w.busy
}

// leave removes w from the queue, unless it has been served meanwhile.
func (t *Table) leave(w *waiter) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	i := slices.Index(t.queue.waiters, w)
	if i < 0 {
		return
	}
	if w.before == nil {
		w.busy = t.take(w.hold)
		w.got = w.busy == nil
	} else {
		w.busy = &BusyError{
			RPC: w.hold.op.RPC, Key: w.on, Holder: w.before.hold.op, Age: clock() - w.before.since, HolderWaiting: true,
		}
	}
	t.queue.waiters = slices.Delete(t.queue.waiters, i, i+1)
	t.serve() // for calls that waited only for w
}

// serveQueue runs after each release and each park of keys in these shards, and after they
// were taken, because a call that waits may wait for another of its keys then, and no longer
// withhold the one before. Calls that wait for others are not concerned: a key that many wait
// for does not slow down the rest.
func (t *Table) serveQueue(shards shardSet) {
	if t.queue.shards.Load()&uint64(shards) == 0 {
		return
	}
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.serve()
}

// serve grants keys to all waiters that can have them. queue.mu is held.
func (t *Table) serve() {
	for t.servePass() { // what was granted may change for which key an earlier one waits
	}
}

// servePass is one pass over the waiters, in order of arrival. It returns true if any was
// granted its keys.
func (t *Table) servePass() (granted bool) {
	q := &t.queue
	if q.claims == nil {
		q.claims = map[Key]claim{}
	}
	clear(q.claims)
	var shards shardSet
	q.waiters = slices.DeleteFunc(q.waiters, func(w *waiter) bool {
		w.claimed(q.claims)
		switch {
		case w.before == nil:
			w.busy = t.take(w.hold)
			w.got = w.busy == nil
		case len(w.hold.slots) > 1: // another key may be parked
			w.busy = t.parked(w.hold)
		}
		if w.got || w.busy != nil && w.busy.Parked {
			granted = granted || w.got
			close(w.served)
			return true
		}
		if w.before == nil {
			w.on = w.busy.Key
		}
		mode := w.mode(w.on)
		if c := q.claims[w.on]; c.by == nil || mode == Exclusive && c.mode == Shared {
			q.claims[w.on] = claim{w, mode}
		}
		shards |= w.hold.shards
		return false
	})
	q.length.Store(int64(len(q.waiters)))
	q.shards.Store(uint64(shards))
	if len(q.waiters) == 0 {
		q.waiters, q.claims = nil, nil
		return false
	}
	return granted
}

// claimed sets before and on if an earlier waiter has to be served first.
func (w *waiter) claimed(claims map[Key]claim) {
	w.before = nil
	for i := range w.hold.slots {
		s := &w.hold.slots[i]
		if c := claims[s.Key]; c.by != nil && (s.Mode == Exclusive || c.mode == Exclusive) {
			w.before, w.on = c.by, s.Key
			return
		}
	}
}

func (w *waiter) mode(k Key) Mode {
	for i := range w.hold.slots {
		if s := &w.hold.slots[i]; s.Key == k {
			return s.Mode
		}
	}
	return Exclusive
}
