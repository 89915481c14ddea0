package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/csikit/csikit/csitest"
)

// check runs the rules and reports.
func (o *options) check(ctx context.Context, stdout, stderr io.Writer) (ok bool, err error) {
	if isTerminal(stderr) {
		o.cfg.Progress = func(p csitest.Progress) {
			fmt.Fprintf(stderr, "\r\x1b[K%3d/%d  %5d calls  %4.0f s  %s", p.Done, p.Total, p.Calls, p.Elapsed.Seconds(), p.Rule.ID)
		}
		defer fmt.Fprint(stderr, "\r\x1b[K")
	} else {
		last := time.Now()
		o.cfg.Progress = func(p csitest.Progress) {
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
	print(stdout, report, isTerminal(stdout))
	return report.OK(), o.write(report)
}

// write writes the files that were asked for.
func (o *options) write(report *csitest.Report) error {
	for _, f := range []struct {
		path  string
		write func(string, *csitest.Report) error
	}{{o.json, writeJSON}, {o.junit, writeJUnit}, {o.html, writeHTML}} {
		if f.path == "" {
			continue
		}
		if err := f.write(f.path, report); err != nil {
			return err
		}
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
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
	for _, x := range append(r.ResultsWith(csitest.Broken), r.ResultsWith(csitest.Failed)...) {
		mark := paint("31;1", "FAILED "+string(x.Rule.Level))
		if x.Rule.Level == csitest.Should {
			mark = paint("33;1", "FAILED SHOULD")
		}
		if x.Outcome == csitest.Broken {
			mark = paint("35;1", "BROKEN (a bug of csicheck)")
		}
		fmt.Fprintf(w, "%s %s\n  %s\n", mark, paint("1", x.Rule.ID), x.Rule.Title)
		if x.Reason != "" {
			fmt.Fprintln(w, indent(x.Reason))
		}
		for _, f := range x.Failures {
			fmt.Fprintln(w, indent(f.String()))
		}
		fmt.Fprintln(w)
	}
	for _, left := range r.NotCleaned {
		fmt.Fprintln(w, paint("31;1", "LEFT BEHIND"), left)
	}
	printNotRun(w, r)
	var must, should int
	for _, x := range r.ResultsWith(csitest.Failed) {
		if x.Rule.Level == csitest.Must {
			must++
		} else {
			should++
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
	fmt.Fprintf(w, "%s %s: %s. %d rules passed, %d MUST and %d SHOULD failed, %d not run, %d do not apply; %d calls in %.1f s\n",
		r.Driver.GetName(), r.Driver.GetVendorVersion(), result, len(r.ResultsWith(csitest.Passed)), must, should,
		len(r.ResultsWith(csitest.NotRun)), len(r.ResultsWith(csitest.DoesNotApply)), len(r.Calls), r.Took.Seconds())
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

// A jsonReport is what -json writes. Lists are never null.
type jsonReport struct {
	Driver        string     `json:"driver"`
	VendorVersion string     `json:"vendor_version"`
	OK            bool       `json:"ok"`
	Interrupted   bool       `json:"interrupted"`
	DryRun        bool       `json:"dry_run"`
	Begin         time.Time  `json:"begin"`
	Seconds       float64    `json:"seconds"`
	Calls         int        `json:"calls"`
	NotCleaned    []string   `json:"not_cleaned"`
	Rules         []jsonRule `json:"rules"`
}

type jsonRule struct {
	ID       string        `json:"id"`
	Level    string        `json:"level"`
	Spec     string        `json:"spec"`
	Title    string        `json:"title"`
	Outcome  string        `json:"outcome"`
	Reason   string        `json:"reason,omitempty"`
	Flag     string        `json:"flag,omitempty"`
	Seconds  float64       `json:"seconds"`
	Calls    int           `json:"calls"`
	Failures []jsonFailure `json:"failures,omitempty"`
}

type jsonFailure struct {
	Got       string `json:"got"`
	Want      string `json:"want"`
	Reproduce string `json:"reproduce"`
	Text      string `json:"text"`
}

func writeJSON(path string, r *csitest.Report) error {
	rules := make([]jsonRule, 0, len(r.Results))
	for _, x := range r.Results {
		j := jsonRule{
			ID: x.Rule.ID, Level: string(x.Rule.Level), Spec: x.Rule.Spec, Title: x.Rule.Title, Outcome: string(x.Outcome),
			Reason: x.Reason, Flag: flags[x.MissingFacility], Seconds: x.Took.Seconds(), Calls: x.Calls,
		}
		for _, f := range x.Failures {
			j.Failures = append(j.Failures, jsonFailure{Got: f.Got, Want: f.Want, Reproduce: f.Reproduce, Text: f.String()})
		}
		rules = append(rules, j)
	}
	text, err := json.MarshalIndent(jsonReport{
		Driver: r.Driver.GetName(), VendorVersion: r.Driver.GetVendorVersion(), OK: r.OK(), Interrupted: r.Interrupted, DryRun: r.DryRun,
		Begin: r.Begin, Seconds: r.Took.Seconds(), Calls: len(r.Calls), NotCleaned: append([]string{}, r.NotCleaned...), Rules: rules,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// What is below is what the schemas of Ant's JUnit task and of Jenkins have in common.

type junitCase struct {
	Class   string     `xml:"classname,attr"`
	Name    string     `xml:"name,attr"`
	Time    string     `xml:"time,attr"`
	Failure *junitText `xml:"failure,omitempty"`
	Error   *junitText `xml:"error,omitempty"`
	Skipped *junitText `xml:"skipped,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

type junitSuite struct {
	XMLName    xml.Name    `xml:"testsuite"`
	Name       string      `xml:"name,attr"`
	Tests      int         `xml:"tests,attr"`
	Failures   int         `xml:"failures,attr"`
	Errors     int         `xml:"errors,attr"`
	Skipped    int         `xml:"skipped,attr"`
	Time       string      `xml:"time,attr"`
	Timestamp  string      `xml:"timestamp,attr"`
	Hostname   string      `xml:"hostname,attr"`
	Properties struct{}    `xml:"properties"`
	Cases      []junitCase `xml:"testcase"`
	Out        string      `xml:"system-out"`
	Err        string      `xml:"system-err"`
}

// decimal is a number without an exponent.
func decimal(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 6, 64) }

// writeJUnit counts a SHOULD that failed as skipped, as JUnit has no warnings. Whatever else
// keeps a report from being OK is a separate case.
func writeJUnit(path string, r *csitest.Report) error {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	s := junitSuite{
		Name: "csicheck " + r.Driver.GetName(), Tests: len(r.Results), Time: decimal(r.Took),
		Timestamp: r.Begin.UTC().Format("2006-01-02T15:04:05"), Hostname: host,
	}
	besides := func(name, message, text string) {
		s.Cases = append(s.Cases, junitCase{Class: r.Driver.GetName(), Name: name, Time: decimal(0), Error: &junitText{Message: message, Type: name, Text: text}})
		s.Tests, s.Errors = s.Tests+1, s.Errors+1
	}
	for _, x := range r.Results {
		c := junitCase{Class: r.Driver.GetName(), Name: x.Rule.ID, Time: decimal(x.Took)}
		text := &junitText{Message: x.Rule.Title, Type: string(x.Rule.Level), Text: x.Reason}
		for _, f := range x.Failures {
			text.Text += f.String() + "\n"
		}
		switch {
		case x.Outcome == csitest.Broken:
			c.Error, s.Errors = text, s.Errors+1
		case x.Outcome == csitest.Failed && x.Rule.Level == csitest.Must:
			c.Failure, s.Failures = text, s.Failures+1
		case x.Outcome != csitest.Passed:
			text.Message = string(x.Outcome)
			c.Skipped, s.Skipped = text, s.Skipped+1
		}
		s.Cases = append(s.Cases, c)
	}
	if len(r.NotCleaned) > 0 {
		besides("cleanup", "something was left behind", strings.Join(r.NotCleaned, "\n"))
	}
	if r.Interrupted {
		besides("interrupted", "not all rules were run", "")
	}
	text, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(xml.Header), append(text, '\n')...), 0o644)
}
