package drivertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Sanity runs csi-sanity for a driver with all optional interfaces of package storage.
func Sanity(t *testing.T, endpoint, server, share string) {
	dir := t.TempDir()
	parameters := filepath.Join(dir, "parameters.yaml")
	Must(t, os.WriteFile(parameters, []byte("server: \""+server+"\"\nshare: "+share+"\n"), 0o600))
	cfg := sanity.NewTestConfig()
	cfg.Address = endpoint
	cfg.TargetPath = filepath.Join(dir, "target")
	cfg.StagingPath = filepath.Join(dir, "staging")
	cfg.TestVolumeSize = 1 << 20
	cfg.TestVolumeExpandSize = 2 << 20
	cfg.TestVolumeParametersFile = parameters
	sanity.GinkgoTest(&cfg)

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
	if want := 62; passed != want {
		t.Errorf("%d specs passed, want %d", passed, want)
	}
}

// notOffered lists how many specs csi-sanity skips for which missing capability. No
// others may be skipped, and no spec is filtered out.
var notOffered = map[string]int{
	"Controller Publish, UnpublishVolume not supported": 2,
	"ControllerPublishVolume not supported":             7,
	"ControllerUnpublishVolume not supported":           1,
	"NodeStageVolume not supported":                     3,
	"NodeUnstageVolume not supported":                   2,
	"NodeExpandVolume not supported":                    4, // the controller's part is all
	"GroupControllerService not supported":              6,
	"ControllerModifyVolume not supported":              6,
	"Modify Volume not supported":                       1, // CreateVolume with mutable parameters
	"Modify volume not supported":                       1,
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported":  1,
	"ControllerGetVolumeHealth not supported":           2,
	"ControllerListVolumeHealth not supported":          1,
	"NodeGetVolumeHealth not supported":                 2,
	"NodeGetStorageHealth not supported":                1,
}
