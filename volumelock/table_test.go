package volumelock_test

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/volumelock"
)

var (
	stage     = volumelock.Op{RPC: "NodeStageVolume"}
	unstage   = volumelock.Op{RPC: "NodeUnstageVolume"}
	publish   = volumelock.Op{RPC: "NodePublishVolume"}
	unpublish = volumelock.Op{RPC: "NodeUnpublishVolume"}
)

func ex(k volumelock.Kind, id string) volumelock.Request {
	return volumelock.Request{Key: volumelock.Key{Kind: k, ID: id}, Mode: volumelock.Exclusive}
}

func sh(k volumelock.Kind, id string) volumelock.Request {
	return volumelock.Request{Key: volumelock.Key{Kind: k, ID: id}, Mode: volumelock.Shared}
}

func mustAcquire(t *testing.T, table *volumelock.Table, op volumelock.Op, reqs ...volumelock.Request) volumelock.Held {
	t.Helper()
	h, err := table.Acquire(op, reqs...)
	if err != nil {
		t.Fatalf("Acquire(%v, %v) = %v", op, reqs, err)
	}
	return h
}

func mustBeBusy(t *testing.T, table *volumelock.Table, op volumelock.Op, reqs ...volumelock.Request) *volumelock.BusyError {
	t.Helper()
	h, err := table.Acquire(op, reqs...)
	var busy *volumelock.BusyError
	if h != (volumelock.Held{}) || !errors.As(err, &busy) {
		t.Fatalf("Acquire(%v, %v) = %v, %v, want a *BusyError", op, reqs, h, err)
	}
	return busy
}

// held renders what the table holds, one "kind "id" mode rpc" per entry.
func held(table *volumelock.Table) string {
	var lines []string
	for _, e := range table.Snapshot() {
		line := fmt.Sprint(e.Key, " ", e.Mode, " ", e.Op.RPC)
		if e.Parked {
			line += " parked"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func mustBeIdle(t *testing.T, table *volumelock.Table) {
	t.Helper()
	if got := held(table); got != "" {
		t.Errorf("the table still holds %s", got)
	}
	if _, n, waiters := volumelock.Retained(table); n != 0 || waiters {
		t.Errorf("the table retains %d keys, waiters: %v", n, waiters)
	}
}

func TestModes(t *testing.T) {
	k := volumelock.KindVolume
	tests := []struct {
		name          string
		first, second []volumelock.Request
		busy          bool
	}{
		{"shared beside shared", []volumelock.Request{sh(k, "a")}, []volumelock.Request{sh(k, "a")}, false},
		{"exclusive beside shared", []volumelock.Request{sh(k, "a")}, []volumelock.Request{ex(k, "a")}, true},
		{"shared beside exclusive", []volumelock.Request{ex(k, "a")}, []volumelock.Request{sh(k, "a")}, true},
		{"exclusive beside exclusive", []volumelock.Request{ex(k, "a")}, []volumelock.Request{ex(k, "a")}, true},
		{"another ID", []volumelock.Request{ex(k, "a")}, []volumelock.Request{ex(k, "b")}, false},
		{"another kind", []volumelock.Request{ex(k, "a")}, []volumelock.Request{ex(volumelock.KindVolumeOnNode, "a")}, false},
		{"the zero mode is exclusive", []volumelock.Request{{Key: sh(k, "a").Key}}, []volumelock.Request{sh(k, "a")}, true},
		{"a mode that there is not is exclusive", []volumelock.Request{{Key: sh(k, "a").Key, Mode: 7}}, []volumelock.Request{{Key: sh(k, "a").Key, Mode: 7}}, true},
		{"and wins over shared", []volumelock.Request{sh(k, "a"), {Key: sh(k, "a").Key, Mode: 7}}, []volumelock.Request{sh(k, "a")}, true},
		{"one of many keys", []volumelock.Request{ex(k, "a"), ex(k, "b"), ex(k, "c")}, []volumelock.Request{ex(k, "d"), ex(k, "c")}, true},
		{"twice in one request", []volumelock.Request{ex(k, "a"), ex(k, "a")}, []volumelock.Request{ex(k, "b")}, false},
		{"merged to the stronger, shared first", []volumelock.Request{sh(k, "a"), ex(k, "a")}, []volumelock.Request{sh(k, "a")}, true},
		{"merged to the stronger, exclusive first", []volumelock.Request{ex(k, "a"), sh(k, "a")}, []volumelock.Request{sh(k, "a")}, true},
		{"merged shared stays shared", []volumelock.Request{sh(k, "a"), sh(k, "a")}, []volumelock.Request{sh(k, "a")}, false},
		{"nothing", nil, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var table volumelock.Table
			first := mustAcquire(t, &table, stage, tt.first...)
			before := held(&table)
			second, err := table.Acquire(unstage, tt.second...)
			if busy := err != nil; busy != tt.busy {
				t.Fatalf("the second Acquire = %v, want busy %v", err, tt.busy)
			}
			if tt.busy {
				if got := held(&table); got != before {
					t.Errorf("a refused Acquire left %q, want %q", got, before)
				}
				first.Release()
				second = mustAcquire(t, &table, unstage, tt.second...)
			} else {
				first.Release()
			}
			second.Release()
			mustBeIdle(t, &table)
		})
	}
}

func TestMergedKeyIsListedOnce(t *testing.T) {
	var table volumelock.Table
	h := mustAcquire(t, &table, stage, sh(volumelock.KindVolume, "b"), sh(volumelock.KindVolume, "a"), ex(volumelock.KindVolume, "b"), sh(volumelock.KindVolume, "a"))
	if got, want := held(&table), `volume "a" shared NodeStageVolume; volume "b" exclusive NodeStageVolume`; got != want {
		t.Errorf("held %s, want %s", got, want)
	}
	h.Release()
	mustBeIdle(t, &table)
}

// A hold that is released has no say over keys that another has taken since.
func TestReleaseAndParkAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		h := mustAcquire(t, &table, stage, ex(volumelock.KindVolumeOnNode, "v"))
		h.Release()
		again := mustAcquire(t, &table, stage, ex(volumelock.KindVolumeOnNode, "v"))
		h.Release()
		pending := make(chan struct{})
		h.Park(pending)
		close(pending)
		synctest.Wait()
		mustBeBusy(t, &table, stage, ex(volumelock.KindVolumeOnNode, "v"))
		if got, want := held(&table), `volume_on_node "v" exclusive NodeStageVolume`; got != want {
			t.Errorf("held %s, want %s", got, want)
		}
		again.Release()
		mustBeIdle(t, &table)
	})
}

// ceph/ceph-csi#1062, ceph/ceph-csi#5234, rook/rook#4896: ABORTED for hours, without
// any indication of the call that held the volume.
func TestBusyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		op := volumelock.Op{RPC: "NodeStageVolume", RequestID: "r-7"}
		h := mustAcquire(t, &table, op, ex(volumelock.KindVolumeOnNode, "v\n1"))
		time.Sleep(43*time.Minute + 1500*time.Millisecond)

		busy := mustBeBusy(t, &table, publish, ex(volumelock.KindTarget, "/t"), sh(volumelock.KindVolumeOnNode, "v\n1"))
		want := volumelock.BusyError{
			RPC: "NodePublishVolume", Key: volumelock.Key{Kind: volumelock.KindVolumeOnNode, ID: "v\n1"},
			Holder: op, Age: 43*time.Minute + 1500*time.Millisecond,
		}
		if *busy != want {
			t.Errorf("BusyError = %+v, want %+v", *busy, want)
		}
		text := `NodePublishVolume: volume_on_node "v\n1" is held by NodeStageVolume (request r-7) for 43m1s; retry when that call has ended`
		if busy.Error() != text {
			t.Errorf("text  %s\nwant  %s", busy, text)
		}
		if got := status.Convert(fmt.Errorf("wrapped: %w", busy)); got.Code() != codes.Aborted || !strings.Contains(got.Message(), text) || len(got.Details()) != 0 {
			t.Errorf("status = %v, want ABORTED with the text and no details", got)
		}

		pending := make(chan struct{})
		h.Park(pending)
		busy = mustBeBusy(t, &table, publish, sh(volumelock.KindVolumeOnNode, "v\n1"))
		text = `NodePublishVolume: volume_on_node "v\n1" is held by NodeStageVolume (request r-7) for 43m1s: that call has returned, but its work is still in flight; check the storage that it uses`
		if !busy.Parked || busy.Error() != text || status.Code(busy) != codes.Aborted {
			t.Errorf("text  %s\nwant  %s", busy, text)
		}
		close(pending)
	})
}

// The error names the oldest conflicting call.
func TestBusyErrorNamesTheOldest(t *testing.T) {
	var table volumelock.Table
	for i := range 3 {
		mustAcquire(t, &table, volumelock.Op{RPC: "NodePublishVolume", RequestID: fmt.Sprint(i)}, sh(volumelock.KindVolumeOnNode, "v"))
	}
	if busy := mustBeBusy(t, &table, unstage, ex(volumelock.KindVolumeOnNode, "v")); busy.Holder.RequestID != "0" {
		t.Errorf("holder = %+v, want request 0", busy.Holder)
	}
}

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		began := time.Now()
		mustAcquire(t, &table, publish, ex(volumelock.KindTarget, "/b"), sh(volumelock.KindVolumeOnNode, "v"))
		time.Sleep(time.Second)
		mustAcquire(t, &table, publish, ex(volumelock.KindTarget, "/a"), sh(volumelock.KindVolumeOnNode, "v"))
		want := `volume_on_node "v" shared NodePublishVolume; target_path "/b" exclusive NodePublishVolume; ` +
			`volume_on_node "v" shared NodePublishVolume; target_path "/a" exclusive NodePublishVolume`
		if got := held(&table); got != want {
			t.Errorf("Snapshot\n%s, want\n%s", got, want)
		}
		s := table.Snapshot()
		if !s[0].Since.Equal(began) || !s[3].Since.Equal(began.Add(time.Second)) {
			t.Errorf("Since = %v and %v, want %v and a second later", s[0].Since, s[3].Since, began)
		}
	})
}

func TestPark(t *testing.T) {
	volume := ex(volumelock.KindVolumeOnNode, "v")
	pod := []volumelock.Request{sh(volumelock.KindVolumeOnNode, "v"), ex(volumelock.KindTarget, "/t")}
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		pending := make(chan struct{})
		h := mustAcquire(t, &table, stage, volume)
		h.Park(pending)
		h.Release() // the deferred one
		if got, want := held(&table), `volume_on_node "v" exclusive NodeStageVolume parked`; got != want {
			t.Fatalf("held %s, want %s", got, want)
		}

		for _, refused := range []struct {
			op   volumelock.Op
			reqs []volumelock.Request
		}{
			{publish, pod},
			{volumelock.Op{RPC: "NodeExpandVolume"}, []volumelock.Request{volume}},
			{stage, []volumelock.Request{sh(volumelock.KindVolumeOnNode, "v")}},         // another mode: not a retry
			{stage, []volumelock.Request{volume, ex(volumelock.KindVolumeOnNode, "w")}}, // another set of keys
		} {
			if busy := mustBeBusy(t, &table, refused.op, refused.reqs...); !busy.Parked || busy.Holder != stage {
				t.Errorf("%v: %+v, want the parked stage named", refused.op, busy)
			}
		}

		// A retry and the teardown pass, and exclude each other.
		retry := mustAcquire(t, &table, stage, volume)
		for _, op := range []volumelock.Op{stage, unstage} {
			if busy := mustBeBusy(t, &table, op, volume); busy.Parked {
				t.Errorf("%v beside the retry: %+v, want the retry named, which is not parked", op, busy)
			}
		}
		retry.Release()
		unpublishing := mustAcquire(t, &table, unpublish, pod...)
		mustBeBusy(t, &table, unstage, volume)
		unpublishing.Release()
		unstaging := mustAcquire(t, &table, unstage, volume)
		mustBeBusy(t, &table, stage, volume)

		close(pending)
		synctest.Wait()
		if got, want := held(&table), `volume_on_node "v" exclusive NodeUnstageVolume`; got != want {
			t.Errorf("after the end: held %s, want %s", got, want)
		}
		unstaging.Release()
		mustBeIdle(t, &table)
	})
}

// Retries that are parked for the same work do not add entries to the table.
func TestParkAgainForTheSameWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		volume := ex(volumelock.KindVolumeOnNode, "v")
		pending, other := make(chan struct{}), make(chan struct{})
		began := time.Now()
		for range 100 {
			mustAcquire(t, &table, stage, volume).Park(pending)
			time.Sleep(time.Minute)
		}
		s := table.Snapshot()
		if len(s) != 1 || !s[0].Parked || !s[0].Since.Equal(began) {
			t.Fatalf("Snapshot = %+v, want only the first hold", s)
		}
		// Other work, or another RPC, is parked on its own.
		mustAcquire(t, &table, stage, volume).Park(other)
		mustAcquire(t, &table, unstage, volume).Park(pending)
		if n := len(table.Snapshot()); n != 3 {
			t.Errorf("%d holds, want 3", n)
		}
		close(pending)
		synctest.Wait()
		if busy := mustBeBusy(t, &table, publish, volume); !busy.Parked {
			t.Errorf("%+v, want parked until all work has ended", busy)
		}
		close(other)
		synctest.Wait()
		mustBeIdle(t, &table)
	})
}

func TestParkWithNothingPending(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, pending := range map[string]<-chan struct{}{"nil": nil, "closed": closed} {
		t.Run(name, func(t *testing.T) {
			var table volumelock.Table
			mustAcquire(t, &table, stage, ex(volumelock.KindVolumeOnNode, "v")).Park(pending)
			mustBeIdle(t, &table)
		})
	}
	t.Run("no keys", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // fails when a goroutine is left
			var table volumelock.Table
			mustAcquire(t, &table, stage).Park(make(chan struct{}))
			mustBeIdle(t, &table)
		})
	})
}

func TestParkTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		first, second := make(chan struct{}), make(chan struct{})
		h := mustAcquire(t, &table, stage, ex(volumelock.KindVolumeOnNode, "v"))
		h.Park(first)
		h.Park(second)
		close(first)
		synctest.Wait()
		mustBeIdle(t, &table)
	})
}

// Nothing but a few buckets per shard outlives a burst of a million keys, held at
// once or one after the other.
func TestNothingRetained(t *testing.T) {
	burst := 1_000_000
	if raceDetector {
		burst /= 10 // it takes its time
	}
	heap := func() int64 {
		for range 3 { // a sync.Pool drops its content at the second collection
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var table volumelock.Table
	before := heap()
	taken := make([]volumelock.Held, 0, burst)
	for i := range burst {
		taken = append(taken, mustAcquire(t, &table, stage, ex(volumelock.KindVolumeOnNode, strconv.Itoa(i))))
		mustAcquire(t, &table, stage, ex(volumelock.KindVolume, strconv.Itoa(i))).Release()
	}
	if buckets, keys, _ := volumelock.Retained(&table); keys != burst || buckets < burst {
		t.Errorf("%d buckets for %d keys, want %d keys and no less buckets", buckets, keys, burst)
	}
	for _, h := range taken {
		h.Release()
	}
	if buckets, _, _ := volumelock.Retained(&table); buckets > volumelock.IdleBuckets {
		t.Errorf("%d buckets outlive a burst, want at most %d", buckets, volumelock.IdleBuckets)
	}
	if left := heap() - before; left > 256<<10 {
		t.Errorf("%d KiB outlive a burst", left>>10)
	}
	// And it works afterwards.
	mustAcquire(t, &table, stage, ex(volumelock.KindVolumeOnNode, "v")).Release()
	mustBeIdle(t, &table)
}

// Set in the race detector's build, where a sync.Pool forgets at random.
var raceDetector bool

func TestNoAllocation(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools forget")
	}
	var table volumelock.Table
	if err := table.Instrument(nil); err != nil {
		t.Fatal(err)
	}
	keys := []volumelock.Request{ex(volumelock.KindTarget, "/t"), sh(volumelock.KindVolumeOnNode, "v"), sh(volumelock.KindVolume, "v"), sh(volumelock.KindVolume, "v")}
	for n := range len(keys) + 1 {
		if allocs := testing.AllocsPerRun(1000, func() { mustAcquire(t, &table, stage, keys[:n]...).Release() }); allocs != 0 {
			t.Errorf("%d keys: %v allocations", n, allocs)
		}
	}
}

func TestAttachmentKey(t *testing.T) {
	pairs := [][2]string{{"a", "b"}, {"a@b", ""}, {"", "a@b"}, {"a@", "b"}, {"a", "@b"}, {"1:a", "b"}, {"", "1:a@b"}, {"11:a", "b"}}
	seen := map[volumelock.Key][2]string{}
	for _, p := range pairs {
		k := volumelock.AttachmentKey(p[0], p[1])
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q share the key %v", p, other, k)
		}
		seen[k] = p
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for k := volumelock.KindVolume; k <= volumelock.KindGroupSnapshotName; k++ {
		if s := k.String(); s == "" || strings.HasPrefix(s, "kind_") || seen[s] {
			t.Errorf("kind %d is called %q", uint8(k), s)
		} else {
			seen[s] = true
		}
	}
	for _, k := range []volumelock.Kind{0, volumelock.KindGroupSnapshotName + 1, 255} {
		if want := fmt.Sprint("kind_", uint8(k)); k.String() != want {
			t.Errorf("String of an unknown kind = %q, want %q", k, want)
		}
	}
}

// 10 000 goroutines contend for few keys; each one checks, while it holds some, that no
// conflicting one does. A few of them wait, and a few park.
func TestStress(t *testing.T) {
	const goroutines, rounds = 10_000, 5
	var table volumelock.Table
	var guards [16]sync.RWMutex // only by TryLock: the table has to make that succeed
	var taken, waited atomic.Int64
	try := func(i int, reqs []volumelock.Request, ids []int) {
		var h volumelock.Held
		var err error
		op := volumelock.Op{RPC: strconv.Itoa(i)} // no retry of another one
		if i%100 == 0 {
			h, err = table.AcquireWait(t.Context(), time.Minute, op, reqs...)
			if err == nil {
				waited.Add(1)
			}
		} else {
			h, err = table.Acquire(op, reqs...)
		}
		if err != nil {
			return
		}
		taken.Add(1)
		defer func() {
			if i%50 == 0 {
				pending := make(chan struct{})
				h.Park(pending)
				defer close(pending)
			}
			h.Release()
			h.Release() // no-op, even if another call holds the keys by now
		}()
		for j, id := range ids {
			lock, unlock := guards[id].TryLock, guards[id].Unlock
			if reqs[j].Mode == volumelock.Shared {
				lock, unlock = guards[id].TryRLock, guards[id].RUnlock
			}
			if !lock() {
				t.Errorf("goroutine %d: key %d taken %v beside another holder", i, id, reqs[j].Mode)
				continue
			}
			defer unlock() // before Release
		}
		runtime.Gosched()
	}
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for round := range rounds {
				a := (i + round) % len(guards)
				b := (a + 1 + i%5) % len(guards)
				first := sh(volumelock.KindVolume, strconv.Itoa(a))
				if i%3 == 0 {
					first.Mode = volumelock.Exclusive
				}
				try(i, []volumelock.Request{first, ex(volumelock.KindVolume, strconv.Itoa(b))}, []int{a, b})
				try(i, []volumelock.Request{sh(volumelock.KindVolume, strconv.Itoa(b))}, []int{b})
			}
		})
	}
	all.Wait()
	if taken.Load() == 0 || waited.Load() == 0 {
		t.Errorf("%d got keys, %d by waiting", taken.Load(), waited.Load())
	}
	for parked := len(table.Snapshot()); parked > 0; parked = len(table.Snapshot()) {
		runtime.Gosched() // until the goroutines of the last ones that parked have run
	}
	mustBeIdle(t, &table)
}
