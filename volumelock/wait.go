package volumelock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// line is who waits, in order of arrival.
type line struct {
	length  atomic.Int64 // of waiters
	mu      sync.Mutex   // taken before the locks of shards
	waiters []*waiter
}

type waiter struct {
	hold   *hold
	since  time.Duration
	busy   *BusyError    // why it still waits, or will not get the keys
	served chan struct{} // closed when the keys are held, or parked by others (refused)
	got    bool
}

// AcquireWait is [Table.Acquire], but waits for keys that are busy until they are
// free, up to limit or until ctx ends; then it returns the [*BusyError]. It does
// not wait for parked keys: their end is not in sight.
//
// Nobody who waits holds any of its keys meanwhile, so that waiting calls cannot
// block each other for good. Keys are given in order of arrival: who comes later
// and wants, in a mode that excludes, a key that somebody waits for, waits as
// well, also when that key is free. So a delete is not kept out for ever by
// readers that come and go.
func (t *Table) AcquireWait(ctx context.Context, limit time.Duration, op Op, reqs ...Request) (Held, error) {
	if len(reqs) == 0 {
		return Held{}, nil
	}
	h := t.newHold(op, reqs)
	if t.line.length.Load() == 0 && t.take(h) == nil {
		return h.handle(), nil
	}
	w := &waiter{hold: h, since: clock(), served: make(chan struct{})}
	t.line.mu.Lock()
	t.line.waiters = append(t.line.waiters, w)
	// Before the next try, so that who releases after that try sees the waiter.
	t.line.length.Store(int64(len(t.line.waiters)))
	t.serve()
	t.line.mu.Unlock()

	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-w.served:
	case <-timeout.C:
		t.leave(w)
	case <-ctx.Done():
		// Nothing has been done, whichever ended: ABORTED is the whole truth,
		// where DEADLINE_EXCEEDED would leave the outcome open.
		t.leave(w)
	}
	if w.got {
		return h.handle(), nil
	}
	h.recycle()
	t.refused(w.busy)
	return Held{}, w.busy
}

// leave takes w out of the line, unless it is served at the last moment.
func (t *Table) leave(w *waiter) {
	t.line.mu.Lock()
	defer t.line.mu.Unlock()
	t.serve() // so that w.busy is not what it was when w came
	if i := slices.Index(t.line.waiters, w); i >= 0 {
		t.line.waiters = slices.Delete(t.line.waiters, i, i+1)
		t.serve() // some may have waited behind w alone
	}
}

// serveLine follows each release and each park.
func (t *Table) serveLine() {
	if t.line.length.Load() == 0 {
		return
	}
	t.line.mu.Lock()
	defer t.line.mu.Unlock()
	t.serve()
}

// serve gives keys to those who can have them. line.mu is held.
func (t *Table) serve() {
	wanted := make(map[Key]*waiter) // by those before, in the stronger mode
	t.line.waiters = slices.DeleteFunc(t.line.waiters, func(w *waiter) bool {
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
	t.line.length.Store(int64(len(t.line.waiters)))
	if len(t.line.waiters) == 0 {
		t.line.waiters = nil
	}
}

// behind says who of those before has to be served first, if any.
func (w *waiter) behind(wanted map[Key]*waiter) *BusyError {
	for _, s := range w.hold.slots {
		before := wanted[s.Key]
		if before == nil || s.Mode == Shared && before.mode(s.Key) == Shared {
			continue
		}
		return &BusyError{
			RPC: w.hold.op.RPC, Key: s.Key, Holder: before.hold.op, Age: clock() - before.since, Waiting: true,
		}
	}
	return nil
}

func (w *waiter) mode(k Key) Mode {
	i, _ := slices.BinarySearchFunc(w.hold.slots, k, func(s slot, k Key) int { return s.Key.compare(k) })
	return w.hold.slots[i].Mode
}
