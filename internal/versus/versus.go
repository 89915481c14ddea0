// Package versus measures two ways to do one thing beside each other, for
// benchmarks whose result is a ratio.
package versus

import (
	"slices"
	"testing"
	"time"
)

// Way is one of the two.
type Way struct {
	Name  string
	Do    func() error // is measured
	Undo  func() error // follows each Do and is not measured; may be nil
	Times int          // in each round; 0 is once. What is fast needs more.
}

// Ratio runs both ways in turn, so that both have the same machine in the same
// mood, and reports the median of each and how many times faster ours is.
func Ratio(b *testing.B, theirs, ours Way) {
	var slow, fast []time.Duration
	for b.Loop() {
		slow = theirs.round(b, slow)
		fast = ours.round(b, fast)
	}
	b.ReportMetric(0, "ns/op") // of both together: means nothing
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
