package bench

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/nodeops/fastmount"
	"golang.org/x/sys/unix"
)

const mib, gib = 1 << 20, 1 << 30

// fixture is a blank loop device and a directory to stage it on.
type fixture struct {
	b       *testing.B
	node    *nodeops.Node
	dev     *loopdev.Device
	staging string
}

func newFixture(b *testing.B, size int64) *fixture {
	b.Helper()
	gate.Root(b)
	gate.Tools(b, "mke2fs", "e2fsck", "mkfs.xfs", "mkfs.btrfs", "btrfs", "blkid")
	dir := b.TempDir()
	image, staging := filepath.Join(dir, "image"), filepath.Join(dir, "staging")
	ok(b, os.Mkdir(staging, 0o755))
	ok(b, os.WriteFile(image, nil, 0o600))
	ok(b, os.Truncate(image, size))
	dev, err := loopdev.Attach(b.Context(), image)
	ok(b, err)
	b.Cleanup(func() {
		unmountBelow(b, dir)
		ok(b, dev.Detach(context.Background()))
	})
	n, err := nodeops.New(nodeops.Config{})
	ok(b, err)
	return &fixture{b: b, node: n, dev: dev, staging: staging}
}

func (f *fixture) stageRequest(fsType string) nodeops.StageFilesystemRequest {
	return nodeops.StageFilesystemRequest{
		VolumeID: "v", Device: nodeops.Device{Path: f.dev.Path}, StagingTargetPath: f.staging, FSType: fsType,
	}
}

func (f *fixture) stage(r nodeops.StageFilesystemRequest) error {
	return f.node.StageFilesystem(f.b.Context(), r)
}

// erase makes the device blank.
func (f *fixture) erase() {
	d, err := os.OpenFile(f.dev.Path, os.O_RDWR, 0)
	ok(f.b, err)
	defer d.Close()
	ok(f.b, unix.Fallocate(int(d.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, f.dev.Size))
}

// staged is a staged volume, on a tmpfs, and a directory for targets.
func staged(b *testing.B) (n *nodeops.Node, staging, pods string) {
	b.Helper()
	gate.UserNS(b)
	dir := b.TempDir()
	staging, pods = filepath.Join(dir, "staging"), filepath.Join(dir, "pods")
	for _, d := range []string{staging, pods} {
		ok(b, os.Mkdir(d, 0o755))
	}
	ok(b, unix.Mount("tmpfs", staging, "tmpfs", 0, ""))
	b.Cleanup(func() { unmountBelow(b, dir) })
	n, err := nodeops.New(nodeops.Config{})
	ok(b, err)
	return n, staging, pods
}

func unmountBelow(b *testing.B, dir string) {
	points, err := fastmount.New().List()
	ok(b, err)
	for _, p := range slices.Backward(points) {
		if p.Path == dir || strings.HasPrefix(p.Path, dir+"/") {
			ok(b, unix.Unmount(p.Path, unix.UMOUNT_NOFOLLOW))
		}
	}
}

func ok(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
