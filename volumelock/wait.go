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
	length  atomic.Int64 // of waiters
	mu      sync.Mutex   // taken before the locks of shards
	waiters []*waiter
}

type waiter struct {
	hold   *hold
	since  time.Duration
	busy   *BusyError    // why it still waits, or is refused
	served chan struct{} // closed when the keys are held, or found parked (refused)
	got    bool          // the keys are held
}

// AcquireWait is [Table.Acquire], but waits until busy keys are
// free, up to limit or until ctx ends; then it returns the [*BusyError]. It does
// not wait for parked keys, whose release is not foreseeable.
//
// A waiting call holds none of its keys meanwhile, so that waiting calls cannot
// deadlock. Keys are granted in order of arrival: a later call whose key conflicts with
// one that an earlier call waits for waits as well, even if that key is free. So a delete
// is not starved by a stream of readers.
func (t *Table) AcquireWait(ctx context.Context, limit time.Duration, op Op, reqs ...Request) (Held, error) {
	if len(reqs) == 0 {
		return Held{}, nil
	}
	h := t.newHold(op, reqs)
	if t.queue.length.Load() == 0 && t.take(h) == nil {
		return h.handle(), nil
	}
	w := &waiter{hold: h, since: clock(), served: make(chan struct{})}
	t.queue.mu.Lock()
	t.queue.waiters = append(t.queue.waiters, w)
	// Before serve, so that a release after it sees the waiter.
	t.queue.length.Store(int64(len(t.queue.waiters)))
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
	t.serve() // updates w.busy
	if i := slices.Index(t.queue.waiters, w); i >= 0 {
		t.queue.waiters = slices.Delete(t.queue.waiters, i, i+1)
		t.serve() // for calls that waited only for w
	}
}

// serveQueue runs after each release and each park.
func (t *Table) serveQueue() {
	if t.queue.length.Load() == 0 {
		return
	}
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.serve()
}

// serve grants keys to all waiters that can have them. queue.mu is held.
func (t *Table) serve() {
	wanted := make(map[Key]*waiter) // by earlier waiters, in the stronger mode
	t.queue.waiters = slices.DeleteFunc(t.queue.waiters, func(w *waiter) bool {
		if w.busy = w.behind(wanted); w.busy == nil {
			w.busy = t.take(w.hold)
			w.got = w.busy == nil
			if w.got || w.busy.Parked {
				close(w.served)
				return true
			}
		}
		for _, s := range w.hold.slots {
			if before := wanted[s.Key]; before == nil || s.Mode == Exclusive && before.mode(s.Key) == Shared {
				wanted[s.Key] = w
			}
		}
		return false
	})
	t.queue.length.Store(int64(len(t.queue.waiters)))
	if len(t.queue.waiters) == 0 {
		t.queue.waiters = nil
	}
}

// behind returns a BusyError for an earlier waiter that has to be served first, if any.
func (w *waiter) behind(wanted map[Key]*waiter) *BusyError {
	for _, s := range w.hold.slots {
		before := wanted[s.Key]
		if before == nil || s.Mode == Shared && before.mode(s.Key) == Shared {
			continue
		}
		return &BusyError{
			RPC: w.hold.op.RPC, Key: s.Key, Holder: before.hold.op, Age: clock() - before.since, HolderWaiting: true,
		}
	}
	return nil
}

func (w *waiter) mode(k Key) Mode {
	i, _ := slices.BinarySearchFunc(w.hold.slots, k, func(s slot, k Key) int { return s.Key.compare(k) })
	return w.hold.slots[i].Mode
}
