package filepool_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// TestSanity runs csi-sanity against the driver for both access types. ginkgo
// runs one suite per process, so both are in one.
func TestSanity(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	for _, x := range []struct {
		accessType string
		split      bool
	}{{"mount", false}, {"block", false}, {"mount", true}, {"block", true}} {
		dir := t.TempDir()
		cfg := sanity.NewTestConfig()
		if x.split {
			cfg.Address, cfg.ControllerAddress = startSplit(t, dir)
		} else {
			cfg.Address = startInProcess(t, dir)
		}
		cfg.TargetPath = filepath.Join(dir, "target")
		cfg.StagingPath = filepath.Join(dir, "staging")
		cfg.TestVolumeAccessType = x.accessType
		cfg.TestVolumeSize = 64 << 20
		cfg.TestVolumeExpandSize = 128 << 20
		cfg.TestNodeVolumeAttachLimit = true
		cfg.TestVolumeMutableParametersFile = filepath.Join(dir, "mutable")
		must(t, os.WriteFile(cfg.TestVolumeMutableParametersFile, []byte("readAheadKiB: \"64\"\ndirectIO: \"false\"\n"), 0o600))
		ginkgo.Describe(fmt.Sprintf("%s,split=%t", x.accessType, x.split), func() { sanity.GinkgoTest(&cfg) })
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

	for reason, n := range skipped {
		if notOffered[reason] != n {
			t.Errorf("%d specs were skipped because %q, want %d", n, reason, notOffered[reason])
		}
	}
	if want := 4 * 101; passed != want {
		t.Errorf("%d specs passed for both access types and both modes together, want %d", passed, want)
	}
}

// notOffered says how many specs csi-sanity skips, in all four rounds together, and why: capabilities that the driver does not have. Nothing else may be skipped,
// and no spec is filtered out.
var notOffered = map[string]int{
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": 4, // which no driver can pass
}

// startInProcess serves the driver until the test ends and returns its endpoint.
func startInProcess(t *testing.T, dir string) string {
	makePool(t, filepath.Join(dir, "pool"))
	return serveMode(t, dir, "all", "csi.sock")
}

// startSplit serves the controller and the node plugin as two processes.
func startSplit(t *testing.T, dir string) (node, controller string) {
	makePool(t, filepath.Join(dir, "pool"))
	return serveMode(t, dir, "node", "csi.sock"), serveMode(t, dir, "controller", "ctl.sock")
}

func serveMode(t *testing.T, dir, mode, socket string) (endpoint string) {
	endpoint = "unix://" + filepath.Join(dir, socket)
	args := []string{"-mode", mode, "-endpoint", endpoint, "-pool", "default=" + filepath.Join(dir, "pool") + ",topology.example.com/rack=r1"}
	if mode != "controller" {
		args = append(args, "-topology", "topology.example.com/rack=r1", "-node-id", "node", "-max-volumes", "12")
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, args, func(string) string { return "" }, os.Stdout, testLog{t}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return endpoint
}
