package drivertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
)

// Rules runs all rules of csitest for a driver that is a process with this role of the test,
// which is killed and restarted.
func Rules(t *testing.T, class map[string]string, size int64, role string, args ...string) {
	dir := t.TempDir()
	Must(t, os.Mkdir(filepath.Join(dir, "s"), 0o700))
	endpoint := "unix://" + filepath.Join(dir, "s", "csi.sock")
	args = append([]string{"-endpoint", endpoint, "-node-id", "node", "-drain-timeout", "5s"}, args...)
	Check(t, csitest.Target{
		Endpoint: endpoint,
		Start:    func() *exec.Cmd { return gate.RoleCommand(t.Context(), role, args...) },
	}, class, size)
}

// Check runs the rules of csitest that the target allows.
func Check(t *testing.T, target csitest.Target, class map[string]string, size int64) {
	target.SecondNode = "other"
	report, err := csitest.Check(t.Context(), target, csitest.Config{Dir: t.TempDir(), Size: size, CheckMounts: true, Parameters: class, Secrets: map[string]string{"unused": "secret"}, Progress: func(p csitest.Progress) {
		if p.Result != nil {
			t.Logf("%d/%d %s: %s after %v", p.Done, p.Total, p.Rule.ID, p.Result.Outcome, p.Result.Took)
		}
	}})
	Must(t, err)
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
		// What is deleted stays in the trash for a while, and there is one process.
		if x.MissingFacility != csitest.FacilityInventory && x.MissingFacility != csitest.FacilityControllerEndpoint && target.Start != nil {
			t.Errorf("%s was not run: %s", x.Rule.ID, x.Reason)
		}
	}
	t.Logf("%d rules passed in %v", len(report.ResultsWith(csitest.Passed)), report.Took)
}
