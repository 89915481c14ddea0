package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// way is one of the implementations that are compared. run does the operation n times and
// returns how long that took, without what it has to undo.
type way struct {
	name string
	run  func(n int) (time.Duration, error)
}

// each is the run of an operation that is measured one by one; undo, which may be nil, is not.
func each(do, undo func() error) func(n int) (time.Duration, error) {
	return func(n int) (spent time.Duration, err error) {
		for range n {
			start := time.Now()
			err = do()
			spent += time.Since(start)
			if err == nil && undo != nil {
				err = undo()
			}
			if err != nil {
				return spent, err
			}
		}
		return spent, nil
	}
}

// cell is what was measured of one way in one row.
type cell struct {
	micros           float64 // per operation, the median of the rounds
	ratio, low, high float64 // to the first way, within each round: median, lowest, highest
	best             float64 // of the fastest round to that of the first way: least affected by other load
}

// row is one comparison.
type row struct {
	name  string
	x     float64 // what the plots show it against
	cells []cell  // by way
}

// compare lets the ways take turns, in another order in each round, so that all run under the
// same load.
func compare(rounds int, turn time.Duration, ways []way) ([]cell, error) {
	times := make([]int, len(ways))
	for i, w := range ways { // warm up, and find how many fit into a turn
		n := 1
		for {
			start := time.Now()
			if _, err := w.run(n); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			spent := time.Since(start)
			if spent > turn/4 || n > 1<<20 {
				times[i] = max(1, int(float64(n)*float64(turn)/float64(max(spent, 1))))
				break
			}
			n *= 2
		}
	}
	micros := make([][]float64, len(ways))
	for round := range rounds {
		for k := range ways {
			i := (k + round) % len(ways)
			spent, err := ways[i].run(times[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].name, err)
			}
			micros[i] = append(micros[i], float64(spent.Nanoseconds())/1e3/float64(times[i]))
		}
	}
	cells := make([]cell, len(ways))
	for i := range ways {
		ratios := make([]float64, rounds)
		for round := range rounds {
			ratios[round] = micros[i][round] / micros[0][round]
		}
		cells[i] = cell{median(micros[i]), median(ratios), slices.Min(ratios), slices.Max(ratios), slices.Min(micros[i]) / slices.Min(micros[0])}
	}
	return cells, nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// exponent fits y = c·xᵉ and returns e: 0 is a cost that does not grow, 1 one that grows in
// proportion.
func exponent(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range x {
		a, b := math.Log(x[i]), math.Log(y[i])
		sx, sy, sxx, sxy = sx+a, sy+b, sxx+a*a, sxy+a*b
	}
	n := float64(len(x))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// table is a group of rows with the same ways.
type table struct {
	part, title, text string
	ways              []string
	faster            bool // ratios are shown as how many times faster than the first way
	rows              []row
}

// add measures a row and prints it.
func (b *bench) add(t *table, name string, x float64, ways []way) error {
	cells, err := compare(b.rounds, b.turn, ways)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.rows = append(t.rows, row{name, x, cells})
	fmt.Printf("%s: %s:", t.part, name)
	for i, c := range cells {
		fmt.Printf(" %s %s%s", ways[i].name, duration(c.micros), t.show(i, c))
		if i < len(cells)-1 {
			fmt.Print(",")
		}
	}
	fmt.Println()
	return nil
}

// show is the ratio of a cell for readers; nothing for the first way.
func (t *table) show(way int, c cell) string {
	if way == 0 {
		return ""
	}
	if t.faster {
		return fmt.Sprintf(" (%s×, %s–%s)", digits(1/c.ratio), digits(1/c.high), digits(1/c.low))
	}
	return fmt.Sprintf(" (%s×, %s–%s)", digits(c.ratio), digits(c.low), digits(c.high))
}

func digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func duration(micros float64) string {
	switch {
	case micros >= 1e6:
		return digits(micros/1e6) + " s"
	case micros >= 1e3:
		return digits(micros/1e3) + " ms"
	case micros < 1:
		return digits(micros*1e3) + " ns"
	}
	return digits(micros) + " µs"
}

// figures are all ratios by name: part, row, way.
func (b *bench) figures() map[string]cell {
	all := make(map[string]cell)
	for _, t := range b.tables {
		for _, r := range t.rows {
			for i, c := range r.cells[1:] {
				all[t.part+": "+r.name+": "+t.ways[i+1]+" to "+t.ways[0]] = c
			}
		}
	}
	return all
}

// newTable starts a table.
func (b *bench) newTable(part, title, text string, faster bool, ways ...string) *table {
	t := &table{part: part, title: title, text: text, ways: ways, faster: faster}
	b.tables = append(b.tables, t)
	return t
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	var keys []K
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
