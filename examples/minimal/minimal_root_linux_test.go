package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTarget is the driver as a process, with an empty store.
func newTarget(t *testing.T) (dir string, target csitest.Target) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	dir = t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "s"), 0o700)) // only for the socket
	must(t, os.MkdirAll(filepath.Join(dir, "volumes"), 0o700))
	endpoint := "unix://" + filepath.Join(dir, "s", "csi.sock")
	return dir, csitest.Target{Endpoint: endpoint, Start: func() *exec.Cmd {
		return gate.RoleCommand(t.Context(), "minimal", "-endpoint", endpoint, "-dir", filepath.Join(dir, "volumes"), "-node-id", "node")
	}}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the store: %v, %v", left, err)
	}
}

// TestRules runs every rule, and takes one that should be kept as one that has to be.
func TestRules(t *testing.T) {
	dir, target := newTarget(t)
	report, err := csitest.Check(t.Context(), target, csitest.Config{Dir: dir, Size: 32 << 20, CheckMounts: true})
	must(t, err)
	for _, x := range report.Results {
		if x.Outcome == csitest.Failed || x.Outcome == csitest.Broken {
			t.Errorf("%s: %s\n%s%v", x.Rule.ID, x.Rule.Title, x.Reason, x.Failures)
		}
		if x.Outcome == csitest.NotRun && x.MissingFacility != csitest.FacilityControllerEndpoint && x.MissingFacility != csitest.FacilitySecondNode {
			t.Errorf("%s was not run: %s", x.Rule.ID, x.Reason)
		}
	}
	if len(report.NotCleaned) > 0 {
		t.Errorf("left behind: %v", report.NotCleaned)
	}
	wantEmpty(t, dir)
	t.Logf("%d rules passed in %v", len(report.ResultsWith(csitest.Passed)), report.Took)
}

// TestKills kills the driver under a mix of all calls.
func TestKills(t *testing.T) {
	dir, target := newTarget(t)
	report, err := csitest.Torture(t.Context(), target, csitest.Config{Dir: dir, Size: 16 << 20, CheckMounts: true}, csitest.TortureConfig{Kills: 20, Seed: 1})
	must(t, err)
	for _, x := range report.Results {
		if x.Outcome != csitest.Passed || len(report.NotCleaned) > 0 {
			t.Errorf("%s %s %v %v", x.Outcome, x.Reason, x.Failures, report.NotCleaned)
		}
	}
	wantEmpty(t, dir)
}

// TestSanity runs csi-sanity for both access types.
func TestSanity(t *testing.T) {
	for _, accessType := range []string{"mount", "block"} {
		dir, target := newTarget(t)
		start(t, target.Start())
		cfg := sanity.NewTestConfig()
		cfg.Address = target.Endpoint
		cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
		cfg.TestVolumeAccessType, cfg.TestVolumeSize, cfg.TestVolumeExpandSize = accessType, 32<<20, 64<<20
		ginkgo.Describe(accessType, func() { sanity.GinkgoTest(&cfg) })
	}
	passed, skipped := 0, map[string]int{}
	ginkgo.ReportAfterEach(func(r ginkgo.SpecReport) {
		switch r.State.String() {
		case "passed":
			passed++
		case "skipped":
			skipped[r.Failure.Message]++
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "csi-sanity")
	t.Logf("%d specs passed; skipped: %v", passed, skipped)
}

func start(t *testing.T, cmd *exec.Cmd) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, cmd.Process.Signal(os.Interrupt))
		if err := cmd.Wait(); err != nil || bytes.Contains(out.Bytes(), []byte("response breaks rules of CSI")) {
			t.Errorf("%v\n%s", err, &out)
		}
	})
}

var _ = fmt.Sprint
var _ = time.Second
