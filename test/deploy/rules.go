package deploy

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// A rule finds one kind of mistake. Each has a manifest in rules_test.go that breaks it.
type rule struct {
	name  string
	why   string // what happens when it is broken
	check func(c *cluster, report reporter)
}

type reporter func(object any, format string, args ...any)

// A finding is a mistake in an object.
type finding struct{ rule, object, text string }

func (f finding) String() string { return f.rule + ": " + f.object + ": " + f.text }

// lint applies all rules.
func (c *cluster) lint() (findings []finding) {
	for _, r := range rules {
		r.check(c, func(object any, format string, args ...any) {
			f := finding{r.name, nameOf(object), fmt.Sprintf(format, args...)}
			if !slices.Contains(findings, f) {
				findings = append(findings, f)
			}
		})
	}
	return findings
}

func nameOf(object any) string {
	o, ok := object.(runtime.Object)
	if !ok {
		return fmt.Sprint(object)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return err.Error()
	}
	return o.GetObjectKind().GroupVersionKind().Kind + " " + m.GetName()
}

var rules = slices.Concat(objectRules, podRules, mountRules, sidecarRules, rightsRules, lifecycleRules, metadataRules)
