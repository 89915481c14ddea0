package volumelock

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"time"
)

// A Table consists of shards, each with its own mutex, so that calls for
// different volumes do not queue for one mutex. Several shards are always locked in
// ascending order, which prevents deadlock.
const shardCount = 64 // as many as a shardSet has bits

// shard is an intrusive hash table of slots. A Go map
// would hash each key three times for a take and a release, and would keep the
// buckets of its largest burst.
type shard struct {
	mu      sync.Mutex
	buckets []*slot  // chains of the first slots of different keys
	keys    int      // how many keys are in the chains
	_       [24]byte // so that no two shards share a cache line
}

// minBuckets are kept when a shard is idle: 4 KiB for all shards together.
const minBuckets = 8

// slot is one key of one hold. The fields after hold are guarded by the shard's mutex.
type slot struct {
	Request
	hash uint64
	hold *hold

	contended  time.Duration // when a call was first refused because of this slot, or began to wait; 0: none
	chain      *slot         // the next key in the bucket, if this is the first slot of its key
	prev, next *slot         // the ring of slots on the same key: Exclusive ones first
}

// shardSet is a set of shards, a bit for each.
type shardSet uint64

var seed = maphash.MakeSeed()

func (k Key) hash() uint64 {
	// Multiplied, so that the kinds of one ID differ in the high bits as well, which
	// shardOf uses.
	return maphash.String(seed, k.ID) ^ uint64(k.Kind)*0x9e3779b97f4a7c15
}

// shardOf uses the high bits of the hash, because the buckets use the low ones.
func shardOf(hash uint64) int { return int(hash >> 58) }

func (t *Table) lock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		t.shards[bits.TrailingZeros64(uint64(set))].mu.Lock()
	}
}

func (t *Table) unlock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		t.shards[bits.TrailingZeros64(uint64(set))].mu.Unlock()
	}
}

// insert adds s to the holders of its key, or returns a conflicting slot.
func (sh *shard) insert(s *slot) (blocker *slot) {
	if len(sh.buckets) == 0 {
		sh.buckets = make([]*slot, minBuckets)
	}
	link := &sh.buckets[s.hash&uint64(len(sh.buckets)-1)]
	for *link != nil && ((*link).hash != s.hash || (*link).Key != s.Key) {
		link = &(*link).chain
	}
	first := *link
	if first == nil {
		s.prev, s.next = s, s
		*link = s
		if sh.keys++; sh.keys > len(sh.buckets) {
			sh.resize(2 * len(sh.buckets))
		}
		return nil
	}
	if blocker := s.blockerAmong(first); blocker != nil {
		return blocker
	}
	s.prev, s.next = first.prev, first // first's predecessor is the end of the ring
	s.prev.next, s.next.prev = s, s
	if s.Mode == Exclusive {
		s.chain, first.chain = first.chain, nil
		*link = s
	}
	return nil
}

// first returns the first slot of the key of s, or nil.
func (sh *shard) first(s *slot) *slot {
	if len(sh.buckets) == 0 {
		return nil
	}
	first := sh.buckets[s.hash&uint64(len(sh.buckets)-1)]
	for first != nil && (first.hash != s.hash || first.Key != s.Key) {
		first = first.chain
	}
	return first
}

// remove removes s and resets it, because a call that waits inserts the same slot again.
func (sh *shard) remove(s *slot) {
	link := &sh.buckets[s.hash&uint64(len(sh.buckets)-1)]
	for *link != nil && *link != s {
		link = &(*link).chain
	}
	s.prev.next, s.next.prev = s.next, s.prev
	switch {
	case *link == nil: // not the first of its key
	case s.next != s:
		s.next.chain = s.chain
		*link = s.next
	default:
		*link = s.chain
		if sh.keys--; sh.keys < len(sh.buckets)/4 && len(sh.buckets) > minBuckets {
			sh.resize(len(sh.buckets) / 2)
		}
	}
	s.chain, s.prev, s.next = nil, nil, nil
}

func (sh *shard) resize(n int) {
	old := sh.buckets
	sh.buckets = make([]*slot, n)
	for _, s := range old {
		for s != nil {
			next := s.chain
			bucket := &sh.buckets[s.hash&uint64(n-1)]
			s.chain, *bucket = *bucket, s
			s = next
		}
	}
}

// blockerAmong returns the worst slot on the key of s that conflicts with s, or nil.
// first is the first slot of that key.
func (s *slot) blockerAmong(first *slot) (worst *slot) {
	if s.Mode == Shared && first.Mode == Shared {
		return nil // without iterating over all pods of an RWX volume
	}
	other := first
	for {
		conflict := s.Mode == Exclusive || other.Mode == Exclusive
		if conflict && !s.hold.passes(other.hold) && (worst == nil || other.hold.worse(worst.hold)) {
			worst = other
		}
		if other = other.next; other == first {
			return worst
		}
	}
}

// worse reports whether a BusyError names h rather than other: a parked hold first, whose
// end is not foreseeable, then the older one.
func (h *hold) worse(other *hold) bool {
	if h.parked() != other.parked() {
		return h.parked()
	}
	return h.since < other.since
}

// each calls f for every slot. The shard is locked.
func (sh *shard) each(f func(*slot)) {
	for _, first := range sh.buckets {
		for ; first != nil; first = first.chain {
			f(first)
			for s := first.next; s != first; s = s.next {
				f(s)
			}
		}
	}
}
