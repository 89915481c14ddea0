package exportdir

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/csitest/nfsd"
)

// TestRulesTorture kills the driver at random times under a mix of all RPCs, and checks
// what is left on the share: 40 times, or 500 with CSIKIT_TORTURE=1.
func TestRulesTorture(t *testing.T) {
	shares := newShares(t)
	tortureRules(t, localClass, "localdriver", "-exports", localExports)
	wantShare(t, filepath.Join(shares, "a"))
}

// TestNFSRulesTorture is TestRulesTorture with a server.
func TestNFSRulesTorture(t *testing.T) {
	s := nfsd.Start(t)
	source := s.Export("share", writable)
	t.Run("grace", func(t *testing.T) { newCO(t, startNFS(t), classOf(s, "share")).graceful() })
	dir := t.TempDir()
	tortureRules(t, classOf(s, "share"), "nfsdriver", "-exports", source, "-mount-dir", dir)
	wantShare(t, s.Dir("share"))
	if m := mountsBelow(t, dir); len(m) > 0 {
		t.Errorf("mounts are left: %v", m)
	}
}

func tortureRules(t *testing.T, class map[string]string, role string, args ...string) {
	kills, seed := 40, uint64(1)
	if os.Getenv("CSIKIT_TORTURE") == "1" {
		kills, seed = 500, uint64(time.Now().UnixNano())
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "s"), 0o700))
	endpoint := "unix://" + filepath.Join(dir, "s", "csi.sock")
	args = append([]string{"-endpoint", endpoint, "-node-id", "node", "-drain-timeout", "5s"}, args...)
	report, err := csitest.Torture(t.Context(), csitest.Target{
		Endpoint: endpoint,
		Start:    func() *exec.Cmd { return gate.RoleCommand(context.WithoutCancel(t.Context()), role, args...) },
	}, csitest.Config{Dir: dir, Size: 1 << 20, CheckMounts: true, Parameters: class}, csitest.TortureConfig{
		Kills: kills, Seed: seed, Workers: 4, Progress: func(now csitest.TortureProgress) {
			if now.Kills%50 == 0 || now.Kills == kills {
				t.Logf("%+v", now)
			}
		},
	})
	must(t, err)
	for _, x := range report.Results {
		if x.Outcome != csitest.Passed || len(report.NotCleaned) > 0 {
			t.Errorf("seed %d: %s %s %v %v", seed, x.Outcome, x.Reason, x.Failures, report.NotCleaned)
		}
	}
}
