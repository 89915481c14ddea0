package bench

import (
	"slices"
	"testing"
	"time"
)

// way is one of the two implementations.
type way struct {
	name  string
	do    func() error // measured
	undo  func() error // called after each do, not measured; may be nil
	times int          // runs per round; 0 means one. Fast ones need more.
}

// ratio alternates between the two, so that both run under the same load, and reports the
// median of each and how many times faster ours is.
func ratio(b *testing.B, theirs, ours way) {
	var slow, fast []time.Duration
	for b.Loop() {
		slow = theirs.round(b, slow)
		fast = ours.round(b, fast)
	}
	b.ReportMetric(0, "ns/op") // suppress it: the sum of both has no meaning
	b.ReportMetric(micros(slow), "µs/"+theirs.name)
	b.ReportMetric(micros(fast), "µs/"+ours.name)
	b.ReportMetric(micros(slow)/micros(fast), "times-faster")
}

func (w way) round(b *testing.B, spent []time.Duration) []time.Duration {
	for range max(w.times, 1) {
		start := time.Now()
		err := w.do()
		spent = append(spent, time.Since(start))
		if err == nil && w.undo != nil {
			err = w.undo()
		}
		if err != nil {
			b.Fatalf("%s: %v", w.name, err)
		}
	}
	return spent
}

// micros is the median in microseconds.
func micros(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e3
}
