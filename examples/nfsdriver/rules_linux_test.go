package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
)

// TestRules checks the driver as a separate process, which is killed and restarted, with
// a directory in place of the server.
func TestRules(t *testing.T) {
	shares := newShares(t)
	checkRules(t, localClass, 1<<20, "localdriver", "-exports", localExports)
	wantShare(t, filepath.Join(shares, "a"))
}

// checkRules runs all rules of csitest for a driver with this role.
func checkRules(t *testing.T, class map[string]string, size int64, role string, args ...string) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "s"), 0o700))
	endpoint := "unix://" + filepath.Join(dir, "s", "csi.sock")
	args = append([]string{"-endpoint", endpoint, "-node-id", "node", "-drain-timeout", "5s"}, args...)
	report, err := csitest.Check(t.Context(), csitest.Target{
		Endpoint:   endpoint,
		Start:      func() *exec.Cmd { return gate.RoleCommand(t.Context(), role, args...) },
		SecondNode: "other",
	}, csitest.Config{Dir: dir, Size: size, CheckMounts: true, Parameters: class, Progress: func(p csitest.Progress) {
		if p.Result != nil {
			t.Logf("%d/%d %s: %s after %v", p.Done, p.Total, p.Rule.ID, p.Result.Outcome, p.Result.Took)
		}
	}})
	must(t, err)
	for _, x := range report.Results { // a SHOULD that fails is a failure here
		failed := x.Outcome == csitest.Failed || x.Outcome == csitest.Broken
		if failed {
			t.Errorf("%s: %s\n%s%v", x.Rule.ID, x.Rule.Title, x.Reason, x.Failures)
		}
	}
	for _, left := range report.NotCleaned {
		t.Errorf("left behind: %s", left)
	}
	for _, x := range report.ResultsWith(csitest.NotRun) {
		if x.MissingFacility != csitest.FacilityControllerEndpoint {
			t.Errorf("%s was not run: %s", x.Rule.ID, x.Reason)
		}
	}
	t.Logf("%d rules passed in %v", len(report.ResultsWith(csitest.Passed)), report.Took)
}
