//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the table says about tests that passed, failed and were not run.
func TestSuiteTable(t *testing.T) {
	var specs []spec
	if err := json.Unmarshal([]byte(`[
{"LeafNodeType": "BeforeSuite", "State": "passed"},
{"ContainerHierarchyTexts": ["External Storage [Driver: d]", "[Testpattern: Dynamic PV (ext4)] volumes"], "LeafNodeType": "It", "LeafNodeText": "should store data", "State": "passed"},
{"ContainerHierarchyTexts": ["External Storage [Driver: d]", "[Testpattern: Dynamic PV (xfs)] [Feature:X] volumes [Feature:Y]", "inner"], "LeafNodeType": "It", "LeafNodeText": "should store data", "State": "passed"},
{"ContainerHierarchyTexts": ["External Storage [Driver: d]", "[Testpattern: Dynamic PV] volumes"], "LeafNodeType": "It", "LeafNodeText": "should fail [Serial]", "State": "failed", "Failure": {"Message": "pod\n was not ready"}},
{"ContainerHierarchyTexts": ["External Storage [Driver: d]", "[Testpattern: Inline] volumes"], "LeafNodeType": "It", "LeafNodeText": "should store data", "State": "skipped", "Failure": {"Message": "Driver d does not support this - skipping"}},
{"ContainerHierarchyTexts": ["External Storage [Driver: d]", "[Testpattern: Dynamic PV] stress"], "LeafNodeType": "It", "LeafNodeText": "should be slow [Slow]", "State": "skipped"},
{"ContainerHierarchyTexts": ["External Storage [Driver: d]", "[Testpattern: Dynamic PV] disruptive"], "LeafNodeType": "It", "LeafNodeText": "should restart", "State": "skipped", "Failure": {"Message": "No SSH Key: 'error reading SSH key /home/a/.ssh/id_rsa: no such file'"}},
{"ContainerHierarchyTexts": ["Other"], "LeafNodeType": "It", "LeafNodeText": "test", "State": "skipped"}
]`), &specs); err != nil {
		t.Fatal(err)
	}
	table := newSuiteTable(suiteRun{driver: "d", class: "d-ext4"}, "External.Storage", specs, []exception{slow})
	if got, want := table.counts(), "2 passed, 1 failed, 3 not run"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if table.unexpected == nil || !strings.Contains(table.unexpected.Error(), "pod was not ready") {
		t.Errorf("the failure is reported as %v", table.unexpected)
	}
	name := filepath.Join(t.TempDir(), "table.md")
	// The section of another driver stays as it is, and the driver's own is replaced.
	const other = "## e\n\ntext\n\n### The class e\n\n| a | b |\n"
	if err := os.WriteFile(name, []byte("# x\n\n## d\n\nold\n\n"+other), 0o600); err != nil {
		t.Fatal(err)
	}
	p := part{overlay: "d/deploy/overlays/o", nodes: []string{"n"}, components: []string{"c"}}
	if err := writeSuiteTables(name, "d", p, true, []*suiteTable{table}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(text), "\n\n"+other) || strings.Contains(string(text), "old") {
		t.Errorf("the other driver's section changed:\n%s", text)
	}
	for _, line := range []string{
		"`make test-cluster CLUSTER=\"-suite -long\"`, with [`storage-suite.yaml`](../../examples/d/deploy/storage-suite.yaml) and the overlay `o` with `c`, on 1 node.",
		"| volumes | should store data | Dynamic PV (ext4), Dynamic PV (xfs) |",
		"| volumes | should fail | Dynamic PV | failed: pod was not ready |",
		"| 1 | Driver d does not support this |",
		"| 1 | No SSH Key |", // without the paths of one machine
		"| 1 | " + slow.why + " |",
	} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}
