package volumelock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/volumelock"
)

// queueModel is a naive model of the callers that hold and that wait, numbered in order
// of arrival.
type queueModel struct {
	reqs             [][]volumelock.Request
	holding, waiting []int
	on               map[int]string // the key for which one waits
}

// conflict returns the first key on which two conflict, or nothing.
func (m *queueModel) conflict(a, b int) (first string) {
	for _, x := range m.reqs[a] {
		for _, y := range m.reqs[b] {
			if x.Key == y.Key && (x.Mode == volumelock.Exclusive || y.Mode == volumelock.Exclusive) && (first == "" || x.Key.ID < first) {
				first = x.Key.ID
			}
		}
	}
	return first
}

// conflictOn reports whether two conflict on a key.
func (m *queueModel) conflictOn(a, b int, id string) bool {
	mode := func(c int) (strongest volumelock.Mode, found bool) {
		for _, r := range m.reqs[c] {
			if r.Key.ID == id {
				return r.Mode, true
			}
		}
		return 0, false
	}
	x, inA := mode(a)
	y, inB := mode(b)
	return inA && inB && (x == volumelock.Exclusive || y == volumelock.Exclusive)
}

func (m *queueModel) settle() {
	waiting := m.waiting
	m.waiting = nil
	for _, c := range waiting {
		least := func(all []int, key func(other int) string) (first string) {
			for _, other := range all {
				if k := key(other); k != "" && (first == "" || k < first) {
					first = k
				}
			}
			return first
		}
		behind := least(m.waiting, func(other int) string {
			if m.conflictOn(c, other, m.on[other]) {
				return m.on[other]
			}
			return ""
		})
		held := least(m.holding, func(other int) string { return m.conflict(c, other) })
		if on := cmp.Or(behind, held); on != "" {
			m.on[c] = on
			m.waiting = append(m.waiting, c)
		} else {
			m.holding = append(m.holding, c)
		}
	}
}

func (m *queueModel) arrive(c int) {
	m.waiting = append(m.waiting, c)
	m.settle()
}

// end is the release of a caller that holds, and the timeout of another.
func (m *queueModel) end(c int) {
	is := func(other int) bool { return other == c }
	m.holding = slices.DeleteFunc(m.holding, is)
	m.waiting = slices.DeleteFunc(m.waiting, is)
	m.settle()
}

// schedules lists every order of arrivals (n is caller n) and ends (^n) in which
// the callers arrive in order of their numbers.
func schedules(callers int) (all [][]int) {
	var walk func(done, open []int, arrived int)
	walk = func(done, open []int, arrived int) {
		if arrived == callers && len(open) == 0 {
			all = append(all, slices.Clone(done))
			return
		}
		if arrived < callers {
			walk(append(slices.Clip(done), arrived), append(slices.Clip(open), arrived), arrived+1)
		}
		for i, c := range open {
			walk(append(slices.Clip(done), ^c), slices.Delete(slices.Clone(open), i, i+1), arrived)
		}
	}
	walk(nil, nil, 0)
	return all
}

// Every schedule of a few callers that wait, for every choice of keys and modes: after
// each step the holders are those of the model. In particular there is a holder whenever
// a caller waits, and no caller is overtaken needlessly.
func TestWaitExhaustively(t *testing.T) {
	const k = volumelock.KindVolume
	choices := [][]volumelock.Request{
		{ex(k, "a")},
		{sh(k, "a")},
		{ex(k, "b")},
		{sh(k, "a"), sh(k, "b")},
		{ex(k, "b"), ex(k, "a")},
		{sh(k, "a"), ex(k, "b")},
		{ex(k, "a"), sh(k, "b")},
		{sh(k, "b")},
	}
	for _, tt := range []struct{ callers, choices int }{{3, len(choices)}, {4, 4}} {
		t.Run(fmt.Sprint(tt.callers, " callers"), func(t *testing.T) {
			if testing.Short() && tt.callers > 3 {
				t.Skip("takes seconds")
			}
			synctest.Test(t, func(t *testing.T) {
				orders := schedules(tt.callers)
				reqs := make([][]volumelock.Request, tt.callers)
				combinations := 1
				for range reqs {
					combinations *= tt.choices
				}
				for n := range combinations {
					for c := range reqs {
						reqs[c] = choices[n%tt.choices]
						n /= tt.choices
					}
					for _, order := range orders {
						runSchedule(t, reqs, order)
					}
				}
			})
		})
	}
}

func runSchedule(t *testing.T, reqs [][]volumelock.Request, order []int) {
	var table volumelock.Table
	var mu sync.Mutex
	var holding []int
	model := queueModel{reqs: reqs, on: map[int]string{}}
	ends := make([]func(), len(reqs))
	for step, c := range order {
		if c >= 0 {
			ctx, end := context.WithCancel(t.Context())
			ends[c] = end
			go func() {
				h, err := table.AcquireWait(ctx, time.Hour, volumelock.Op{RPC: fmt.Sprint(c)}, reqs[c]...)
				if err != nil {
					return
				}
				mu.Lock()
				holding = append(holding, c)
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				holding = slices.DeleteFunc(holding, func(other int) bool { return other == c })
				mu.Unlock()
				h.Release()
			}()
			model.arrive(c)
		} else {
			ends[^c]()
			model.end(^c)
		}
		synctest.Wait()
		mu.Lock()
		got := slices.Sorted(slices.Values(holding))
		mu.Unlock()
		slices.Sort(model.holding)
		if !slices.Equal(got, model.holding) {
			t.Fatalf("%v in the order %v: after step %d %v hold keys, want %v", reqs, order, step, got, model.holding)
		}
		if len(got) == 0 && len(model.waiting) > 0 {
			t.Fatalf("%v in the order %v: after step %d no caller holds a key and %v wait", reqs, order, step, model.waiting)
		}
	}
	mustBeIdle(t, &table)
}

// An exclusive call is not starved by a stream of shared ones.
func TestWaitIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		ctx, stop := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for i := range 20 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				for ctx.Err() == nil {
					h, err := table.AcquireWait(ctx, time.Minute, publish, sh(volumelock.KindVolumeOnNode, "v"))
					if err != nil {
						continue
					}
					time.Sleep(time.Second)
					h.Release()
				}
			})
		}
		time.Sleep(10*time.Second + 10*time.Millisecond)
		began := time.Now()
		h, err := table.AcquireWait(ctx, time.Minute, unstage, ex(volumelock.KindVolumeOnNode, "v"))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v, want no more than the earlier callers need", took)
		}
		h.Release()
		stop()
		readers.Wait()
		mustBeIdle(t, &table)
	})
}

// A refused waiter gets the call that it waited behind, marked HolderWaiting.
func TestWaitNamesTheEarlierWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		volume, target := ex(volumelock.KindVolumeOnNode, "v"), ex(volumelock.KindTarget, "/t")
		h := mustAcquire(t, &table, publish, sh(volumelock.KindVolumeOnNode, "v"))
		var waiting sync.WaitGroup
		waiting.Go(func() {
			got, err := table.AcquireWait(t.Context(), time.Hour, volumelock.Op{RPC: "NodeUnstageVolume", RequestID: "7"}, volume, target)
			if err != nil {
				t.Error(err)
			}
			got.Release()
		})
		time.Sleep(20 * time.Second)
		_, err := table.AcquireWait(t.Context(), 10*time.Second, publish, sh(volumelock.KindVolumeOnNode, "v"))
		var busy *volumelock.BusyError
		if !errors.As(err, &busy) || !busy.HolderWaiting || busy.Age != 30*time.Second {
			t.Errorf("%+v, want the one that waits, for 30s", err)
		}
		if want := `NodePublishVolume: volume_on_node "v" was requested earlier by NodeUnstageVolume (request 7), which has waited for 30s and is served first; retry`; err.Error() != want {
			t.Errorf("text  %v\nwant  %s", err, want)
		}
		// Acquire does not queue behind waiters.
		mustAcquire(t, &table, publish, sh(volumelock.KindVolumeOnNode, "v")).Release()

		// For the holder, the error contains how long the key has been contended.
		_, err = table.AcquireWait(t.Context(), 0, stage, sh(volumelock.KindVolumeOnNode, "v"), ex(volumelock.KindVolume, "v"))
		if !errors.As(err, &busy) || !busy.HolderWaiting {
			t.Errorf("%v, want the one that waits", err)
		}
		_, err = table.Acquire(stage, volume)
		if !errors.As(err, &busy) || busy.HolderWaiting || busy.ContendedFor != 30*time.Second ||
			!strings.Contains(err.Error(), "is held by NodePublishVolume for 30s, contended for 30s; retry") {
			t.Errorf("%+v, want the holder, contended for 30s", err)
		}
		if s := table.Snapshot(); len(s) != 1 || time.Since(s[0].ContendedSince) != 30*time.Second {
			t.Errorf("Snapshot = %+v, want one key, contended since 30s", s)
		}
		h.Release()
		waiting.Wait()
		mustBeIdle(t, &table)
	})
}

// Each attempt of a waiter inserts some of its keys and removes them again, while the
// table grows and shrinks.
func TestWaitWhileTheTableGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		last := ex(volumelock.KindGroupSnapshotName, "busy")
		busy := mustAcquire(t, &table, stage, last)
		var waiting sync.WaitGroup
		const waiters = 20
		for i := range waiters {
			waiting.Go(func() {
				// The first key is free at each try, the second one is not.
				h, err := table.AcquireWait(t.Context(), time.Hour, unstage, ex(volumelock.KindVolume, fmt.Sprint("w", i)), last)
				if err != nil {
					t.Error(err)
				}
				h.Release()
			})
		}
		synctest.Wait()
		for range 2 {
			var others []volumelock.Held
			for i := range 3000 {
				others = append(others, mustAcquire(t, &table, publish, ex(volumelock.KindVolume, fmt.Sprint(i))))
				mustAcquire(t, &table, publish, ex(volumelock.KindTarget, "/t")).Release() // lets all try
			}
			for _, h := range others {
				h.Release()
			}
		}
		if n := len(table.Snapshot()); n != 1 {
			t.Errorf("%d keys are held, want the busy one", n)
		}
		busy.Release()
		waiting.Wait()
		mustBeIdle(t, &table)
	})
}
