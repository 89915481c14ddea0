package filepool_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func needsEncryption(t *testing.T) {
	gate.Root(t)
	gate.Modules(t, "dm_mod", "dm_crypt", "loop")
	gate.Tools(t, "cryptsetup", "dmsetup", "mke2fs", "blkid", "e2fsck", "resize2fs")
	t.Cleanup(func() {
		out, err := exec.Command("dmsetup", "ls").CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("csikit")) {
			t.Errorf("mappings are left: %v: %s", err, out)
		}
	})
}

// encryptedSteps is the life of an encrypted volume, and of a copy of it.
var encryptedSteps = []crashStep{
	{"create and attach", func(w *crashVolume) error { return errors.Join(w.create(), w.attach()) }, true},
	{"NodeStageVolume", (*crashVolume).stage, false},
	{"publish and write", func(w *crashVolume) error { return errors.Join(w.publish("a", false), w.write()) }, true},
	{"ControllerExpandVolume", (*crashVolume).expand, true},
	{"NodeExpandVolume", (*crashVolume).expandNode, false},
	{"check and unpublish", func(w *crashVolume) error { return errors.Join(w.check("a"), w.unpublish("a")) }, true},
	{"NodeUnstageVolume", (*crashVolume).unstage, false},
	{"look at the disk", (*crashVolume).checkEncrypted, true},
	{"NodeStageVolume of data", (*crashVolume).stage, false},
	{"publish again", func(w *crashVolume) error {
		return errors.Join(w.publish("a", false), w.check("a"), w.checkGrown("a"), w.unpublish("a"), w.unstage(), w.detach())
	}, true},
	{"copy", func(w *crashVolume) error { return errors.Join(w.createFrom(fromVolume(w.id)), w.delete()) }, true},
	{"use the copy", func(w *crashVolume) error {
		c := w.second()
		return errors.Join(c.attach(), c.stageCopy(), c.publish("a", false), c.check("a"), c.unpublish("a"), c.unstage(), c.detach(), c.delete())
	}, true},
}

// TestDMEncryption kills the driver at system calls of each RPC that opens, resizes or closes the
// mapping: the next driver completes the call, and nothing is left. Package luks has the tests that
// kill at every call.
func TestDMEncryption(t *testing.T) {
	needsEncryption(t)
	for _, fsType := range []string{"ext4", ""} {
		t.Run("fsType="+fsType, func(t *testing.T) {
			crashEverywhere(t, encryptedSteps, 1, func(s crashStep) bool { return !s.controller && fsType != "" }, func(t *testing.T) *crashVolume {
				w := newCrashVolume(t, fsType, 96<<20)
				w.encrypted = true
				must(t, os.Mkdir(w.second().staging(), 0o700))
				return w
			})
		})
	}
}

// checkEncrypted: neither the data nor the passphrase is on the disk, nor in the log.
func (w *crashVolume) checkEncrypted() error {
	images, err := filepath.Glob(filepath.Join(w.dir, "pool", "volumes", "*.img"))
	if err == nil && len(images) != 1 {
		err = errors.New("there is no image")
	}
	for _, image := range append(images, filepath.Join(w.dir, "log")) {
		data, readErr := readSparse(image)
		if err = errors.Join(err, readErr); bytes.Contains(data, crashData[:1000]) || bytes.Contains(data, []byte(w.secrets()["passphrase"])) {
			err = errors.Join(err, errors.New(image+" has what is secret"))
		}
	}
	return err
}

// checkGrown: the file system has the size of the volume, but for the header.
func (w *crashVolume) checkGrown(pod string) error {
	r, err := w.node.NodeGetVolumeStats(w.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: w.id, VolumePath: w.target(pod)})
	if err == nil && r.GetUsage()[0].GetTotal() < w.size*3/2 {
		err = errors.New("the volume has not grown")
	}
	return err
}

// stageCopy also tries a wrong passphrase, and none.
func (w *crashVolume) stageCopy() error {
	for secret, code := range map[string]codes.Code{"": codes.InvalidArgument, "wrong": codes.Unauthenticated} {
		_, err := w.node.NodeStageVolume(w.ctx(), &csi.NodeStageVolumeRequest{
			VolumeId: w.id, StagingTargetPath: w.staging(), VolumeCapability: w.capability(), PublishContext: w.published,
			Secrets: map[string]string{"passphrase": secret},
		})
		if status.Code(err) != code {
			return errors.Join(errors.New("passphrase "+secret), err)
		}
		if left := w.loops(); len(left) > 0 {
			return errors.New("the device remains after a final error")
		}
	}
	return w.stage()
}
