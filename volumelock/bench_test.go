package volumelock_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/csikit/csikit/volumelock"
)

// set is the structure that most drivers use, the yardstick.
type set struct {
	mu   sync.Mutex
	held map[string]struct{}
}

func (s *set) tryAcquire(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.held[id]; ok {
		return false
	}
	s.held[id] = struct{}{}
	return true
}

func (s *set) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, id)
}

const volumeID = "pvc-4d9e1c52-7f0b-4c1e-9f0e-2f7c5f3a9b11"

var (
	benchOp   = volumelock.Op{RPC: "NodePublishVolume"}
	benchKeys = []volumelock.Request{
		sh(volumelock.KindVolumeOnNode, volumeID),
		ex(volumelock.KindTarget, "/var/lib/kubelet/pods/1f6/volumes/kubernetes.io~csi/"+volumeID+"/mount"),
		ex(volumelock.KindAttachment, volumeID),
	}
)

// rounds lets contestants take turns and reports for each the median of its
// times, in units of the first one's in the same round: what else the machine
// does hits all of them.
func rounds(b *testing.B, ops int, contestants []contestant) {
	ratios := make([][]float64, len(contestants))
	var yardstick []float64
	for b.Loop() {
		first := time.Duration(0)
		for i, c := range contestants {
			began := time.Now()
			c.run(ops)
			took := time.Since(began)
			if i == 0 {
				first = took
				yardstick = append(yardstick, float64(took)/float64(ops))
			}
			ratios[i] = append(ratios[i], float64(took)/float64(first))
		}
	}
	median := func(values []float64) float64 {
		slices.Sort(values)
		return values[len(values)/2]
	}
	for i, c := range contestants {
		if i == 0 {
			b.ReportMetric(median(yardstick), c.name+"-ns")
		} else {
			b.ReportMetric(median(ratios[i]), c.name+"/"+contestants[0].name)
		}
	}
	b.ReportMetric(0, "ns/op") // of a round: says nothing
}

type contestant struct {
	name string
	run  func(ops int)
}

// BenchmarkRatio measures what a free key costs, and several, beside the
// yardstick. The targets are 2.5 for one key and 5 for two.
func BenchmarkRatio(b *testing.B) {
	s := set{held: map[string]struct{}{}}
	contestants := []contestant{{"set", func(ops int) {
		for range ops {
			if !s.tryAcquire(volumeID) {
				b.Fatal("busy")
			}
			s.release(volumeID)
		}
	}}}
	for n, name := range []string{"one", "two", "three"} {
		table, keys := new(volumelock.Table), benchKeys[:n+1]
		contestants = append(contestants, contestant{name, func(ops int) {
			for range ops {
				h, err := table.Acquire(benchOp, keys...)
				if err != nil {
					b.Fatal(err)
				}
				h.Release()
			}
		}})
	}
	rounds(b, 10_000, contestants)
}

// BenchmarkRatioParallel is the same for many goroutines, each with volumes of
// its own. The target is 1. It is only about parallel calls if set-ns is well above
// that of BenchmarkRatio: otherwise the processors had other things to do, and the
// goroutines ran one after the other. On a busy machine root gets them for the test
// binary with chrt -f 1.
func BenchmarkRatioParallel(b *testing.B) {
	for _, goroutines := range []int{2, 16, 128} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			parallel := func(ops int, f func(id string)) {
				var all sync.WaitGroup
				for g := range goroutines {
					id := volumeID + strconv.Itoa(g)
					all.Go(func() {
						for range ops / goroutines {
							f(id)
						}
					})
				}
				all.Wait()
			}
			s := set{held: map[string]struct{}{}}
			contestants := []contestant{{"set", func(ops int) {
				parallel(ops, func(id string) {
					if s.tryAcquire(id) {
						s.release(id)
					}
				})
			}}}
			for n, name := range []string{"one", "two"} {
				table := new(volumelock.Table)
				contestants = append(contestants, contestant{name, func(ops int) {
					parallel(ops, func(id string) {
						keys := [...]volumelock.Request{ex(volumelock.KindVolumeOnNode, id), ex(volumelock.KindTarget, id)}
						h, err := table.Acquire(benchOp, keys[:n+1]...)
						if err == nil {
							h.Release()
						}
					})
				}})
			}
			rounds(b, 1_000_000, contestants) // shorter ones measure how goroutines start
		})
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	for n, name := range []string{"none", "one", "two", "three"} {
		b.Run(name, func(b *testing.B) {
			var table volumelock.Table
			b.ReportAllocs()
			for b.Loop() {
				h, err := table.Acquire(benchOp, benchKeys[:n]...)
				if err != nil {
					b.Fatal(err)
				}
				h.Release()
			}
		})
	}
	b.Run("shared beside 200", func(b *testing.B) {
		var table volumelock.Table
		for range 200 {
			if _, err := table.Acquire(benchOp, benchKeys[0]); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			h, err := table.Acquire(benchOp, benchKeys[0])
			if err != nil {
				b.Fatal(err)
			}
			h.Release()
		}
	})
	b.Run("busy", func(b *testing.B) {
		var table volumelock.Table
		if _, err := table.Acquire(benchOp, benchKeys[1]); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := table.Acquire(benchOp, benchKeys[1]); err == nil {
				b.Fatal("not busy")
			}
		}
	})
}
