package csitest

import (
	"maps"
	"slices"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
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
		if r.Title == "" || r.Why == "" || r.Spec == "" || r.Level != Must && r.Level != Should || (r.check == nil) == (r.judge == nil) {
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
	t.Run("answers", func(t *testing.T) { checkDefect(t, defect{}) })
	t.Run("mounts", func(t *testing.T) {
		gate.UserNS(t)
		checkDefect(t, defect{kernel: true})
	})
}

// A defect is found by its rule and by no other.
func TestDefects(t *testing.T) {
	for _, d := range defects {
		t.Run(d.breaks, func(t *testing.T) {
			if d.kernel {
				gate.UserNS(t)
			}
			t.Parallel()
			checkDefect(t, d)
		})
	}
}

func checkDefect(t *testing.T, d defect) {
	target, cfg := reference(t, d)
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
		case failed && want[x.Rule.ID] == "":
			t.Errorf("%s failed for no reason:\n%v", x.Rule.ID, x.Failures)
		case !failed && want[x.Rule.ID] != "":
			t.Errorf("%s did not fail, but %s: %s", x.Rule.ID, x.Outcome, x.Reason)
		}
	}
	if d.breaks == "" && !d.kernel {
		for _, x := range slices.Concat(report.With(NotRun), report.With(DoesNotApply)) {
			if elsewhere[x.Rule.ID] == "" && !needsOf(x.Rule, kernelView, twoEndpoints) {
				t.Errorf("%s was not tried: %s", x.Rule.ID, x.Reason)
			}
		}
	}
	if !d.leaves {
		for _, left := range report.NotCleaned {
			t.Errorf("not cleaned: %s", left)
		}
	}
}

func needsOf(r Rule, any ...Need) bool {
	return slices.ContainsFunc(r.Needs, func(n Need) bool {
		return slices.ContainsFunc(any, func(a Need) bool { return a.Text == n.Text })
	})
}
