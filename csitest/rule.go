package csitest

import (
	"path"
	"slices"
	"strings"
	"time"
)

// A Level is how much a rule binds.
type Level string

// The levels of RFC 2119 that rules have.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
)

// A Rule is one sentence that a driver has to keep.
type Rule struct {
	ID    string // stable: area.rpc.what
	Level Level
	Spec  string // the section of spec.md, or who else demands it
	Title string // the sentence
	Why   string // what goes wrong otherwise
	Needs []Need
	// Timeout limits one run of the rule; 0 is [DefaultTimeout].
	Timeout time.Duration

	check func(*Case)          // exactly one of the two
	judge func(*Case, []*Call) // runs last, over the calls of all rules
}

// DefaultTimeout is how long a rule may take that says nothing else.
const DefaultTimeout = time.Minute

// Rules returns every rule, in the order in which they run.
func Rules() []Rule {
	return slices.Concat(
		identityRules,
		requiredRules,
		createRules,
		deleteRules,
		capacityRules,
		topologyRules,
		rangeRules,
		listRules,
		pagingRules,
		attachRules,
		takenRules,
		validateRules,
		expandRules,
		modifyRules,
		snapshotRules,
		snapshotLifeRules,
		metadataRules,
		groupRules,
		healthRules,
		sourceRules,
		cutRules,
		interruptedRules,
		nodeRules,
		kernelRules,
		mountRules,
		restartRules,
		secretRules,
		hostileRules,
		// Judges: they come last.
		statusRules,
		responseRules,
	)
}

// selects tells whether one of the patterns is the rule's id, a prefix of it that
// ends in a dot, or a glob that matches it. No pattern selects all rules.
func selects(patterns []string, id string) bool {
	for _, p := range patterns {
		if matched, _ := path.Match(p, id); matched || p == id || strings.HasSuffix(p, ".") && strings.HasPrefix(id, p) {
			return true
		}
	}
	return len(patterns) == 0
}
