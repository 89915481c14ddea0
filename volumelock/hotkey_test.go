package volumelock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/volumelock"
	"google.golang.org/grpc"
)

// waitFor begins calls that wait for keys, in order, and returns a function that cancels
// them and waits for their end. It runs in a synctest bubble.
func waitFor(t *testing.T, table *volumelock.Table, n int, reqs ...volumelock.Request) (end func() []error) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() {
			h, err := table.AcquireWait(ctx, time.Hour, volumelock.Op{RPC: fmt.Sprint("wait", i)}, reqs...)
			errs[i] = err
			h.Release()
		})
		synctest.Wait()
	}
	return func() []error {
		cancel()
		all.Wait()
		return errs
	}
}

// Calls that wait for one key cost a call for another one nothing: it does not look at them,
// which would allocate.
func TestWaitersOfOneKeyDoNotSlowOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		hot := ex(volumelock.KindVolume, "hot")
		held, err := table.Acquire(volumelock.Op{RPC: "holder"}, hot)
		if err != nil {
			t.Fatal(err)
		}
		end := waitFor(t, &table, 200, hot)
		defer func() { held.Release() }()
		defer end()
		// One of 64 keys may share the shard of the hot one.
		cold := 0
		for i := range 64 {
			key := ex(volumelock.KindVolume, fmt.Sprint("cold", i))
			if n := testing.AllocsPerRun(10, func() {
				h, err := table.AcquireWait(t.Context(), time.Hour, volumelock.Op{RPC: "cold"}, key)
				if err != nil {
					t.Error(err)
				}
				h.Release()
			}); n == 0 {
				cold++
			}
		}
		if cold < 48 {
			t.Errorf("only %d of 64 keys are free of the waiters", cold)
		}
	})
}

// A call that waits for one key of several leaves the others to the rest.
func TestWaitWithholdsOnlyTheKeyItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		a, b, c := ex(volumelock.KindVolume, "a"), ex(volumelock.KindVolume, "b"), ex(volumelock.KindVolume, "c")
		held, err := table.Acquire(volumelock.Op{RPC: "holder"}, b)
		if err != nil {
			t.Fatal(err)
		}
		end := waitFor(t, &table, 3, a, b, c)
		for _, free := range []volumelock.Request{a, c} {
			h, err := table.AcquireWait(t.Context(), 0, volumelock.Op{RPC: "DeleteVolume"}, free)
			if err != nil {
				t.Errorf("%v: %v", free, err)
			}
			h.Release()
		}
		if h, err := table.AcquireWait(t.Context(), 0, volumelock.Op{RPC: "DeleteVolume"}, b); err == nil {
			t.Error("took the key that is held")
			h.Release()
		}
		held.Release()
		synctest.Wait()
		for _, err := range end() {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// A parked key is not waited for, whichever of the keys it is, and the error names it.
func TestWaitIsRefusedForAnyParkedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		a, b := ex(volumelock.KindVolume, "a"), ex(volumelock.KindVolume, "b")
		live, err := table.Acquire(volumelock.Op{RPC: "live"}, a)
		if err != nil {
			t.Fatal(err)
		}
		stuck, err := table.Acquire(volumelock.Op{RPC: "stuck"}, b)
		if err != nil {
			t.Fatal(err)
		}
		end := waitFor(t, &table, 1, a, b) // before the key is parked
		behind := waitFor(t, &table, 1, a, b)
		pending := make(chan struct{})
		stuck.Park(pending)
		synctest.Wait()
		_, err = table.AcquireWait(t.Context(), time.Hour, volumelock.Op{RPC: "late"}, a, b)
		for _, err := range append(append(end(), behind()...), err) {
			var busy *volumelock.BusyError
			if !errors.As(err, &busy) || !busy.Parked || busy.Holder.RPC != "stuck" || busy.Key != b.Key {
				t.Errorf("got %v", err)
			}
		}
		close(pending)
		live.Release()
		synctest.Wait()
	})
}

type typedNil struct{ done chan struct{} }

func (e *typedNil) Error() string            { return "typed" }
func (e *typedNil) Pending() <-chan struct{} { return e.done }

// A nil pointer in an error has nothing pending, and must not panic.
func TestTypedNilPendingError(t *testing.T) {
	i := volumelock.Interceptor(nil)
	info := &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/DeleteVolume"}
	_, err := i.Unary(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}, info, func(context.Context, any) (any, error) {
		return nil, errors.Join((*typedNil)(nil))
	})
	if err == nil {
		t.Error("the error is lost")
	}
}

// BenchmarkHotKey has what a free key costs while calls wait for another one, and what it
// costs to cancel those.
func BenchmarkHotKey(b *testing.B) {
	for _, waiters := range []int{0, 100, 2000} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			var table volumelock.Table
			hot, cold := ex(volumelock.KindVolume, "hot"), ex(volumelock.KindVolume, "cold")
			held, _ := table.Acquire(volumelock.Op{RPC: "holder"}, hot)
			ctx, cancel := context.WithCancel(b.Context())
			var all sync.WaitGroup
			for range waiters {
				all.Go(func() { _, _ = table.AcquireWait(ctx, time.Hour, volumelock.Op{RPC: "wait"}, hot) })
			}
			for b.Loop() {
				h, err := table.AcquireWait(ctx, time.Hour, volumelock.Op{RPC: "cold"}, cold)
				if err != nil {
					b.Fatal(err)
				}
				h.Release()
			}
			began := time.Now()
			cancel()
			all.Wait()
			b.ReportMetric(float64(time.Since(began).Microseconds()), "cancel-us")
			held.Release()
		})
	}
}
