package csitest

import (
	"slices"
	"strings"
	"testing"
)

// Rules are selected by the sentences that they check.
func TestRulesOfSentences(t *testing.T) {
	ids := func(patterns ...string) (all []string) {
		for _, r := range Rules(patterns...) {
			all = append(all, r.ID)
		}
		return all
	}
	for _, s := range Sentences() {
		if got := ids("spec:" + strings.ToUpper(s.Key)); len(s.Rules) > 0 && !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(s.Rules))) {
			t.Errorf("spec:%s: %s, want %s", s.Key, got, s.Rules)
		}
	}
	if got := ids("spec:starting_token` is not valid"); !slices.Contains(got, "controller.list.bad-token") || !slices.Contains(got, "controller.snapshot.list-bad-token") || len(got) > 10 {
		t.Errorf("by words: %s", got)
	}
	if got := ids("spec:no such words", "node.publish.mounts"); !slices.Equal(got, []string{"node.publish.mounts"}) {
		t.Errorf("beside an ID: %s", got)
	}
	if got := ids("spec:"); len(got) > 0 {
		t.Errorf("of nothing: %s", got)
	}
}
