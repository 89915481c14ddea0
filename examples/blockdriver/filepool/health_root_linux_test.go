package filepool_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// The node sees what the controller cannot: an image that was deleted under a volume
// in use, and a file system or a pool that became read-only.
func TestNodeHealth(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	w := newCrashVolume(t, "ext4", 64<<20)
	pool := filepath.Join(w.dir, "pool")
	mountPool(t, pool, "xfs")
	startInProcess(t, w.dir)
	t.Cleanup(w.close)
	must(t, w.create())
	must(t, w.attach())
	must(t, w.stage())
	must(t, w.publish("a", false))
	health := func() string {
		t.Helper()
		h, err := w.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: w.id, VolumePublishPath: w.target("a"), StagingTargetPath: w.staging()})
		must(t, err)
		return reasons(h.GetVolumeHealth())
	}
	storage := func() string {
		t.Helper()
		h, err := w.node.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		must(t, err)
		var list []string
		for _, s := range h.GetBackendHealth() {
			list = append(list, s.GetReason())
		}
		return strings.Join(list, " ")
	}
	if got := health() + storage(); got != "" {
		t.Errorf("healthy: %q", got)
	}
	must(t, unix.Mount("", w.target("a"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if got := health(); got != "FileSystemError" {
		t.Errorf("file system read-only: %q", got)
	}
	must(t, w.unpublish("a"))
	must(t, w.unstage())
	must(t, w.stage())
	must(t, os.Remove(w.image()))
	must(t, os.WriteFile(w.image(), nil, 0o600))
	if got := health(); got != "ImageTruncated ImageDeleted" {
		t.Errorf("image deleted: %q", got)
	}
	must(t, w.unstage())
}

// A file system with errors is read-only, and on a newer kernel does not say so to statfs.
func TestHealthOfABrokenFilesystem(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	must(t, w.stage())
	must(t, w.publish("a", false))
	dev, err := loopdev.Find(w.image())
	must(t, err)
	filepool.BreakFilesystem(t, w.staging(), dev.Path)
	h, err := w.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: w.id, VolumePublishPath: w.target("a"), StagingTargetPath: w.staging()})
	must(t, err)
	if got := reasons(h.GetVolumeHealth()); got != "FileSystemError" {
		t.Errorf("the volume's health is %q", got)
	}

}

// The mutable parameters reach the loop device: at stage, and while the volume is in
// use, when kubelet asks for its usage. They are not left to the next volume.
func TestMutableParameters(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	must(t, w.stage())
	must(t, w.publish("a", false))
	state := func() (readAhead int, direct bool) {
		t.Helper()
		dev, err := loopdev.Find(w.image())
		must(t, err)
		text, err := os.ReadFile("/sys/block/" + filepath.Base(dev.Path) + "/queue/read_ahead_kb")
		must(t, err)
		readAhead, err = strconv.Atoi(strings.TrimSpace(string(text)))
		must(t, err)
		return readAhead, dev.DirectIO
	}
	stats := func() {
		t.Helper()
		_, err := w.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: w.id, VolumePath: w.target("a")})
		must(t, err)
	}
	modify := func(m map[string]string) error {
		_, err := w.controller.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: w.id, MutableParameters: m})
		return err
	}
	first, direct := state()
	if !direct {
		t.Skip("no direct I/O here")
	}
	want := func(readAhead int, direct bool) {
		t.Helper()
		if r, d := state(); r != readAhead || d != direct {
			t.Errorf("read-ahead %d KiB, direct I/O %t; want %d, %t", r, d, readAhead, direct)
		}
	}
	must(t, modify(map[string]string{"readAheadKiB": "4096"}))
	must(t, modify(map[string]string{"directIO": "false"}))
	stats()
	want(4096, false)
	// Nothing of a request that has a mistake in it is done.
	for _, bad := range []map[string]string{
		{"readAheadKiB": "64", "color": "red"}, {"readAheadKiB": "64", "directIO": "yes"}, {"readAheadKiB": "-1"}, {"readAheadKiB": "1048577"},
	} {
		refused(t, modify(bad), codes.InvalidArgument, "mutable_parameters")
	}
	stats()
	want(4096, false)
	must(t, modify(map[string]string{"directIO": "true", "readAheadKiB": "0"}))
	must(t, w.publish("b", false))
	want(0, true)
	must(t, w.unpublish("b"))
	must(t, w.unpublish("a"))
	must(t, w.unstage())
	must(t, w.stage())
	want(0, true)
	dev, err := loopdev.Find(w.image())
	must(t, err)
	must(t, w.unstage())

	other := filepath.Join(w.dir, "other")
	must(t, os.WriteFile(other, nil, 0o600))
	must(t, os.Truncate(other, 16<<20))
	next, err := loopdev.Attach(context.Background(), other)
	must(t, err)
	defer next.Detach(context.Background())
	if next.Number == dev.Number { // unless another process was faster
		text, err := os.ReadFile("/sys/block/" + filepath.Base(next.Path) + "/queue/read_ahead_kb")
		if err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(first) {
			t.Errorf("the next volume has a read-ahead of %s KiB, want %d (%v)", text, first, err)
		}
	}
}
