package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/csikit/csikit/csitest"
)

// list prints the rules that are selected, as a table.
func list(w io.Writer, patterns []string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range csitest.Rules(patterns...) {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", r.ID, r.Level, r.Title)
	}
	tw.Flush()
}

// explain prints all that is known of a rule.
func explain(w io.Writer, args []string) error {
	if len(args) != 1 {
		return errors.New("explain wants the id of one rule; csicheck -list prints them")
	}
	for _, r := range csitest.Rules() {
		if r.ID != args[0] {
			continue
		}
		fmt.Fprintf(w, "%s (%s, %s)\n\n%s.\n\n%s\n", r.ID, r.Level, r.Spec, upper(r.Title), wrap(r.Why, 78))
		if len(r.Needs) > 0 {
			fmt.Fprintln(w, "\nIt needs")
		}
		for _, n := range r.Needs {
			fmt.Fprintf(w, "  %s", n.Text)
			if f := flags[n.Facility]; f != "" {
				fmt.Fprintf(w, " (%s)", f)
			}
			fmt.Fprintln(w)
		}
		checked := 0
		for _, s := range csitest.Sentences() {
			if slices.Contains(s.Rules, r.ID) {
				if checked++; checked == 1 {
					fmt.Fprintln(w, "\nIt checks these sentences of the specification (-rules spec:KEY has the others that do)")
				}
				fmt.Fprintf(w, "  %s %s\n%s\n", s.Key, s.Level, indent(wrap(s.Text, 74)))
			}
		}
		return nil
	}
	return fmt.Errorf("there is no rule %q; csicheck -list prints them", args[0])
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func wrap(s string, width int) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(s) {
		switch {
		case column == 0:
		case column+1+len(word) > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
