// Package versus benchmarks two implementations against each other; the result is a ratio.
package versus

import (
	"slices"
	"testing"
	"time"
)

// Way is one of the two implementations.
type Way struct {
	Name  string
	Do    func() error // measured
	Undo  func() error // called after each Do, not measured; may be nil
	Times int          // runs per round; 0 means one. Fast ones need more.
}

// Ratio alternates between the two, so that both run under the same load, and reports the
// median of each and how many times faster ours is.
func Ratio(b *testing.B, theirs, ours Way) {
	var slow, fast []time.Duration
	for b.Loop() {
		slow = theirs.round(b, slow)
		fast = ours.round(b, fast)
	}
	b.ReportMetric(0, "ns/op") // suppress it: the sum of both has no meaning
	b.ReportMetric(Micros(slow), "µs/"+theirs.Name)
	b.ReportMetric(Micros(fast), "µs/"+ours.Name)
	b.ReportMetric(Micros(slow)/Micros(fast), "times-faster")
}

func (w Way) round(b *testing.B, spent []time.Duration) []time.Duration {
	for range max(w.Times, 1) {
		start := time.Now()
		err := w.Do()
		spent = append(spent, time.Since(start))
		if err == nil && w.Undo != nil {
			err = w.Undo()
		}
		if err != nil {
			b.Fatalf("%s: %v", w.Name, err)
		}
	}
	return spent
}

// Micros is the median in microseconds.
func Micros(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e3
}
