package filepool_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"google.golang.org/grpc/codes"
)

// A volume is snapshotted and cloned while a pod writes to it: what comes out is the
// volume of one point in time, with a file system that can be mounted, and grows to what was
// asked for.
func TestSnapshotOfAVolumeInUse(t *testing.T) {
	for _, poolType := range []string{"xfs", "btrfs"} {
		t.Run(poolType, func(t *testing.T) {
			gate.Root(t)
			gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
			w := newCrashVolume(t, "ext4", 64<<20)
			mountPool(t, filepath.Join(w.dir, "pool"), poolType)
			startInProcess(t, w.dir)
			t.Cleanup(w.close)
			must(t, w.create())
			must(t, w.attach())
			must(t, w.stage())
			must(t, w.publish("a", false))
			must(t, w.write())

			stop, records, written := new(atomic.Bool), make(chan bool, 1<<20), make(chan error)
			go func() { // records that follow one another, each on the disk before the next
				f, err := os.Create(filepath.Join(w.target("a"), "log"))
				for i := 0; err == nil && !stop.Load(); i++ {
					if _, err = fmt.Fprintf(f, "%08d\n", i); err == nil {
						err = f.Sync()
					}
					records <- err == nil
				}
				written <- errors.Join(err, f.Close())
			}()
			for range 20 {
				<-records
			}
			snap, err := w.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: w.id})
			must(t, err)
			stop.Store(true)
			must(t, <-written)

			r := *w
			r.size = 128 << 20
			resp, err := w.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "restored", CapacityRange: &csi.CapacityRange{RequiredBytes: r.size},
				VolumeCapabilities:  []*csi.VolumeCapability{w.capability()},
				VolumeContentSource: fromSnapshot(snap.GetSnapshot().GetSnapshotId()),
			})
			must(t, err)
			must(t, os.Mkdir(w.staging()+"2", 0o700))
			restored := resp.GetVolume().GetVolumeId()
			attached, err := w.controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: restored, NodeId: "node", VolumeCapability: w.capability()})
			must(t, err)
			_, err = w.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: restored, StagingTargetPath: w.staging() + "2", VolumeCapability: w.capability(), PublishContext: attached.GetPublishContext()})
			must(t, err) // beside its source
			_, err = w.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: restored, StagingTargetPath: w.staging() + "2", TargetPath: w.target("r"), VolumeCapability: w.capability(), PublishContext: attached.GetPublishContext()})
			must(t, err)
			must(t, w.check("r"))
			stats, err := w.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: restored, VolumePath: w.target("r")})
			must(t, err)
			if total := stats.GetUsage()[0].GetTotal(); total < r.size*3/4 {
				t.Errorf("the file system has %d bytes of %d", total, r.size)
			}
			log, err := os.ReadFile(filepath.Join(w.target("r"), "log"))
			if err != nil || len(log) < 20*9 {
				t.Errorf("%d bytes of the log, 20 records of 9 were on the disk: %v", len(log), err)
			}
			for i := range len(log) / 9 {
				if got, want := string(log[9*i:9*i+9]), fmt.Sprintf("%08d\n", i); got != want {
					t.Fatalf("record %d of %d is %q", i, len(log)/9, got)
				}
			}
			t.Logf("%d records are in the snapshot", len(log)/9)

			_, err = w.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: restored, TargetPath: w.target("r")})
			must(t, err)
			_, err = w.node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: restored, StagingTargetPath: w.staging() + "2"})
			must(t, err)
			must(t, w.unpublish("a"))
			must(t, w.unstage())
		})
	}
}

// A clone of a volume that was formatted is never formatted, whatever happened to its
// data; one of a volume that was never used is.
func TestCloneIsNotFormatted(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	clone := func(name string) error {
		c := *w
		must(t, c.detach())
		resp, err := w.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: w.size},
			VolumeCapabilities:  []*csi.VolumeCapability{w.capability()},
			VolumeContentSource: fromVolume(w.id),
		})
		must(t, err)
		c.id = resp.GetVolume().GetVolumeId()
		if name == "damaged" {
			must(t, os.Truncate(c.image(), 0))
			must(t, os.Truncate(c.image(), c.size))
		}
		must(t, c.attach())
		err = c.stage()
		if err == nil {
			must(t, c.unstage())
		}
		must(t, w.attach())
		return err
	}
	must(t, clone("of a blank volume"))
	must(t, w.stage())
	must(t, w.unstage())
	must(t, clone("sound"))
	refused(t, clone("damaged"), codes.FailedPrecondition, "blank")
}

// XFS has no direct I/O in units of 512 bytes for an image that shares blocks. A volume
// that was to have it is staged without.
func TestDirectIOAfterASnapshot(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	w := newCrashVolume(t, "ext4", 64<<20)
	mountPool(t, filepath.Join(w.dir, "pool"), "xfs")
	startInProcess(t, w.dir)
	t.Cleanup(w.close)
	must(t, w.create())
	must(t, w.snapshot())
	_, err := w.controller.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
		VolumeId: w.id, MutableParameters: map[string]string{filepool.ParamDirectIO: "true"},
	})
	must(t, errors.Join(err, w.attach(), w.stage(), w.publish("a", false), w.write(), w.check("a"), w.unpublish("a"), w.unstage(), w.detach()))
}

// A volume in use is not copied while its xfs grows: of such a copy, Linux may be unable to
// replay the log. Nothing is left of the attempt, and the next succeeds when the node has
// written the superblock.
func TestCutOfAGrowingXFS(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mkfs.xfs", "blkid", "xfs_growfs")
	w := newCrashVolume(t, "xfs", 300<<20)
	mountPool(t, w.pool(), "xfs")
	startInProcess(t, w.dir)
	t.Cleanup(w.close)
	must(t, errors.Join(w.create(), w.attach(), w.stage(), w.unstage()))
	superblock := func() string { return filepool.ReadAt(t, w.image(), 0, 512) }
	small := superblock()
	must(t, errors.Join(w.expand(), w.snapshot(), w.deleteSnapshot(), w.stage(), w.unstage()))
	grown := superblock()

	clone := func() error { return w.createFrom(fromVolume(w.id)) }
	group := func() error { _, err := w.group(w.id); return err }
	copies := map[string]func() error{"snapshot": w.snapshot, "clone": clone, "group": group}
	filepool.WriteAt(t, w.image(), small, 0)
	for name, clone := range copies {
		refused(t, clone(), codes.Aborted, `its xfs is growing on node "node"`)
		for _, dir := range []string{"snapshots", "groups", "volumes"} {
			left, err := os.ReadDir(filepath.Join(w.pool(), dir))
			must(t, err)
			for _, x := range left {
				if !strings.HasPrefix(x.Name(), w.id) {
					t.Errorf("%s: %s/%s is left", name, dir, x.Name())
				}
			}
		}
	}
	must(t, w.detach())
	must(t, errors.Join(w.snapshot(), w.deleteSnapshot())) // it is as it is
	must(t, w.attach())
	refused(t, w.snapshot(), codes.Aborted, "growing")
	filepool.WriteAt(t, w.image(), grown, 0)
	for _, clone := range copies {
		must(t, clone())
	}
}
