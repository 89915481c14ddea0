package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func reasons(h *csi.VolumeHealth) string {
	var list []string
	for _, s := range h.GetHealthStatuses() {
		list = append(list, s.GetReason())
	}
	return strings.Join(list, " ")
}

// What is broken on the storage is found by looking there, and is gone from the
// report when it is repaired.
func TestVolumeHealth(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	c := newController(onePool{b}, false)
	v := mustCreate(t, b, spec("a"))
	mustCreate(t, b, spec("sound"))
	image, metadata := b.imageOf(v.ID), b.file("volumes", v.ID+extMetadata)
	for _, test := range []struct {
		want           string
		damage, repair func() error
		noneOfTheRest  bool
	}{
		{"", func() error { return nil }, func() error { return nil }, true},
		{"ImageMissing", func() error { return os.Rename(image, image+"x") }, func() error { return os.Rename(image+"x", image) }, true},
		{"ImageTruncated", func() error { return os.Truncate(image, gib-1) }, func() error { return os.Truncate(image, gib) }, true},
		{"MetadataMissing", func() error { return os.Rename(metadata, metadata+"x") }, func() error { return os.Rename(metadata+"x", metadata) }, true},
		{"MetadataDamaged", func() error {
			return errors.Join(os.Rename(metadata, metadata+"x"), os.WriteFile(metadata, []byte("{"), 0o600))
		}, func() error { return os.Rename(metadata+"x", metadata) }, true},
		{"PoolFull", func() error {
			b.space = func() (int64, int64, error) { return 1 << 40, mib - 1, nil }
			return nil
		}, func() error { b.space = func() (int64, int64, error) { return 1 << 40, 1 << 39, nil }; return nil }, false},
	} {
		if err := test.damage(); err != nil {
			t.Fatal(err)
		}
		one, err := c.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: v.ID})
		if err != nil || reasons(one.GetVolumeHealth()) != test.want {
			t.Errorf("%v, %v; want %q", one, err, test.want)
		}
		all, err := c.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
		if err != nil {
			t.Error(err)
		}
		want := map[bool]int{true: 1, false: 2}[test.noneOfTheRest]
		if test.want == "" {
			want = 0
		}
		if len(all.GetEntries()) != want {
			t.Errorf("%s: list: %v", test.want, all)
		}
		if err := test.repair(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: volumeID("unknown")})
	wantCode(t, err, codes.NotFound)

	// Pages of a list in which everything is broken.
	for i := range 5 {
		w := mustCreate(t, b, spec(strconv.Itoa(i)))
		if err := os.Remove(b.imageOf(w.ID)); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for token, pages := "", 0; ; pages++ {
		page, err := c.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: 2, StartingToken: token})
		if err != nil || len(page.GetEntries()) > 2 || pages > 5 {
			t.Fatalf("%v, %v", page, err)
		}
		for _, h := range page.GetEntries() {
			seen[h.GetVolumeId()] = true
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d volumes, want 5: %v", len(seen), seen)
	}
}

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
	if got := health(); got != "FileSystemReadOnly" {
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

// A file system that the kernel made read-only after errors.
func TestReadOnlyPool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pool")
	mountPool(t, dir, "xfs")
	p, err := initPool(dir)
	must(t, err)
	defer p.Close()
	if got := p.checkPool(5); len(got) > 0 {
		t.Errorf("healthy: %v", got)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if got := p.checkPool(5); len(got) != 1 || got[0].Reason != reasonReadOnly {
		t.Errorf("read-only: %v", got)
	}
}

// A pool that is read-only is served all the same: what is there can be read, and
// what was mounted can be unmounted.
func TestStartOnAReadOnlyPool(t *testing.T) {
	for _, fsType := range []string{"xfs", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pool")
			mountPool(t, dir, fsType)
			b := openBackend(t, dir, nil)
			must(t, b.lockNode("n1", b.log))
			mustRegister(t, b.pool, "n1")
			v := mustCreate(t, b, spec("a"))
			closeBackend(t, b)
			if fsType == "ext4" {
				dev, err := loopdev.Find(dir + ".disk")
				must(t, err)
				breakFilesystem(t, dir, dev.Path)
			} else {
				must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			}
			b = openBackend(t, dir, nil)
			must(t, b.lockNode("n1", b.log))
			mustRegister(t, b.pool, "n1")
			if got := list(t, b); len(got) != 1 || got[0].ID != v.ID {
				t.Errorf("volumes: %v", got)
			}
			_, err := b.CreateVolume(t.Context(), spec("b"))
			wantCode(t, err, codes.Unavailable, "read-only")
			_, err = b.CreateVolume(t.Context(), spec("a"))
			must(t, err)
		})
	}
}

// breakFilesystem lets the kernel find an error in the ext4 that is mounted there, and
// make it read-only.
func breakFilesystem(t *testing.T, at, dev string) {
	t.Helper()
	must(t, unix.Mount("", at, "", unix.MS_REMOUNT, "errors=remount-ro"))
	err := os.WriteFile("/sys/fs/ext4/"+filepath.Base(dev)+"/trigger_fs_error", []byte("test"), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		t.Skipf("errors of ext4 cannot be had here: %v", err)
	}
	must(t, err)
}

// A file system with errors is read-only, and on a newer kernel does not say so to statfs.
func TestHealthOfABrokenFilesystem(t *testing.T) {
	w := newServedVolume(t, "ext4", 64<<20)
	must(t, w.stage())
	must(t, w.publish("a", false))
	dev, err := loopdev.Find(w.image())
	must(t, err)
	breakFilesystem(t, w.staging(), dev.Path)
	h, err := w.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: w.id, VolumePublishPath: w.target("a"), StagingTargetPath: w.staging()})
	must(t, err)
	if got := reasons(h.GetVolumeHealth()); got != "FileSystemReadOnly" {
		t.Errorf("the volume's health is %q", got)
	}

	dir := filepath.Join(t.TempDir(), "pool")
	mountPool(t, dir, "ext4")
	p, err := initPool(dir)
	must(t, err)
	defer p.Close()
	dev, err = loopdev.Find(dir + ".disk")
	must(t, err)
	breakFilesystem(t, dir, dev.Path)
	if got := p.checkPool(5); len(got) != 1 || got[0].Reason != reasonReadOnly {
		t.Errorf("the pool's health is %v", got)
	}
}

// Images of two pools may have the same inode number.
func TestServesTheImageOfItsPool(t *testing.T) {
	dir := t.TempDir()
	var images [2]string
	var inodes [2]uint64
	for i, name := range []string{"a", "b"} {
		mountPool(t, filepath.Join(dir, name), "xfs")
		images[i] = filepath.Join(dir, name, "image")
		must(t, os.WriteFile(images[i], make([]byte, mib), 0o600))
		var st unix.Stat_t
		must(t, unix.Stat(images[i], &st))
		inodes[i] = st.Ino
	}
	if inodes[0] != inodes[1] {
		t.Fatalf("inodes %v: this shows nothing", inodes)
	}
	dev, err := loopdev.Attach(t.Context(), images[0])
	must(t, err)
	defer func() { must(t, dev.Detach(context.Background())) }()
	f, err := os.Open(dev.Path)
	must(t, err)
	defer f.Close()
	must(t, serves(f, images[0]))
	if serves(f, images[1]) == nil {
		t.Error("the loop device serves the image of the other pool too")
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
