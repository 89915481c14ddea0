package volumelock

import (
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
)

// Keys with the same hash, or in the same bucket, do not conflict, and none is lost
// while others are inserted and removed.
func TestShard(t *testing.T) {
	seed := rand.Uint64()
	for run := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, run))
		var sh shard
		in := map[*slot]bool{}
		var out []*slot // a waiter inserts the same slot repeatedly
		for step := range 300 {
			n := rnd.IntN(40)
			s := &slot{
				Request: Request{Key{Kind(n % 2), strconv.Itoa(n / 2)}, Mode(rnd.IntN(2))},
				hash:    uint64(n % 5), hold: new(hold),
			}
			if rnd.IntN(4) == 0 { // passes those that are parked
				s.hold.op.RPC = "NodeUnstageVolume"
			}
			if len(out) > 0 && rnd.IntN(2) == 0 {
				s, out = out[0], out[1:]
			}
			free := true
			for other := range in {
				free = free && (other.Key != s.Key || s.Mode == Shared && other.Mode == Shared || s.hold.passes(other.hold))
			}
			blocker := sh.insert(s)
			if (blocker == nil) != free || blocker != nil && blocker.Key != s.Key {
				t.Fatalf("seed %d, run %d, step %d: insert(%v) = %v, want it free: %v", seed, run, step, s.Request, blocker, free)
			}
			if free {
				in[s] = true
				if rnd.IntN(2) == 0 {
					s.hold.pending = []<-chan struct{}{make(chan struct{})}
				}
			}
			for s := range in {
				if rnd.IntN(20) == 0 {
					sh.remove(s)
					delete(in, s)
					if !s.hold.parked() {
						out = append(out, s)
					}
				}
			}
			got := map[*slot]bool{}
			sh.each(func(s *slot) {
				if got[s] {
					t.Fatalf("seed %d, run %d, step %d: a slot is in the shard twice", seed, run, step)
				}
				got[s] = true
			})
			if !maps.Equal(got, in) {
				t.Fatalf("seed %d, run %d, step %d: %d slots are in the shard, want %d", seed, run, step, len(got), len(in))
			}
		}
		for s := range in {
			sh.remove(s)
		}
		if sh.keys != 0 || len(sh.buckets) != minBuckets {
			t.Fatalf("seed %d, run %d: %d keys and %d buckets are left", seed, run, sh.keys, len(sh.buckets))
		}
	}
}

// Calls read the clock before they lock the shard, and may be overtaken in between.
func TestBusyErrorIsNeverFromTheFuture(t *testing.T) {
	blocker := &slot{hold: &hold{since: 5}, contended: 7}
	if e := newBusyError("NodeStageVolume", blocker, 3); e.Age != 0 || e.ContendedFor != 0 {
		t.Errorf("held for %v, contended for %v", e.Age, e.ContendedFor)
	}
}
