package csitest

import (
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
)

// An Outcome is the outcome of a rule.
type Outcome string

// The outcomes.
const (
	Passed       Outcome = "passed"
	Failed       Outcome = "failed"
	DoesNotApply Outcome = "does not apply" // the driver lacks a capability
	NotRun       Outcome = "not run"        // a Facility is missing
	Broken       Outcome = "broken"         // a bug of this package
)

// A Result is the outcome of one rule.
type Result struct {
	Rule            Rule
	Outcome         Outcome
	Reason          string   // why it does not apply, was not run, or is broken
	MissingFacility Facility // the Facility that the rule needs
	Failures        []Failure
	Known           bool // it failed, and is one of Config.KnownFailures
	Begin           time.Time
	Took            time.Duration
	Calls           int
}

// A Report is the result of a run.
type Report struct {
	Driver       *csi.GetPluginInfoResponse
	Capabilities csispec.Capabilities
	Results      []Result // in the order of Rules
	Calls        []*Call  // all, in the order of their ends
	// NotCleaned is what is left in the storage, below Config.Dir, and attached to the node, one line each.
	NotCleaned []string
	// ExitStates are the exit states of the driver processes that Check started.
	ExitStates  []string
	Interrupted bool
	Strict      bool // as in Config
	DryRun      bool
	Begin       time.Time
	Took        time.Duration
}

// OK reports whether no MUST failed, nor a SHOULD if the report is strict, but for known
// failures, and nothing is broken, left behind or interrupted.
func (r *Report) OK() bool {
	for _, x := range r.Results {
		if x.Outcome == Broken || x.Outcome == Failed && !x.Known && (r.Strict || x.Rule.Level == Must) {
			return false
		}
	}
	return len(r.NotCleaned) == 0 && !r.Interrupted
}

// ResultsWith returns the results of that outcome.
func (r *Report) ResultsWith(o Outcome) (some []Result) {
	for _, x := range r.Results {
		if x.Outcome == o {
			some = append(some, x)
		}
	}
	return some
}

// String describes the failure in a few lines: what was sent, what was received, what was
// expected, and a command that reproduces it.
func (f Failure) String() string {
	var b strings.Builder
	if f.Call != nil {
		fmt.Fprintf(&b, "sent      %s %s\n", f.Call.Method, requestJSON(f.Call.Request))
	}
	fmt.Fprintf(&b, "got       %s\nwanted    %s\nreproduce %s", f.Got, f.Want, f.Reproduce)
	return b.String()
}
