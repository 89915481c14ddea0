package volumelock

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Op describes who takes keys, for those who find them taken.
type Op struct {
	RPC       string // "NodeStageVolume"; parked keys are passed by this name, see [Held.Park]
	RequestID string // may be empty
}

// Table is a table of locks. The zero value is ready to use. A Table must not be
// copied after first use.
type Table struct {
	mu      sync.Mutex
	keys    map[Key]queue
	peak    int           // the largest len(keys) since the map was made
	changed chan struct{} // closed when keys are released or parked; nil: nobody waits
}

// queue lists the slots on one key, oldest first.
type queue struct {
	first, last *slot
	exclusive   int // how many of them are Exclusive; more than one if some are parked
}

// slot is one key of one hold.
type slot struct {
	Request
	hold       *Held
	prev, next *slot
}

// Held is a set of keys that one Acquire has taken.
type Held struct {
	table *Table
	op    Op

	// Guarded by table.mu.
	since   time.Time
	state   state
	pending <-chan struct{} // not nil: parked
	slots   []slot          // sorted by key, each key once

	inline [2]slot // nearly every call takes one key or two: saves an allocation
}

type state uint8

const (
	idle state = iota // not yet taken, or released
	held
	parked
)

// Entry describes one key that is held.
type Entry struct {
	Key    Key
	Mode   Mode
	Op     Op
	Since  time.Time
	Parked bool // the call has returned, its work has not ended
}

// Acquire takes all the keys or none, and never waits. When one cannot be taken
// it returns a [*BusyError]. A key may be given more than once; Exclusive wins.
// The keys are held until [Held.Release].
func (t *Table) Acquire(op Op, reqs ...Request) (*Held, error) {
	h := t.newHeld(op, reqs)
	t.mu.Lock()
	defer t.mu.Unlock()
	if busy := t.take(h); busy != nil {
		return nil, busy
	}
	return h, nil
}

// Release frees the keys. Further calls do nothing, nor does Release after Park:
// it can always be deferred.
func (h *Held) Release() {
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	if h.state == held {
		h.table.drop(h)
	}
}

// Park keeps the keys held until pending is closed, for work that goes on after
// its call has returned. A nil channel means that nothing is pending: Park then
// releases. After Release, or when parked already, Park does nothing.
//
// Parked keys are passed by an Acquire with the same Op.RPC, keys and modes, as a
// retry has, and by one whose Op.RPC is NodeUnpublishVolume or NodeUnstageVolume.
// They exclude all others, and those who pass them exclude each other.
func (h *Held) Park(pending <-chan struct{}) {
	t := h.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.state != held {
		return
	}
	if over(pending) || t.hasTwin(h, pending) {
		t.drop(h)
		return
	}
	h.state, h.pending = parked, pending
	t.notify()
	go func() {
		<-pending
		t.mu.Lock()
		defer t.mu.Unlock()
		t.drop(h)
	}()
}

// Snapshot lists the keys that are held, the oldest first.
func (t *Table) Snapshot() []Entry {
	t.mu.Lock()
	list := make([]Entry, 0, len(t.keys))
	for _, q := range t.keys {
		for s := q.first; s != nil; s = s.next {
			list = append(list, Entry{s.Key, s.Mode, s.hold.op, s.hold.since, s.hold.state == parked})
		}
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(a.Since.Compare(b.Since), a.Key.compare(b.Key), cmp.Compare(a.Op.RequestID, b.Op.RequestID))
	})
	return list
}

// acquireWait is Acquire, but waits up to limit for keys that are busy. It does
// not wait for parked keys: their end is not in sight.
func (t *Table) acquireWait(ctx context.Context, limit time.Duration, op Op, reqs []Request) (*Held, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	h := t.newHeld(op, reqs)
	for {
		t.mu.Lock()
		busy := t.take(h)
		if busy == nil {
			t.mu.Unlock()
			return h, nil
		}
		if busy.Parked {
			t.mu.Unlock()
			return nil, busy
		}
		// Under the same lock as take, so that no release is missed between.
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			// Nothing has been done, whichever context ended: busy is the
			// whole truth, and ABORTED says so where DEADLINE_EXCEEDED would
			// leave the outcome open.
			return nil, busy
		}
	}
}

func (t *Table) newHeld(op Op, reqs []Request) *Held {
	h := &Held{table: t, op: op}
	h.slots = h.inline[:0]
	if len(reqs) > len(h.inline) {
		h.slots = make([]slot, 0, len(reqs))
	}
	for _, r := range reqs {
		h.slots = append(h.slots, slot{Request: r, hold: h})
	}
	if len(reqs) > 1 {
		// Exclusive sorts before Shared and is the one that stays.
		slices.SortFunc(h.slots, func(a, b slot) int {
			return cmp.Or(a.Key.compare(b.Key), cmp.Compare(a.Mode, b.Mode))
		})
		h.slots = slices.CompactFunc(h.slots, func(a, b slot) bool { return a.Key == b.Key })
	}
	return h
}

// take takes all keys of h, or none and says who is in the way. t.mu is held.
func (t *Table) take(h *Held) *BusyError {
	if t.keys == nil {
		t.keys = make(map[Key]queue)
	}
	for i := range h.slots {
		s := &h.slots[i]
		q := t.keys[s.Key]
		if holder := q.blocker(s); holder != nil {
			t.remove(h.slots[:i])
			return &BusyError{
				RPC: h.op.RPC, Key: s.Key,
				Holder: holder.op, Age: time.Since(holder.since), Parked: holder.state == parked,
			}
		}
		q.push(s)
		t.keys[s.Key] = q
		t.peak = max(t.peak, len(t.keys))
	}
	h.state, h.since = held, time.Now()
	return nil
}

// remove takes the slots off their keys. t.mu is held.
func (t *Table) remove(slots []slot) {
	for i := range slots {
		s := &slots[i]
		if s.prev == nil && s.next == nil {
			delete(t.keys, s.Key)
			continue
		}
		q := t.keys[s.Key]
		q.remove(s)
		t.keys[s.Key] = q
	}
	// A map never shrinks: it would keep the buckets of its largest burst. One
	// of up to 8 entries is a single group and is worth keeping.
	if len(t.keys) == 0 && t.peak > 8 {
		t.keys, t.peak = nil, 0
	}
}

// blocker returns the oldest hold that keeps s from being taken, or nil.
func (q *queue) blocker(s *slot) *Held {
	if s.Mode == Shared && q.exclusive == 0 {
		return nil // without a walk past all pods of an RWX volume
	}
	for other := q.first; other != nil; other = other.next {
		if s.Mode == Shared && other.Mode == Shared || s.hold.passes(other.hold) {
			continue
		}
		return other.hold
	}
	return nil
}

// passes reports whether h may take keys that other, being parked, holds.
func (h *Held) passes(other *Held) bool {
	return other.state == parked && (isTeardown(h.op.RPC) || h.repeats(other))
}

// repeats reports whether h is for the same RPC and the same keys.
func (h *Held) repeats(other *Held) bool {
	return h.op.RPC == other.op.RPC &&
		slices.EqualFunc(h.slots, other.slots, func(a, b slot) bool { return a.Request == b.Request })
}

// hasTwin reports whether a repeat of h is parked for the same work. Without it
// each retry would park once more, every two minutes for as long as a server is
// away.
func (t *Table) hasTwin(h *Held, pending <-chan struct{}) bool {
	if len(h.slots) == 0 {
		return true // no key, nothing to hold
	}
	for s := t.keys[h.slots[0].Key].first; s != nil; s = s.next {
		if s.hold.pending == pending && h.repeats(s.hold) {
			return true
		}
	}
	return false
}

// drop ends a hold. t.mu is held.
func (t *Table) drop(h *Held) {
	t.remove(h.slots)
	h.state = idle
	t.notify()
}

// notify wakes those who wait. t.mu is held.
func (t *Table) notify() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

func (q *queue) push(s *slot) {
	s.prev, s.next = q.last, nil
	if q.last == nil {
		q.first = s
	} else {
		q.last.next = s
	}
	q.last = s
	if s.Mode == Exclusive {
		q.exclusive++
	}
}

func (q *queue) remove(s *slot) {
	if s.prev == nil {
		q.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		q.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	if s.Mode == Exclusive {
		q.exclusive--
	}
}

// over reports whether no work is left behind pending.
func over(pending <-chan struct{}) bool {
	if pending == nil {
		return true
	}
	select {
	case <-pending:
		return true
	default:
		return false
	}
}
