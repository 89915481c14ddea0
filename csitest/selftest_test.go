package csitest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"google.golang.org/grpc/codes"
)

// Every rule has a driver that breaks it and nothing else.
func TestEveryRuleHasADefect(t *testing.T) {
	broken := map[string]bool{}
	for _, d := range defects {
		broken[d.breaks] = true
	}
	known := map[string]bool{}
	for _, r := range Rules() {
		if known[r.ID] {
			t.Errorf("%s is there twice", r.ID)
		}
		known[r.ID] = true
		if !broken[r.ID] && elsewhere[r.ID] == "" {
			t.Errorf("%s: no defect in defects_test.go breaks it", r.ID)
		}
		if r.Title == "" || r.Why == "" || r.Spec == "" || r.Level != Must && r.Level != Should || (r.check == nil) == (r.checkCalls == nil) {
			t.Errorf("%s: something is missing", r.ID)
		}
	}
	for _, d := range defects {
		if !known[d.breaks] {
			t.Errorf("a defect breaks %s, which is no rule", d.breaks)
		}
	}
}

// The reference driver keeps all the rules.
func TestReference(t *testing.T) {
	t.Run("answers", func(t *testing.T) {
		t.Parallel()
		checkDefect(t, defect{})
	})
	t.Run("mounts", func(t *testing.T) {
		gate.UserNS(t)
		t.Parallel()
		checkDefect(t, defect{kernel: true})
	})
}

// A rule needs no other before it: csicheck -rules may run it without others, and what is
// probed once for a run may be needed first by concurrent calls.
func TestReferenceRuleByRule(t *testing.T) {
	for _, rule := range Rules() {
		if rule.check == nil || elsewhere[rule.ID] != "" {
			continue
		}
		t.Run(rule.ID, func(t *testing.T) {
			t.Parallel()
			checkDefect(t, defect{rules: []string{rule.ID}, only: true})
		})
	}
}

// torture runs all rules against every defect.
var torture = os.Getenv("CSIKIT_TORTURE") == "1"

// underRace is whether the race detector is on. It makes a call six times as slow, and finds
// nothing in the hundredth run of a rule that it did not find in the first: what runs the same
// rules against one driver after the other, runs them in part. make test runs it all without
// the detector.
var underRace bool

// A defect is found by its rule and by no other. The others are a sample, unless
// CSIKIT_TORTURE=1 asks for all of them, and left out under the race detector.
func TestDefects(t *testing.T) {
	sample := sampleRules(t)
	for _, d := range defects {
		t.Run(d.breaks, func(t *testing.T) {
			if d.kernel {
				gate.UserNS(t)
			}
			if d.root {
				gate.Root(t)
			}
			t.Parallel()
			switch {
			case d.plain, d.alone:
				d.rules = []string{d.breaks}
			case torture:
			case d.only, underRace && !seenByOthers(d):
				d.rules = slices.Concat(d.rules, []string{d.breaks}, slices.Collect(maps.Keys(d.also)))
			default:
				d.rules = slices.Concat(d.rules, beside(d), sample)
			}
			checkDefect(t, d)
		})
	}
}

// seenByOthers reports whether a defect is found in what other rules do.
func seenByOthers(d defect) bool {
	return slices.ContainsFunc(append(slices.Collect(maps.Keys(d.also)), d.breaks), func(id string) bool {
		area, _, _ := strings.Cut(id, ".")
		return area == "response" || area == "status" || area == "socket"
	})
}

// sampleRules are some that together bring about every RPC, with success and with an
// error, as far as the rules do at all, with few calls, and all that check recorded calls.
func sampleRules(t *testing.T) (ids []string) {
	target, cfg := reference(t, defect{})
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	does := map[string]map[string]bool{} // what the calls of a rule are
	calls := map[string]int{}
	for _, call := range report.Calls {
		calls[call.Rule]++
		if call.Rule != "" && does[call.Rule] == nil {
			does[call.Rule] = map[string]bool{}
		}
		if call.Rule != "" && !call.Cleanup {
			does[call.Rule][fmt.Sprint(call.Method, call.Code() == codes.OK)] = true
		}
	}
	done := map[string]bool{}
	for {
		best, most := "", 0.0 // that are missing yet, by call
		for _, id := range slices.Sorted(maps.Keys(does)) {
			n := 0
			for what := range does[id] {
				if !done[what] {
					n++
				}
			}
			if by := float64(n) / float64(calls[id]); by > most {
				best, most = id, by
			}
		}
		if best == "" {
			break
		}
		maps.Copy(done, does[best])
		ids = append(ids, best)
	}
	for _, r := range Rules() {
		if r.checkCalls != nil {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// beside are the rules that the defect may be taken for: its own, those that find it
// as well, and the others of the area.
func beside(d defect) (patterns []string) {
	area, rest, _ := strings.Cut(d.breaks, ".")
	rpc, _, _ := strings.Cut(rest, ".")
	patterns = []string{d.breaks, area + "." + rpc + "."}
	for id := range d.also {
		patterns = append(patterns, id)
	}
	return patterns
}

// A rule that checks recorded calls does not pass if there are only those of the start.
func TestNoCallsToCheck(t *testing.T) {
	target, cfg := reference(t, defect{})
	cfg.Rules = []string{"response.", "status."}
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range report.Results {
		if x.Outcome != NotRun || x.MissingFacility != FacilityOtherRules {
			t.Errorf("%s: %s, missing %q", x.Rule.ID, x.Outcome, x.MissingFacility)
		}
	}
}

// After a failure that counts no other rule is run, if that is wanted.
func TestFailFast(t *testing.T) {
	i := slices.IndexFunc(defects, func(d defect) bool { return d.breaks == "controller.unpublish.volume-missing" })
	for strict, want := range map[bool]Outcome{false: Passed, true: NotRun} { // its level is SHOULD
		target, cfg := reference(t, defects[i])
		cfg.Rules, cfg.FailFast, cfg.Strict = []string{"controller.unpublish.volume-missing", "controller.modify.volume-missing"}, true, strict
		report, err := Check(t.Context(), target, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if first, then := report.Results[0].Outcome, report.Results[1].Outcome; first != Failed || then != want {
			t.Errorf("strict %t: %s, then %s; want %s, then %s", strict, first, then, Failed, want)
		}
	}
}

// tried counts the defects, for the progress of a long run: go test -v shows it.
var tried atomic.Int32

func checkDefect(t *testing.T, d defect) {
	if torture && d.breaks != "" {
		begin := time.Now()
		defer func() {
			fmt.Fprintf(os.Stderr, "%3d of %d defects, %s after %.1f s\n", tried.Add(1), len(defects), d.breaks, time.Since(begin).Seconds())
		}()
	}
	target, cfg := reference(t, d)
	cfg.Rules = d.rules
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(d.also)
	if want == nil {
		want = map[string]string{}
	}
	if d.breaks != "" {
		want[d.breaks] = d.does
	}
	for _, x := range report.Results {
		switch failed := x.Outcome == Failed; {
		case x.Outcome == Broken:
			t.Errorf("%s is broken: %s", x.Rule.ID, x.Reason)
		case x.Rule.ID == "leaks.storage" && d.breaks != x.Rule.ID: // many defects leave something
		case failed && want[x.Rule.ID] == "" && d.mayAlso[x.Rule.ID] == "":
			t.Errorf("%s failed for no reason:\n%v", x.Rule.ID, x.Failures)
		case !failed && want[x.Rule.ID] != "" && (x.Rule.ID == d.breaks || !interrupts(x.Rule.ID)):
			t.Errorf("%s did not fail, but %s: %s", x.Rule.ID, x.Outcome, x.Reason)
		}
	}
	if d.breaks == "" && !d.kernel && !d.only {
		for _, x := range slices.Concat(report.ResultsWith(NotRun), report.ResultsWith(DoesNotApply)) {
			if elsewhere[x.Rule.ID] == "" && x.Rule.ID != "node.publish.inline" && !needsOf(x.Rule, kernelView, twoEndpoints, without(createSnapshot), without(cloneVolume), without(stageVolume), without(expandVolume), offlineExpansionOnly) {
				t.Errorf("%s was not tried: %s", x.Rule.ID, x.Reason)
			}
		}
	}
	if left := report.NotCleaned; len(left) > 0 && d.leaves == "" {
		t.Errorf("not cleaned:\n%s", strings.Join(left, "\n"))
	}
}

// interrupts reports whether a rule gives up calls some milliseconds after they began. On a busy
// machine none of them reaches the driver: another defect may not show then.
func interrupts(id string) bool {
	return strings.HasSuffix(id, "after-cancel") || strings.HasSuffix(id, "after-deadline")
}

func needsOf(r Rule, any ...Need) bool {
	return slices.ContainsFunc(r.Needs, func(n Need) bool {
		return slices.ContainsFunc(any, func(a Need) bool { return a.Text == n.Text })
	})
}
