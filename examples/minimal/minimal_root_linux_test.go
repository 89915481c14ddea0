package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
)

// newTarget is the driver as a process, with an empty store.
func newTarget(t *testing.T) (dir string, target csitest.Target) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	dir = t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "s"), 0o700)) // only for the socket
	must(t, os.MkdirAll(filepath.Join(dir, "volumes"), 0o700))
	endpoint := "unix://" + filepath.Join(dir, "s", "csi.sock")
	return dir, csitest.Target{Endpoint: endpoint, Start: func() *exec.Cmd {
		return gate.RoleCommand(context.WithoutCancel(t.Context()), "minimal", "-endpoint", endpoint, "-dir", filepath.Join(dir, "volumes"), "-node-id", "node")
	}}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the store: %v, %v", left, err)
	}
}

// TestRules runs every rule. One of level SHOULD has to be kept too.
func TestRules(t *testing.T) {
	dir, target := newTarget(t)
	target.Inventory = func(context.Context) ([]string, error) { return filepath.Glob(filepath.Join(dir, "volumes", "*")) }
	report, err := csitest.Check(t.Context(), target, csitest.Config{Dir: dir, Size: 32 << 20, CheckMounts: true, Secrets: map[string]string{"unused": "secret"}})
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

// TestRulesTorture kills the driver at random moments under a mix of all calls: 20 times, or
// 300 with CSIKIT_TORTURE=1.
func TestRulesTorture(t *testing.T) {
	kills := 20
	if os.Getenv("CSIKIT_TORTURE") == "1" {
		kills = 300
	}
	dir, target := newTarget(t)
	report, err := csitest.Torture(t.Context(), target, csitest.Config{Dir: dir, Size: 16 << 20, CheckMounts: true}, csitest.TortureConfig{Kills: kills, Seed: 1})
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
	for reason := range skipped { // capabilities that are not reported, and a limit that there is not
		if !strings.HasSuffix(reason, "not supported") && reason != "testnodevolumeattachlimit not enabled" {
			t.Errorf("skipped: %s", reason)
		}
	}
	if want := 2 * 57; passed != want {
		t.Errorf("%d specs passed for both access types together, want %d", passed, want)
	}
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

// newNode is both services on an empty store, with a volume that is attached.
func newNode(t *testing.T, fsType string) (dir, id string, c *controller, n *node) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	dir = t.TempDir()
	for _, name := range []string{"volumes", "staging"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	t.Chdir(dir)
	c = newController(t, "volumes")
	ops, err := nodeops.New(nodeops.Config{})
	must(t, err)
	id = c.make(t, "x", fsType, 0)
	must(t, c.publish(t.Context(), id, "node", fsType))
	return dir, id, c, &node{store: c.store, id: "node", ops: ops}
}

func (n *node) stage(t *testing.T, dir, id, fsType string) {
	t.Helper()
	_, err := n.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(dir, "staging"), VolumeCapability: capability(fsType)})
	must(t, err)
}

func (n *node) unstage(t *testing.T, dir, id string) {
	t.Helper()
	_, err := n.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(dir, "staging")})
	must(t, err)
}

func (n *node) publish(t *testing.T, dir, id, fsType, target string, readOnly bool) error {
	_, err := n.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: filepath.Join(dir, "staging"), TargetPath: filepath.Join(dir, target), VolumeCapability: capability(fsType), Readonly: readOnly,
	})
	return err
}

func (n *node) unpublish(t *testing.T, dir, id, target string) {
	t.Helper()
	_, err := n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: filepath.Join(dir, target)})
	must(t, err)
}

// After a reboot there are no devices and no mounts, but the attachment and the data.
func TestReboot(t *testing.T) {
	dir, id, c, n := newNode(t, "ext4")
	n.stage(t, dir, id, "ext4")
	must(t, os.WriteFile(filepath.Join(dir, "staging/file"), []byte("data"), 0o600))
	must(t, syscall.Unmount(filepath.Join(dir, "staging"), 0))
	dev, err := loopdev.Find(n.file(id, ".img"))
	must(t, err)
	must(t, dev.Detach(t.Context()))

	wantCode(t, n.publish(t, dir, id, "ext4", "target", false), codes.FailedPrecondition)
	n.stage(t, dir, id, "ext4")
	must(t, n.publish(t, dir, id, "ext4", "target", true))
	if data, err := os.ReadFile(filepath.Join(dir, "target/file")); string(data) != "data" {
		t.Errorf("read %q, %v", data, err)
	}
	n.unpublish(t, dir, id, "target")
	n.unstage(t, dir, id)
	n.unstage(t, dir, id)
	for range 2 {
		_, err = c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id})
		must(t, err)
	}
}

// The image is deleted while it is attached: unstage frees the device.
func TestImageDeleted(t *testing.T) {
	for _, fsType := range []string{"ext4", "block"} {
		dir, id, _, n := newNode(t, fsType)
		n.stage(t, dir, id, fsType)
		must(t, os.Remove(n.file(id, ".img")))
		n.unstage(t, dir, id)
		devices, err := loopdev.List()
		must(t, err)
		for _, dev := range devices {
			if dev.Backing == n.file(id, ".img") {
				t.Errorf("%+v is left", dev)
			}
		}
	}
}

// A block volume that is published read-only refuses writes, also after the volume was
// staged again, and is not unstaged under its pod.
func TestBlockReadOnly(t *testing.T) {
	dir, id, _, n := newNode(t, "block")
	n.stage(t, dir, id, "block")
	must(t, n.publish(t, dir, id, "block", "a", true))
	n.stage(t, dir, id, "block")
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0); err == nil {
		t.Error("it can be written")
	}
	wantCode(t, n.publish(t, dir, id, "block", "b", false), codes.FailedPrecondition)
	_, err := n.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(dir, "staging")})
	wantCode(t, err, codes.FailedPrecondition)
	n.unpublish(t, dir, id, "a")
	must(t, n.publish(t, dir, id, "block", "b", false))
	must(t, os.WriteFile(filepath.Join(dir, "b"), []byte("x"), 0))
	n.unpublish(t, dir, id, "b")
	n.unstage(t, dir, id)
}

// The driver was killed when the image had grown, before it answered.
func TestExpandAfterCrash(t *testing.T) {
	dir, id, c, n := newNode(t, "ext4")
	n.stage(t, dir, id, "ext4")
	must(t, os.Truncate(n.file(id, ".img"), 2<<30))
	resp, err := c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}})
	must(t, err)
	if resp.GetCapacityBytes() != 2<<30 || !resp.GetNodeExpansionRequired() {
		t.Error(resp)
	}
	n.unstage(t, dir, id)
	n.stage(t, dir, id, "ext4") // a mounted ext4 grows only with CAP_SYS_RESOURCE
	var st syscall.Statfs_t
	must(t, syscall.Statfs(filepath.Join(dir, "staging"), &st))
	if size := int64(st.Blocks) * st.Bsize; size < 1900<<20 {
		t.Errorf("the file system has %d bytes", size)
	}
	n.unstage(t, dir, id)
}

// On a full disk nothing is left of what fails, and volumes can be detached and deleted.
func TestFullDisk(t *testing.T) {
	gate.UserNS(t)
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,nr_inodes=16"))
	defer func() { must(t, syscall.Unmount(dir, 0)) }()
	c := newController(t, dir)
	id := c.make(t, "x", "ext4", 0)
	must(t, c.publish(t.Context(), id, "node", "ext4"))
	for i := 0; ; i++ { // all inodes
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			break
		}
	}
	must(t, c.publish(t.Context(), id, "node", "ext4"))
	_, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "y", VolumeCapabilities: []*csi.VolumeCapability{capability("ext4")}})
	if err == nil {
		t.Error("a volume was created")
	}
	_, err = c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"})
	must(t, err)
	_, err = c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	must(t, err)
	must(t, c.dir.Close()) // for the unmount
	if left, err := filepath.Glob(filepath.Join(dir, "vol-*")); len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
