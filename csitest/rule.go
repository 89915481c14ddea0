package csitest

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// A Level is the requirement level of a rule.
type Level string

// The levels of RFC 2119 that rules have.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
)

// A Rule is one requirement that a driver has to meet.
type Rule struct {
	ID    string // stable: area.rpc.what
	Level Level
	Spec  string // the section of spec.md, or the sidecar that demands it
	Title string // the requirement
	Why   string // what goes wrong otherwise
	Needs []Need
	// Timeout limits one run of the rule; 0 is [DefaultTimeout].
	Timeout time.Duration

	check      func(*ruleRun)          // exactly one of the two
	checkCalls func(*ruleRun, []*Call) // runs last, over the calls of all rules
}

// DefaultTimeout is the timeout of rules without one.
const DefaultTimeout = time.Minute

// Rules returns the rules that one of the patterns selects, or every rule if there
// is none, in the order in which they run. A pattern is the id of a rule, the
// beginning of some that ends in a dot ("node."), a glob, or "spec:" and a part of the key or of
// the words of a sentence that rules check ("spec:ListVolumes-Errors/", "spec:limit_bytes"; see
// [Sentences]).
func Rules(patterns ...string) []Rule {
	all := slices.Concat(
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
		conflictRules,
		validateRules,
		expandRules,
		modifyRules,
		snapshotRules,
		snapshotLifecycleRules,
		metadataRules,
		contentRules,
		groupRules,
		healthRules,
		sourceRules,
		consistencyRules,
		interruptedRules,
		nodeRules,
		kernelRules,
		mountRules,
		mountGroupRules,
		restartRules,
		secretRules,
		hostileRules,
		exceedingRules,
		kubernetesRules,
		sidecarRules,
		logRules,
		storageRules,
		// These check the calls of all others and come last.
		statusRules,
		responseRules,
		storageOfRun,
	)
	if len(patterns) == 0 {
		return all
	}
	bySentence := map[string]bool{}
	for _, p := range patterns {
		if text, found := strings.CutPrefix(p, "spec:"); found && text != "" {
			maps.Copy(bySentence, rulesOfSentences(text))
		}
	}
	return slices.DeleteFunc(all, func(r Rule) bool {
		return !bySentence[r.ID] && !slices.ContainsFunc(patterns, func(p string) bool {
			matched, _ := path.Match(p, r.ID)
			return matched || p == r.ID || strings.HasSuffix(p, ".") && strings.HasPrefix(r.ID, p)
		})
	})
}
