package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// An explanation says why a mutant survives.
type explanation struct {
	id    string
	kind  string // equivalent: nothing changes that a caller could see; unseen: the check cannot see it
	where string
	why   string
}

// readExplained reads lines of four columns.
func readExplained(path string) (map[string]explanation, error) {
	all := map[string]explanation{}
	if path == "" {
		return all, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[1] != "equivalent" && f[1] != "unseen" || f[3] == "" {
			return nil, fmt.Errorf("%s:%d: want an id, equivalent or unseen, the place, and the reason, with tabs between", path, i+1)
		}
		if _, twice := all[f[0]]; twice {
			return nil, fmt.Errorf("%s:%d: %s is there twice", path, i+1, f[0])
		}
		all[f[0]] = explanation{f[0], f[1], f[2], f[3]}
	}
	return all, nil
}

// A count is a row of a table.
type count struct{ killed, timedOut, survived, unseen, equivalent, notBuilt, failed int }

func (c *count) add(x result, e explanation) {
	switch {
	case x.Status == killed:
		c.killed++
	case x.Status == timedOut:
		c.timedOut++
	case x.Status == notBuilt:
		c.notBuilt++
	case x.Status == failed:
		c.failed++
	case e.kind == "equivalent":
		c.equivalent++
	case e.kind == "unseen":
		c.unseen++
	default:
		c.survived++
	}
}

// share of the mutants that change behaviour which are killed.
func (c *count) share() string {
	n := c.killed + c.timedOut
	of := n + c.survived + c.unseen
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}

// report prints what happened. It is not ok when a survivor has no explanation, when an
// explanation has no survivor, or when a mutant could not be run.
func report(w io.Writer, all []*mutant, results map[*mutant]result, known map[string]explanation) (ok bool) {
	ok = true
	total, byOp, byFile := &count{}, map[string]*count{}, map[string]*count{}
	at := func(m map[string]*count, key string) *count {
		if m[key] == nil {
			m[key] = &count{}
		}
		return m[key]
	}
	exists := map[string]bool{}
	for _, m := range all {
		exists[m.ID] = true
		x, done := results[m]
		if !done {
			continue
		}
		e, explained := known[m.ID]
		for _, c := range []*count{total, at(byOp, m.Op), at(byFile, m.File)} {
			c.add(x, e)
		}
		switch {
		case x.Status == survived && !explained:
			ok = false
			fmt.Fprintf(w, "\nsurvived %s %s %s\n%s", m.ID, m.where(), m.Op, m.diff())
		case x.Status == failed:
			ok = false
			fmt.Fprintf(w, "\nnot run %s %s: %s\n", m.ID, m.where(), x.Why)
		case explained && x.Status != survived:
			ok = false
			fmt.Fprintf(w, "\nexplained, but %s: %s %s\n", x.Status, m.ID, m.where())
		}
	}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		if !exists[id] {
			ok = false
			fmt.Fprintf(w, "\nexplained, but no longer there: %s %s\n", id, known[id].where)
		}
	}
	table(w, "operator", byOp)
	table(w, "file", byFile)
	fmt.Fprintf(w, "\n%d of %d mutants: %d killed, %d timed out, %d survived, %d not seen from outside, %d equivalent, %d did not build, %d could not be run; killed of those that change behaviour: %s\n",
		len(results), len(all), total.killed, total.timedOut, total.survived, total.unseen, total.equivalent, total.notBuilt, total.failed, total.share())
	return ok
}

func table(w io.Writer, title string, rows map[string]*count) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tkilled\ttimed out\tsurvived\tunseen\tequivalent\tnot built\tshare\n", title)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		c := rows[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", name, c.killed, c.timedOut, c.survived, c.unseen, c.equivalent, c.notBuilt, c.share())
	}
	_ = t.Flush()
}
