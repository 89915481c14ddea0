package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/csikit/csikit/csitest"
)

// readReport reads what -json has written.
func readReport(path string) (r jsonReport, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s is not a report of csicheck -json: %w", path, err)
	}
	if len(r.Rules) == 0 {
		return r, fmt.Errorf("%s is not a report of csicheck -json: it has no rules", path)
	}
	return r, nil
}

// failed returns the rules that failed.
func (r jsonReport) failed() (ids []string) {
	for _, x := range r.Rules {
		if x.Outcome == string(csitest.Failed) {
			ids = append(ids, x.ID)
		}
	}
	return ids
}

// compare prints the rules whose outcomes differ between two reports. ok is false if one of
// level MUST failed only in the second.
func compare(w io.Writer, args []string) (ok bool, err error) {
	if len(args) != 2 {
		return false, errors.New("usage: csicheck compare A.json B.json")
	}
	before, err := readReport(args[0])
	if err != nil {
		return false, err
	}
	after, err := readReport(args[1])
	if err != nil {
		return false, err
	}
	was := map[string]string{}
	for _, x := range before.Rules {
		was[x.ID] = x.Outcome
	}
	ok = true
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(id, level, a, b string) { fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", id, level, a, b) }
	changed := 0
	for _, x := range after.Rules {
		a, known := was[x.ID]
		delete(was, x.ID)
		if !known {
			a = "-"
		}
		if a == x.Outcome {
			continue
		}
		if changed++; changed == 1 {
			row("RULE", "LEVEL", "BEFORE", "AFTER")
		}
		row(x.ID, x.Level, a, x.Outcome)
		if x.Outcome == string(csitest.Failed) && x.Level == string(csitest.Must) {
			ok = false
		}
	}
	for _, x := range before.Rules {
		if _, gone := was[x.ID]; gone {
			if changed++; changed == 1 {
				row("RULE", "LEVEL", "BEFORE", "AFTER")
			}
			row(x.ID, x.Level, x.Outcome, "-")
		}
	}
	if err := tw.Flush(); err != nil {
		return false, err
	}
	fmt.Fprintf(w, "%d of %d rules differ\n", changed, len(after.Rules))
	return ok, nil
}
