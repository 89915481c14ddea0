package volumelock

import (
	"strconv"
	"testing"
)

// Different keys do not meet, even with the same hash.
func TestSameHash(t *testing.T) {
	const n = 100
	var sh shard
	slots := make([]slot, n)
	for i := range slots {
		slots[i] = slot{Request: Request{Key: Key{Kind(i % 2), strconv.Itoa(i / 2)}}, hash: 42, hold: new(hold)}
		if sh.insert(&slots[i]) != nil {
			t.Fatalf("key %d met another one", i)
		}
	}
	again := slot{Request: slots[n/2].Request, hash: 42, hold: new(hold)}
	if got := sh.insert(&again); got != &slots[n/2] {
		t.Errorf("the blocker is %+v, want %+v", got, &slots[n/2])
	}
	for i := range slots {
		sh.remove(&slots[(i*37)%n])
	}
	if sh.keys != 0 || len(sh.buckets) != minBuckets {
		t.Errorf("%d keys and %d buckets are left", sh.keys, len(sh.buckets))
	}
}
