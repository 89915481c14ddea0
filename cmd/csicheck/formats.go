package main

import (
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

// A jsonReport is what -json writes. Lists are never null.
type jsonReport struct {
	Driver        string     `json:"driver"`
	VendorVersion string     `json:"vendor_version"`
	OK            bool       `json:"ok"`
	Interrupted   bool       `json:"interrupted"`
	Strict        bool       `json:"strict"`
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
	Known    bool          `json:"known,omitempty"` // failed, as in the baseline
	Reason   string        `json:"reason,omitempty"`
	Cause    string        `json:"cause,omitempty"` // the rule whose failure has the same cause
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

func printJSON(w io.Writer, r *csitest.Report) error {
	causes := map[string]string{}
	for _, group := range r.Causes() {
		for _, x := range group[1:] {
			causes[x.Rule.ID] = group[0].Rule.ID
		}
	}
	rules := make([]jsonRule, 0, len(r.Results))
	for _, x := range r.Results {
		j := jsonRule{
			ID: x.Rule.ID, Level: string(x.Rule.Level), Spec: x.Rule.Spec, Title: x.Rule.Title, Outcome: string(x.Outcome), Known: x.Known,
			Reason: x.Reason, Cause: causes[x.Rule.ID], Flag: flags[x.MissingFacility], Seconds: x.Took.Seconds(), Calls: x.Calls,
		}
		for _, f := range x.Failures {
			j.Failures = append(j.Failures, jsonFailure{Got: f.Got, Want: f.Want, Reproduce: f.Reproduce, Text: f.String()})
		}
		rules = append(rules, j)
	}
	text, err := json.MarshalIndent(jsonReport{
		Driver: r.Driver.GetName(), VendorVersion: r.Driver.GetVendorVersion(), OK: r.OK(), Interrupted: r.Interrupted, Strict: r.Strict, DryRun: r.DryRun,
		Begin: r.Begin, Seconds: r.Took.Seconds(), Calls: len(r.Calls), NotCleaned: append([]string{}, r.NotCleaned...), Rules: rules,
	}, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
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

// printJUnit counts a failure that does not count as skipped, as JUnit has no warnings.
// Whatever else keeps a report from being OK is a separate case.
func printJUnit(w io.Writer, r *csitest.Report) error {
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
		case counts(r, x):
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
	_, err = w.Write(append([]byte(xml.Header), append(text, '\n')...))
	return err
}

// counts reports whether the result of a rule that failed keeps the report from being OK.
func counts(r *csitest.Report, x csitest.Result) bool {
	return x.Outcome == csitest.Failed && !x.Known && (r.Strict || x.Rule.Level == csitest.Must)
}

// printTAP prints version 14 of the Test Anything Protocol. A failure that does not count is
// a TODO.
func printTAP(w io.Writer, r *csitest.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 14\n1..%d\n", len(r.Results)+1)
	for i, x := range r.Results {
		ok, directive := "ok", ""
		switch x.Outcome {
		case csitest.Passed:
		case csitest.Failed, csitest.Broken:
			ok = "not ok"
			if x.Outcome == csitest.Failed && !counts(r, x) {
				directive = " # TODO " + string(x.Rule.Level)
			}
		default:
			directive = " # SKIP " + oneLine(x.Reason)
		}
		fmt.Fprintf(&b, "%s %d - %s: %s%s\n", ok, i+1, x.Rule.ID, x.Rule.Title, directive)
		for _, f := range x.Failures {
			fmt.Fprintf(&b, "# %s\n", strings.ReplaceAll(f.String(), "\n", "\n# "))
		}
	}
	ok := "ok"
	if len(r.NotCleaned) > 0 || r.Interrupted {
		ok = "not ok"
	}
	fmt.Fprintf(&b, "%s %d - nothing is left behind, and all rules were run\n", ok, len(r.Results)+1)
	for _, left := range r.NotCleaned {
		fmt.Fprintf(&b, "# %s\n", oneLine(left))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printGitHub prints the text report and an annotation for each failure, as workflow commands
// of GitHub Actions.
func printGitHub(w io.Writer, r *csitest.Report) error {
	escape := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace
	annotate := func(command, title, text string) {
		// A title is a property, where these two end it.
		title = strings.NewReplacer(":", "%3A", ",", "%2C").Replace(escape(title))
		fmt.Fprintf(w, "::%s title=%s::%s\n", command, title, escape(text))
	}
	for _, x := range append(r.ResultsWith(csitest.Broken), r.ResultsWith(csitest.Failed)...) {
		command := "error"
		if x.Outcome == csitest.Failed && !counts(r, x) {
			command = "warning"
		}
		text := x.Rule.Title + "\n" + x.Reason
		for _, f := range x.Failures {
			text += "\n" + f.String()
		}
		annotate(command, "csicheck "+x.Rule.ID, text)
	}
	for _, left := range r.NotCleaned {
		annotate("error", "csicheck: left behind", left)
	}
	print(w, r, false)
	return nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
