package driver

import (
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// TestSanity runs csi-sanity against the driver for both access types: all of it as root,
// and what mounts nothing otherwise. ginkgo runs one suite per process, so both are in one.
func TestSanity(t *testing.T) {
	root := false
	t.Run("node", func(t *testing.T) {
		gate.Root(t)
		gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
		root = true
	})
	for _, accessType := range []string{"mount", "block"} {
		dir := t.TempDir()
		cfg := sanity.NewTestConfig()
		cfg.Address = serveMode(t, dir, memory.New())
		cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
		cfg.TestVolumeAccessType = accessType
		cfg.TestVolumeSize, cfg.TestVolumeExpandSize = 64<<20, 128<<20
		cfg.TestNodeVolumeAttachLimit = true
		ginkgo.Describe(accessType, func() { sanity.GinkgoTest(&cfg) })
	}
	passed := 0
	ginkgo.ReportAfterEach(func(r ginkgo.SpecReport) {
		if r.State.String() == "passed" {
			passed++
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	if !root {
		suite.SkipStrings = append(suite.SkipStrings, "Node Service")
	}
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	if passed < 70 { // those of a storage without optional interfaces that mount nothing
		t.Errorf("%d specs passed", passed)
	}
}
