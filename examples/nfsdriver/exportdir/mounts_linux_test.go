package exportdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// mountWithFile mounts a file system with a file in it: another one, or a directory of
// the same one.
func mountWithFile(t *testing.T, at, kind string) (file string) {
	t.Helper()
	must(t, os.Mkdir(at, 0o755))
	if kind == "bind" {
		other := t.TempDir()
		must(t, unix.Mount(other, at, "", unix.MS_BIND, ""))
	} else {
		must(t, unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	}
	file = filepath.Join(at, "precious")
	must(t, os.WriteFile(file, nil, 0o600))
	return file
}

// A file system mounted inside a volume, which a server may export, is not part of the
// volume: the deletion stops there, and continues when it is unmounted.
func TestDeleteStopsAtMounts(t *testing.T) {
	gate.UserNS(t)
	for _, kind := range []string{"tmpfs", "bind"} {
		t.Run(kind, func(t *testing.T) {
			c, shareDir := newLocalController(t)
			v := c.mustCreate("pvc-1")
			must(t, os.MkdirAll(filepath.Join(shareDir, "pvc-1", "a"), 0o755))
			file := mountWithFile(t, filepath.Join(shareDir, "pvc-1", "a", "mounted"), kind)
			must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), nil, 0o600))
			must(t, c.delete(v.GetVolumeId()))
			left := func(pattern string) []string {
				names, err := filepath.Glob(filepath.Join(shareDir, storeName, dirTrash, pattern))
				must(t, err)
				return names
			}
			for len(left("*/file")) > 0 { // or the test times out
				time.Sleep(time.Millisecond)
			}
			files := left("*/a/mounted/precious")
			if len(files) != 1 {
				t.Fatalf("%s is gone, and there is %q", file, left("*"))
			}
			err := unix.Unmount(filepath.Dir(files[0]), 0)
			for errors.Is(err, unix.EBUSY) { // the driver may have it open; or the test times out
				time.Sleep(time.Millisecond)
				err = unix.Unmount(filepath.Dir(files[0]), 0)
			}
			must(t, err)
			wantShare(t, shareDir)
		})
	}
}

// It is not copied either: a copy without it would be incomplete.
func TestCopyRefusesMounts(t *testing.T) {
	gate.UserNS(t)
	for _, kind := range []string{"tmpfs", "bind"} {
		t.Run(kind, func(t *testing.T) {
			c, shareDir := newLocalController(t)
			v := c.mustCreate("pvc-1")
			file := mountWithFile(t, filepath.Join(shareDir, "pvc-1", "mounted"), kind)
			_, err := c.snapshot("snap", v.GetVolumeId())
			refused(t, err, codes.FailedPrecondition, "mounted")
			_, err = c.create("pvc-2", "volume", v.GetVolumeId())
			refused(t, err, codes.FailedPrecondition, "mounted")
			must(t, unix.Unmount(filepath.Dir(file), 0))
			wantShare(t, shareDir, "pvc-1")
		})
	}
}

// A volume must be in the file system of the export: nothing is moved to another one.
func TestVolumesInMounts(t *testing.T) {
	gate.UserNS(t)
	for _, kind := range []string{"tmpfs", "bind"} {
		t.Run(kind, func(t *testing.T) {
			c, shareDir := newLocalController(t)
			file := mountWithFile(t, filepath.Join(shareDir, "mounted"), kind)
			_, err := c.create("pvc-1", share.ParamSubDir, "mounted/pvc-1")
			refused(t, err, codes.FailedPrecondition, "mounted")
			must(t, os.Remove(file))
			must(t, unix.Unmount(filepath.Dir(file), 0))
			must(t, os.Remove(filepath.Dir(file)))
			wantShare(t, shareDir)
		})
	}
}
