package filepool_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// newServedVolume is a volume of a driver that runs in this process, created and
// attached.
func newServedVolume(t *testing.T, fsType string, size int64) *crashVolume {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	w := newCrashVolume(t, fsType, size)
	startInProcess(t, w.dir)
	t.Cleanup(w.close)
	must(t, w.create())
	must(t, w.attach())
	return w
}

func (w *crashVolume) image() string { return filepath.Join(w.dir, "pool", "volumes", w.id+".img") }

// PUBLISH_READONLY: the controller's word is kept on the node.
func TestAttachedReadOnly(t *testing.T) {
	attachReadOnly := func(w *crashVolume) {
		t.Helper()
		must(t, w.detach())
		r, err := w.controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: w.id, NodeId: "node", VolumeCapability: w.capability(), Readonly: true,
		})
		must(t, err)
		w.published = r.GetPublishContext()
	}
	t.Run("ext4", func(t *testing.T) {
		w := newServedVolume(t, "ext4", 64<<20)
		attachReadOnly(w)
		refused(t, w.stage(), codes.FailedPrecondition, "is blank")
		if d := w.loops(); len(d) > 0 {
			t.Errorf("the loop device stays: %v", d)
		}
		must(t, w.detach())
		must(t, w.attach())
		must(t, w.stage())
		must(t, w.publish("a", false))
		must(t, w.write())
		must(t, w.unpublish("a"))
		must(t, w.unstage())
		attachReadOnly(w)
		must(t, w.stage())
		must(t, w.publish("a", false))
		must(t, w.check("a"))
		if err := os.WriteFile(w.target("a")+"/x", nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a volume attached read-only: %v, want EROFS", err)
		}
	})
	t.Run("block", func(t *testing.T) {
		w := newServedVolume(t, "", 16<<20)
		attachReadOnly(w)
		must(t, w.stage())
		must(t, w.publish("a", false))
		if err := w.write(); err == nil {
			t.Error("a block volume attached read-only was written")
		}
		must(t, w.unpublish("a"))
		must(t, w.unstage())
	})
}

// A process keeps the device open over an unstage. When it closes it, the device
// must not vanish under a pod that got the volume meanwhile.
func TestStageRevokesAPendingDetach(t *testing.T) {
	w := newServedVolume(t, "", 16<<20)
	must(t, w.stage())
	dev, err := loopdev.Find(w.image())
	must(t, err)
	holder, err := os.Open(dev.Path)
	must(t, err)
	defer holder.Close()
	refused(t, w.unstage(), codes.Unavailable, "in use")
	refused(t, w.publish("a", false), codes.NotFound, "stage it first") // which takes the device back
	must(t, w.stage())
	must(t, w.publish("a", false))
	must(t, holder.Close())
	if dev, err := loopdev.Find(w.image()); err != nil || dev.Detaching {
		t.Fatalf("under a published volume: %+v, %v", dev, err)
	}
	must(t, w.write())
	refused(t, w.unstage(), codes.FailedPrecondition, w.target("a"))
	must(t, w.unpublish("a"))
	must(t, w.unstage())
}

// longhorn/longhorn#2474: about 70 loop devices were left behind. After a final error
// the CO does not unstage: the loop device goes, also one that
// a killed predecessor attached.
func TestFailedStageLeavesNoLoopDevice(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	f, err := os.OpenFile(w.image(), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("precious"), 0)
	must(t, errors.Join(err, f.Close()))
	for _, attached := range []bool{false, true} {
		if attached {
			_, err := loopdev.Attach(t.Context(), w.image())
			must(t, err)
		}
		refused(t, w.stage(), codes.FailedPrecondition, "unknown kind")
		if d := w.loops(); len(d) > 0 {
			t.Fatalf("the loop device stays: %v", d)
		}
	}
}

// An image that is not what it should be is not attached.
func TestStageChecksTheImage(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	aside := w.image() + ".aside"
	pool, disk := filepath.Join(w.dir, "pool"), filepath.Join(w.dir, "disk")
	for _, test := range []struct {
		name         string
		harm, repair func() error
		code         codes.Code
		words        string
	}{
		{"missing", func() error { return nil }, func() error { return nil }, codes.DataLoss, "is missing"},
		{"link", func() error { return os.Symlink(aside, w.image()) }, func() error { return os.Remove(w.image()) }, codes.DataLoss, "not a regular file"},
		{"directory", func() error { return os.Mkdir(w.image(), 0o700) }, func() error { return os.Remove(w.image()) }, codes.DataLoss, "not a regular file"},
		{"FIFO", func() error { return unix.Mkfifo(w.image(), 0o600) }, func() error { return os.Remove(w.image()) }, codes.DataLoss, "not a regular file"},
		{"truncated", func() error {
			return errors.Join(os.WriteFile(w.image(), nil, 0o600), os.Truncate(w.image(), 64<<20-1))
		},
			func() error { return os.Remove(w.image()) }, codes.DataLoss, "67108863 of 67108864 bytes"},
	} {
		must(t, os.Rename(w.image(), aside))
		must(t, test.harm())
		err := w.stage()
		must(t, errors.Join(test.repair(), os.Rename(aside, w.image())))
		refused(t, err, test.code, test.words)
		if d := w.loops(); len(d) > 0 {
			t.Errorf("%s: attached %v", test.name, d)
		}
	}
	// Another pool that is mounted over this one, with a volume of the same ID.
	must(t, errors.Join(os.MkdirAll(filepath.Join(disk, "volumes"), 0o700), os.WriteFile(filepath.Join(disk, "volumes", w.id+filepool.ExtImage), nil, 0o600),
		os.Truncate(filepath.Join(disk, "volumes", w.id+filepool.ExtImage), 64<<20)))
	must(t, unix.Mount(disk, pool, "", unix.MS_BIND, ""))
	err := w.stage()
	must(t, unix.Unmount(pool, 0))
	refused(t, err, codes.FailedPrecondition, "not in the pool that was opened")
	if d := w.loops(); len(d) > 0 {
		t.Errorf("attached %v", d)
	}
	must(t, w.stage())
	must(t, w.unstage())
}

// A volume is taken from a node that does not answer, and given to another one: what
// the first has kept of its attachment is worth nothing, not even when it gets the
// volume again.
func TestForcedDetach(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	filepool.RegisterNode(t, w.pool(), "gone", map[string]string{"topology.example.com/rack": "r1"})
	attach := func(node string) (map[string]string, error) {
		r, err := w.controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: w.id, NodeId: node, VolumeCapability: w.capability(),
		})
		return r.GetPublishContext(), err
	}
	detach := func(node string) {
		t.Helper()
		_, err := w.controller.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: w.id, NodeId: node})
		must(t, err)
	}
	first := w.published
	_, err := attach("gone")
	refused(t, err, codes.FailedPrecondition, `attached to node "node"`)
	detach("") // from all nodes
	refused(t, w.stage(), codes.FailedPrecondition, "not attached to node")
	_, err = attach("gone")
	must(t, err)
	refused(t, w.stage(), codes.FailedPrecondition, "not attached to node")
	must(t, os.Remove(filepath.Join(w.pool(), "nodes", "gone.json")))
	detach("gone")
	must(t, w.attach())
	second := w.published
	w.published = first
	refused(t, w.stage(), codes.FailedPrecondition, "has ended")
	w.published = maps.Clone(second)
	w.published[filepool.ContextImage] = "volumes/" + filepool.NewID(filepool.VolumeKind, "x") + filepool.ExtImage
	refused(t, w.stage(), codes.InvalidArgument, "is not that of the volume")
	if d := w.loops(); len(d) > 0 {
		t.Errorf("attached %v", d)
	}
	w.published = second
	again, err := attach("node")
	must(t, err)
	if !maps.Equal(again, second) {
		t.Errorf("%v, on a repeat %v", second, again)
	}
	must(t, w.stage())
	w.published = first
	refused(t, w.publish("a", false), codes.FailedPrecondition, "has ended")
	must(t, w.unstage())
}

// The image is gone, and another one stands at its path: unstage lets go of both.
func TestUnstageOfADeletedImage(t *testing.T) {
	w := newServedVolume(t, "", 16<<20)
	must(t, w.stage())
	must(t, os.Remove(w.image()))
	must(t, os.WriteFile(w.image(), make([]byte, 4096), 0o600))
	_, err := loopdev.Attach(context.Background(), w.image())
	must(t, err)
	if d := w.loops(); len(d) != 2 {
		t.Fatalf("%d loop devices, the test needs 2: %v", len(d), d)
	}
	must(t, w.unstage())
	if d := w.loops(); len(d) > 0 {
		t.Errorf("loop devices stay: %v", d)
	}
}

func TestExpandOnTheNode(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	refused(t, w.expandNode(), codes.NotFound, "stage it first")
	must(t, w.stage())
	must(t, w.publish("a", false))
	refused(t, w.expandNode(), codes.Unavailable, "has not grown yet")
	must(t, errors.Join(w.unpublish("a"), w.unstage()))
	must(t, w.expand())
	// Expanded while detached from the node: the next stage grows the file system.
	must(t, w.stage())
	must(t, w.publish("a", false))
	must(t, w.expandNode())
	must(t, w.checkWritable("a"))
}

// With VOLUME_MOUNT_GROUP kubelet changes no files itself, and ext4 and xfs cannot be
// mounted for a group.
func TestMountGroup(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	caps, err := w.node.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	must(t, err)
	for _, c := range caps.GetCapabilities() {
		if c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP {
			t.Error("the driver has the capability VOLUME_MOUNT_GROUP")
		}
	}
	c := w.capability()
	c.GetMount().VolumeMountGroup = "4711"
	_, err = w.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: w.id, StagingTargetPath: w.staging(), VolumeCapability: c, PublishContext: w.published,
	})
	refused(t, err, codes.InvalidArgument, "volume_mount_group")
}
