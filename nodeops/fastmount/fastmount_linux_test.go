package fastmount

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/nodeops/fastmount/internal/mountapi"
	"golang.org/x/sys/unix"
)

// The tests of what fastmount does through its exported names are in the module
// test/fastmount, because csitest/gate is in a module that this one must not require. Here
// are those that need what is not exported.

// privateMounts gives the test a mount namespace of its own, on a thread that ends with
// the test, and a tmpfs in it.
func privateMounts(t *testing.T) (dir string) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		if strings.Contains(os.Getenv("CSIKIT_TEST_REQUIRE"), "root") {
			t.Fatalf("a private mount namespace: %v", err)
		}
		t.Skipf("needs root, for a private mount namespace: %v", err)
	}
	ok(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	ok(t, err)
	ok(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { ok(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for _, d := range []string{"src/sub", "dst", "dst2", "sp ace"} {
		ok(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for _, f := range []string{"file", "file2"} {
		ok(t, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
	}
	for link, to := range map[string]string{"link": "dst", "srclink": "src", "dangling": "nowhere"} {
		ok(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	return dir
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A failure after the mount is attached unmounts it.
func TestAFailedMountLeavesNothing(t *testing.T) {
	dir := privateMounts(t)
	before, err := mountapi.Table()
	ok(t, err)
	for _, recursive := range []bool{false, true} {
		o := parseOptions([]string{"bind", "ro"})
		o.recursive = recursive
		o.propagation = []uintptr{unix.MS_SHARED, unix.MS_SHARED | unix.MS_PRIVATE} // the second is EINVAL
		if err := bind(dir+"/src", dir+"/dst", o); !errors.Is(err, unix.EINVAL) {
			t.Errorf("got %v, want EINVAL", err)
		}
		after, err := mountapi.Table()
		ok(t, err)
		if !slices.Equal(before, after) {
			t.Errorf("mounts before:\n%v\nafter:\n%v", before, after)
		}
	}
}

// Kernels before 5.8 say nothing in statx.
func TestMountPointByTable(t *testing.T) {
	dir, m := privateMounts(t), New()
	ok(t, m.Mount(dir+"/src", dir+"/dst", "", []string{"bind"}))
	ok(t, m.Mount(dir+"/file", dir+"/file2", "", []string{"bind"}))
	ok(t, m.Mount("tmpfs", dir+"/sp ace", "tmpfs", nil))
	for _, name := range []string{"src", "dst", "dst/", "dst/sub", "file", "file2", "sp ace", "link", "srclink", "none", "none/x", "dangling", "file/x", "..", "."} {
		path := dir + "/" + name
		want, wantErr := isMountPoint(path)
		got, err := inTable(path)
		if got != want || errors.Is(err, fs.ErrNotExist) != errors.Is(wantErr, fs.ErrNotExist) || (err == nil) != (wantErr == nil) {
			t.Errorf("%s: by table %v, %v; by statx %v, %v", name, got, err, want, wantErr)
		}
		at, err := locate(path)
		if err != nil {
			continue
		}
		if m, found := enclosing(at.table, at.path, -1); !found || m.ID != at.mount.ID {
			t.Errorf("%s: in mount %v by path, %v by statx", name, m, at.mount)
		}
	}
}

func TestEnclosing(t *testing.T) {
	table := []mountapi.Mount{{ID: 1, MountPoint: "/"}, {ID: 2, MountPoint: "/a"}, {ID: 3, MountPoint: "/a/b"}, {ID: 4, MountPoint: "/a"}}
	for path, want := range map[string]int{"/": 1, "/ab": 1, "/a": 4, "/a/b": 4, "/b/a": 1} {
		if m, ok := enclosing(table, path, -1); !ok || m.ID != want {
			t.Errorf("%s: mount %d, want %d", path, m.ID, want)
		}
	}
	if m, ok := enclosing(table, "/a", 3); !ok || m.ID != 3 {
		t.Errorf("mount %d, want the one asked for", m.ID)
	}
	if _, ok := enclosing(table, "/a", 9); ok {
		t.Error("found a mount that is not there")
	}
}

func TestForceComesAfterTheTimeout(t *testing.T) {
	blocked, want := make(chan struct{}), errors.New("forced")
	defer close(blocked)
	if err := withForce(time.Millisecond, func() error { <-blocked; return nil }, func() error { return want }); err != want {
		t.Errorf("%v, want the result of the forced unmount", err)
	}
	if err := withForce(time.Hour, func() error { return want }, func() error { t.Error("forced"); return nil }); err != want {
		t.Error(err)
	}
}

func TestForceUnmount(t *testing.T) {
	dir, m := privateMounts(t), New()
	for _, target := range []string{"dst", "dst2", "dst2"} {
		ok(t, m.Mount("tmpfs", filepath.Join(dir, target), "tmpfs", nil))
	}
	f, err := os.Create(dir + "/dst2/f")
	ok(t, err)
	defer f.Close()
	for _, c := range []struct {
		path string
		want error
	}{
		{"dst", nil}, {"dst", nil}, {"file", nil}, {"link", nil}, {"none", unix.ENOENT}, {"file/x", unix.ENOTDIR}, {"dst2", unix.EBUSY},
	} {
		if err := unmount(filepath.Join(dir, c.path), mountapi.UnmountForce); !errors.Is(err, c.want) || err != nil && c.want == nil {
			t.Errorf("%s: %v, want %v", c.path, err, c.want)
		}
	}
	f.Close()
	ok(t, unmount(dir+"/dst2", mountapi.UnmountForce))
	if is, err := isMountPoint(dir + "/dst2"); !is || err != nil {
		t.Errorf("after one unmount of two: mount point %v, %v", is, err)
	}
}

func TestWhatNeedsMount8(t *testing.T) {
	for _, c := range []struct {
		source, fsType, opts string
	}{
		{"server:/a", "nfs4", ""}, {"//server/a", "cifs", ""}, {"//server/a", "smb3", ""}, {"mon:/", "ceph", ""},
		{"server:/v", "glusterfs", ""}, {"sshfs", "fuse.sshfs", ""}, {"x", "fuse", ""}, {"/dev/sda", "", ""},
		{"LABEL=data", "ext4", ""}, {"UUID=1", "xfs", ""}, {"sda", "ext4", ""}, {"/proc/self/exe", "ext4", ""},
		{"/dev/null", "ext4", ""}, {"", "tmpfs", ""}, {"a", "ext5", ""}, {"tmpfs", "tmpfs", "user"}, {"tmpfs", "tmpfs", "loop=/dev/loop0"},
		{"/a", "", "bind,ro=recursive"}, {"/a", "", "bind,X-mount.mkdir=0700"}, {"/a", "", "move"}, {"/a", "", "rshared"}, {"", "", "bind"},
	} {
		if err := mountByKernel(c.source, "/t", c.fsType, []string{c.opts}, nil); err != errMount8 {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestOptions(t *testing.T) {
	const atime = unix.MOUNT_ATTR__ATIME
	for _, c := range []struct {
		words                        string
		set, clear, bindSet, bindClr uint64
	}{
		{"", 0, 0, 0, 0},
		{"ro", unix.MOUNT_ATTR_RDONLY, 0, unix.MOUNT_ATTR_RDONLY, 0},
		{"rw", 0, unix.MOUNT_ATTR_RDONLY, 0, 0},
		{"ro rw", 0, unix.MOUNT_ATTR_RDONLY, 0, 0},
		{"rw,ro", unix.MOUNT_ATTR_RDONLY, unix.MOUNT_ATTR_RDONLY, unix.MOUNT_ATTR_RDONLY, 0},
		{"noatime", unix.MOUNT_ATTR_NOATIME, atime, unix.MOUNT_ATTR_NOATIME, atime},
		{"noatime strictatime", unix.MOUNT_ATTR_STRICTATIME, atime, unix.MOUNT_ATTR_STRICTATIME, atime},
		{"noatime relatime", 0, atime, 0, 0},
		{"exec nosuid", unix.MOUNT_ATTR_NOSUID, unix.MOUNT_ATTR_NOEXEC, unix.MOUNT_ATTR_NOSUID, 0},
	} {
		o := parseOptions(strings.Fields(c.words))
		if got, want := o.attr(), (unix.MountAttr{Attr_set: c.set, Attr_clr: c.clear}); got != want {
			t.Errorf("%q: %+v, want %+v", c.words, got, want)
		}
		if got, want := o.bindAttr(), (unix.MountAttr{Attr_set: c.bindSet, Attr_clr: c.bindClr}); got != want {
			t.Errorf("%q as a bind: %+v, want %+v", c.words, got, want)
		}
	}
	o := parseOptions([]string{`context="a,ro",ro`}, []string{"rbind,rslave", "remount"})
	if !o.bind || !o.recursive || !o.remount || o.foreign || !slices.Equal(o.rest, []string{`context="a,ro"`, "ro"}) ||
		!slices.Equal(o.propagation, []uintptr{unix.MS_SLAVE | unix.MS_REC}) {
		t.Errorf("%+v", o)
	}
}

// The one option of the list that matters is not lost, whatever stands beside it.
func FuzzOptionsKeepReadOnly(f *testing.F) {
	for _, s := range []string{"", "rw", "noatime,nosuid", `context="a,b"`, "x-a=b", ",,", "ro=recursive"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, other string) {
		o := parseOptions([]string{other, "ro"})
		if o.attr().Attr_set&unix.MOUNT_ATTR_RDONLY == 0 || o.bindAttr().Attr_set&unix.MOUNT_ATTR_RDONLY == 0 {
			t.Errorf("%q: ro was lost", other)
		}
		// Two parsers read a mount's words; both have to see it.
		if known, err := mountapi.ParseOptions(o.rest); err == nil && known.Attr&mountapi.ReadOnly == 0 {
			t.Errorf("%q: ro was lost on the way to the mount", other)
		}
		if a := o.attr(); a.Attr_set&unix.MOUNT_ATTR__ATIME != 0 && a.Attr_clr&unix.MOUNT_ATTR__ATIME != unix.MOUNT_ATTR__ATIME {
			t.Errorf("%q: mount_setattr refuses %+v", other, a)
		}
	})
}
