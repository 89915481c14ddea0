package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/csikit/csikit/csitest"
)

// check runs the rules and reports.
func (o *options) check(ctx context.Context, stdout, stderr io.Writer) (ok bool, err error) {
	if isTerminal(stderr) {
		o.cfg.Progress = func(p csitest.Progress) {
			if text := failed(p); text != "" {
				fmt.Fprintf(stderr, "\r\x1b[K%s\n", text)
			}
			fmt.Fprintf(stderr, "\r\x1b[K%3d/%d  %5d calls  %4.0f s  %s", p.Done, p.Total, p.Calls, p.Elapsed.Seconds(), p.Rule.ID)
		}
		defer fmt.Fprint(stderr, "\r\x1b[K")
	} else {
		last := time.Now()
		o.cfg.Progress = func(p csitest.Progress) {
			if text := failed(p); text != "" {
				fmt.Fprintln(stderr, text)
			}
			if time.Since(last) > 10*time.Second {
				last = time.Now()
				fmt.Fprintf(stderr, "%d/%d rules, %d calls, %.0f s: %s\n", p.Done, p.Total, p.Calls, p.Elapsed.Seconds(), p.Rule.ID)
			}
		}
	}
	report, err := csitest.Check(ctx, o.target, o.cfg)
	if err != nil {
		return false, err
	}
	if isTerminal(stderr) {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	if err := printers[o.format](stdout, report); err != nil {
		return false, fmt.Errorf("print the report: %w", err)
	}
	return report.OK(), o.write(report)
}

// failed is a line about a rule that has just failed, or nothing.
func failed(p csitest.Progress) string {
	if p.Result == nil || p.Result.Outcome != csitest.Failed && p.Result.Outcome != csitest.Broken || p.Result.Known {
		return ""
	}
	text := fmt.Sprintf("%s %s %s: %s", p.Result.Outcome, p.Rule.Level, p.Rule.ID, p.Rule.Title)
	if len(p.Result.Failures) > 0 {
		text += "\n    got " + oneLine(fmt.Sprintf("%.200s", p.Result.Failures[0].Got))
	}
	return text
}

// printers are the values of -format.
var printers = map[string]func(io.Writer, *csitest.Report) error{
	"text": func(w io.Writer, r *csitest.Report) error {
		print(w, r, isTerminal(w))
		return nil
	},
	"json":   printJSON,
	"junit":  printJUnit,
	"tap":    printTAP,
	"github": printGitHub,
}

// write writes the files that were asked for.
func (o *options) write(report *csitest.Report) error {
	for _, f := range []struct {
		path  string
		print func(io.Writer, *csitest.Report) error
	}{{o.json, printJSON}, {o.junit, printJUnit}, {o.html, printHTML}} {
		if f.path == "" {
			continue
		}
		var b bytes.Buffer
		if err := f.print(&b, report); err != nil {
			return err
		}
		if err := os.WriteFile(f.path, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// print writes the report for a person: failures first, on one screen.
func print(w io.Writer, r *csitest.Report, color bool) {
	paint := func(code, s string) string {
		if !color {
			return s
		}
		return "\x1b[" + code + "m" + s + "\x1b[0m"
	}
	causes := r.Causes()
	for _, x := range r.ResultsWith(csitest.Broken) {
		printResult(w, paint, x)
	}
	for _, group := range causes {
		printResult(w, paint, group[0], group[1:]...)
	}
	for _, left := range r.NotCleaned {
		fmt.Fprintln(w, paint("31;1", "LEFT BEHIND"), left)
	}
	printNotRun(w, r)
	var must, should, known int
	for _, x := range r.ResultsWith(csitest.Failed) {
		switch {
		case x.Known:
			known++
		case x.Rule.Level == csitest.Must:
			must++
		default:
			should++
		}
	}
	knownText := ""
	if known > 0 {
		knownText = fmt.Sprintf("%d known failures, ", known)
	}
	causesText := ""
	if failed := must + should + known; len(causes) < failed {
		causesText = fmt.Sprintf("for %d causes, ", len(causes))
		if len(causes) == 1 {
			causesText = "for one cause, "
		}
	}
	result := paint("32;1", "passed")
	if !r.OK() {
		result = paint("31;1", "failed")
	}
	if r.Interrupted {
		result = paint("31;1", "interrupted")
	}
	if r.DryRun {
		result = "dry run"
	}
	fmt.Fprintf(w, "%s %s: %s. %d rules passed, %d MUST and %d SHOULD failed, %s%s%d not run, %d do not apply; %d calls in %.1f s\n",
		r.Driver.GetName(), r.Driver.GetVendorVersion(), result, len(r.ResultsWith(csitest.Passed)), must, should, knownText, causesText,
		len(r.ResultsWith(csitest.NotRun)), len(r.ResultsWith(csitest.DoesNotApply)), len(r.Calls), r.Took.Seconds())
}

// printResult writes a result that is not good, and names the rules that failed for the same cause.
func printResult(w io.Writer, paint func(code, s string) string, x csitest.Result, same ...csitest.Result) {
	mark := paint("31;1", "FAILED "+string(x.Rule.Level))
	if x.Rule.Level == csitest.Should {
		mark = paint("33;1", "FAILED SHOULD")
	}
	if x.Outcome == csitest.Broken {
		mark = paint("35;1", "BROKEN (a bug of csicheck)")
	}
	if x.Known {
		mark = paint("2", "KNOWN FAILURE "+string(x.Rule.Level))
	}
	fmt.Fprintf(w, "%s %s\n  %s\n", mark, paint("1", x.Rule.ID), x.Rule.Title)
	if x.Reason != "" {
		fmt.Fprintln(w, indent(x.Reason))
	}
	for _, f := range x.Failures {
		fmt.Fprintln(w, indent(f.String()))
	}
	if len(same) > 0 {
		ids := make([]string, len(same))
		for i, y := range same {
			ids[i] = y.Rule.ID
		}
		fmt.Fprintf(w, "  %s\n%s\n", paint("1", fmt.Sprintf("%d more rules failed for the same cause:", len(same))), indent(wrap(strings.Join(ids, " "), 100)))
	}
	fmt.Fprintln(w)
}

// printNotRun groups what was not run by what would run it.
func printNotRun(w io.Writer, r *csitest.Report) {
	var reasons []string
	ids := map[string][]string{}
	for _, x := range r.ResultsWith(csitest.NotRun) {
		reason := x.Reason
		if f := flags[x.MissingFacility]; f != "" {
			reason += "; give " + f
		}
		if ids[reason] == nil {
			reasons = append(reasons, reason)
		}
		ids[reason] = append(ids[reason], x.Rule.ID)
	}
	for _, reason := range reasons {
		some := ids[reason]
		if !r.DryRun && len(some) > 4 {
			some = append(some[:4:4], fmt.Sprintf("and %d more", len(ids[reason])-4))
		}
		fmt.Fprintf(w, "not run, %s: %s\n", reason, strings.Join(some, ", "))
	}
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }
