package volumelock

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Op is the identity of a call that takes keys: its RPC and its request id. A [BusyError]
// names the Op that holds the key. A retry of a parked call is recognized by its RPC, keys
// and modes (see [Held.Park]).
type Op struct {
	RPC       string // such as "NodeStageVolume"
	RequestID string // may be empty
}

// Table is a table of locks. The zero value is ready to use. A Table must not be
// copied after first use.
type Table struct {
	shards  [shardCount]shard
	queue   queue
	metrics atomic.Pointer[instruments]
}

// Held is a set of keys that one Acquire has taken, until [Held.Release] or
// [Held.Park]. It may be copied, and its copies are the same set. The zero Held
// is a set without keys.
type Held struct {
	hold       *hold
	generation uint64 // equal to hold.generation while this Held is valid

	// Copies from hold, which may have been reused when they are needed.
	table  *Table
	shards shardSet
}

// hold is the state behind a Held. It is pooled, so that Acquire does not allocate.
// Other calls reach it through its slots. A writer has locked all of its
// shards, or the hold is in none; a reader has locked one.
type hold struct {
	table      *Table
	generation atomic.Uint64 // incremented when a Held becomes invalid
	op         Op
	since      time.Duration // of clock
	slots      []slot        // sorted by key, each key once
	shards     shardSet      // of all slots

	pending []<-chan struct{} // not empty: parked

	inline [4]slot // enough for every RPC but those for groups
}

var holds = sync.Pool{New: func() any { return new(hold) }}

// Entry describes one key that is held.
type Entry struct {
	Key            Key
	Mode           Mode
	Op             Op        // the call that holds the key
	Since          time.Time // when Op took it
	ContendedSince time.Time // when a call was first refused because of it, or began to wait for it; zero if none was
	Parked         bool      // the call has returned, and its work is still in flight
}

// Acquire takes all the keys or none, and never waits. When one cannot be taken
// it returns a [*BusyError]. A key may be given more than once; Exclusive wins.
// The keys are held until [Held.Release].
//
// Acquire does not queue behind calls that wait (see [Table.AcquireWait]): it takes
// what is free now.
func (t *Table) Acquire(op Op, reqs ...Request) (Held, error) {
	if len(reqs) == 0 {
		return Held{}, nil
	}
	h := t.newHold(op, reqs)
	if busy := t.take(h); busy != nil {
		h.recycle()
		t.refused(busy)
		return Held{}, busy
	}
	t.serveQueue(h.shards)
	return h.handle(), nil
}

// Release frees the keys. It is idempotent, on any copy, and a no-op after Park, so that
// it can always be deferred.
func (h Held) Release() {
	if h.lock() {
		h.hold.end()
	}
}

// lock locks the shards and invalidates h and its copies. It returns
// false, without holding a lock, if h is invalid already.
func (h Held) lock() bool {
	if h.hold == nil {
		return false
	}
	h.table.lock(h.shards)
	// With the shards locked no other goroutine can end this hold. A hold that has ended
	// may be reused for other keys, in other shards: therefore generation is atomic.
	if h.hold.generation.Load() != h.generation {
		h.table.unlock(h.shards)
		return false
	}
	h.hold.generation.Store(h.generation + 1)
	return true
}

// end frees the keys of a hold whose shards are locked, and unlocks them.
func (h *hold) end() {
	t := h.table
	shards := h.shards
	h.remove(h.slots)
	t.unlock(shards)
	h.recycle()
	t.serveQueue(shards)
}

// Snapshot lists the keys that are held, the oldest first.
func (t *Table) Snapshot() []Entry {
	list := []Entry{}
	t.lock(^shardSet(0))
	now, wall := clock(), time.Now()
	for i := range t.shards {
		t.shards[i].each(func(s *slot) {
			e := Entry{Key: s.Key, Mode: s.Mode, Op: s.hold.op, Since: wall.Add(s.hold.since - now), Parked: s.hold.parked()}
			if s.contended != 0 {
				e.ContendedSince = wall.Add(s.contended - now)
			}
			list = append(list, e)
		})
	}
	t.unlock(^shardSet(0))
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(a.Since.Compare(b.Since), a.Key.compare(b.Key), cmp.Compare(a.Op.RequestID, b.Op.RequestID))
	})
	return list
}

func (t *Table) newHold(op Op, reqs []Request) *hold {
	h := holds.Get().(*hold)
	h.table, h.op, h.slots = t, op, h.inline[:0]
	if len(reqs) > len(h.inline) {
		h.slots = make([]slot, 0, len(reqs))
	}
	sorted := true
	for i := range reqs {
		r := &reqs[i]
		sorted = sorted && (i == 0 || reqs[i-1].Key.compare(r.Key) < 0)
		hash := r.Key.hash()
		h.shards |= 1 << shardOf(hash)
		mode := Exclusive // also for an invalid mode
		if r.Mode == Shared {
			mode = Shared
		}
		h.slots = append(h.slots, slot{Request: Request{r.Key, mode}, hash: hash, hold: h})
	}
	if !sorted {
		// Exclusive sorts before Shared and is kept.
		slices.SortFunc(h.slots, func(a, b slot) int {
			return cmp.Or(a.Key.compare(b.Key), cmp.Compare(a.Mode, b.Mode))
		})
		h.slots = slices.CompactFunc(h.slots, func(a, b slot) bool { return a.Key == b.Key })
	}
	return h
}

// recycle returns a hold that is in no shard to the pool.
func (h *hold) recycle() {
	clear(h.slots) // a pooled hold must not keep IDs alive, or other holds through its rings
	h.table, h.op, h.slots, h.shards, h.pending = nil, Op{}, nil, 0, nil
	holds.Put(h)
}

func (h *hold) handle() Held { return Held{h, h.generation.Load(), h.table, h.shards} }

// take takes all keys of h, or none and returns the conflict.
func (t *Table) take(h *hold) *BusyError {
	now := clock()
	h.since = now
	t.lock(h.shards)
	for i := range h.slots {
		s := &h.slots[i]
		if blocker := t.shards[shardOf(s.hash)].insert(s); blocker != nil {
			h.remove(h.slots[:i])
			if !blocker.hold.parked() {
				blocker = cmp.Or(t.parkedBlocker(h.slots[i+1:]), blocker)
			}
			if blocker.contended == 0 {
				blocker.contended = now
			}
			busy := newBusyError(h.op.RPC, blocker, now)
			t.unlock(h.shards)
			return busy
		}
	}
	t.unlock(h.shards)
	return nil
}

// parkedBlocker returns a slot of a parked hold that conflicts with one of slots, whose
// shards are locked.
func (t *Table) parkedBlocker(slots []slot) *slot {
	for i := range slots {
		s := &slots[i]
		if first := t.shards[shardOf(s.hash)].first(s); first != nil {
			if blocker := s.blockerAmong(first); blocker != nil && blocker.hold.parked() {
				return blocker
			}
		}
	}
	return nil
}

// parked returns the conflict of h with a parked hold, or nil.
func (t *Table) parked(h *hold) *BusyError {
	now := clock()
	t.lock(h.shards)
	defer t.unlock(h.shards)
	blocker := t.parkedBlocker(h.slots)
	if blocker == nil {
		return nil
	}
	if blocker.contended == 0 {
		blocker.contended = now
	}
	return newBusyError(h.op.RPC, blocker, now)
}

func (h *hold) parked() bool { return len(h.pending) > 0 }

// remove removes slots of h from their shards, which are locked.
func (h *hold) remove(slots []slot) {
	for i := range slots {
		h.table.shards[shardOf(slots[i].hash)].remove(&slots[i])
	}
}

var started = time.Now()

// clock is the time since the start of the process, which costs half as much as
// time.Now.
func clock() time.Duration { return time.Since(started) }
