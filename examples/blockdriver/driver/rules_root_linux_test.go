package driver

import (
	"testing"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/memory"
)

// TestRules checks the driver with csitest.
func TestRules(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	dir := t.TempDir()
	report, err := csitest.Check(t.Context(), csitest.Target{Endpoint: serveMode(t, dir, memory.New())}, csitest.Config{Dir: dir, Size: 64 << 20, CheckMounts: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range report.Results { // a SHOULD that fails is a failure here
		if x.Outcome == csitest.Failed || x.Outcome == csitest.Broken {
			t.Errorf("%s: %s\n%s%v", x.Rule.ID, x.Rule.Title, x.Reason, x.Failures)
		}
	}
	for _, left := range report.NotCleaned {
		t.Errorf("left behind: %s", left)
	}
	for _, x := range report.ResultsWith(csitest.NotRun) {
		t.Logf("%s was not run: %s", x.Rule.ID, x.Reason)
	}
	t.Logf("%d rules passed, %d do not apply, in %v", len(report.ResultsWith(csitest.Passed)), len(report.ResultsWith(csitest.DoesNotApply)), report.Took)
}
