package filepool

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

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
func TestHealthOfABrokenPool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pool")
	mountPool(t, dir, "ext4")
	p, err := initPool(dir)
	must(t, err)
	defer p.Close()
	dev, err := loopdev.Find(dir + ".disk")
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
