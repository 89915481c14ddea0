package mountapi

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

var statKernels = []Kernel{{}, {Without: StatCalls}}

func TestAt(t *testing.T) {
	s := newSandbox(t)
	s.mkdir("plain")
	s.touch("file")
	s.ok(os.Symlink("stack", s.path("link")))
	s.mkdir("real/dir")
	s.ok(os.Symlink("real", s.path("via")))
	for range 3 {
		s.tmpfs("stack", 0)
	}
	s.mkdir("stack/dir")
	s.ok(unix.Mount(s.path("file"), s.path("file"), "", unix.MS_BIND, ""))
	s.tmpfs("real/dir", unix.MS_RDONLY)
	s.tmpfs("covered/below", 0)
	s.tmpfs("covered", 0)
	for _, test := range []struct {
		path string
		want int
	}{
		{".", 1}, {"plain", 0}, {"file", 1}, {"stack", 3}, {"stack/", 3}, {"stack/dir", 0}, {"link", 0}, {"real/dir", 1}, {"via/dir", 1},
		{"nope", 0}, {"nope/nope", 0}, {"file/x", 0}, {"file/x/y", 0}, {"covered", 1}, {"covered/below", 0},
	} {
		for _, k := range statKernels {
			on, err := k.At(s.dir + "/" + test.path)
			if err != nil || len(on) != test.want {
				t.Errorf("%s without %b: %v\n%swant %d mounts", test.path, k.Without, err, text(on), test.want)
			}
			for i := 1; i < len(on); i++ {
				if on[i].ParentID != on[i-1].ID {
					t.Errorf("%s without %b: not from bottom to top:\n%s", test.path, k.Without, text(on))
				}
			}
		}
	}
	if hasStatCalls() { // a missing path needs no table
		for _, path := range []string{"nope", "file/x"} {
			if on, err := (Kernel{}).statAt(unix.AT_FDCWD, s.path(path)); on != nil || err != nil {
				t.Errorf("statAt %s: %v, %v", path, on, err)
			}
		}
	}
	t.Chdir(s.dir)
	for _, k := range statKernels {
		if on, err := k.At("stack"); err != nil || len(on) != 3 {
			t.Errorf("relative path without %b: %v, %v", k.Without, on, err)
		}
	}
	// An empty path is not the working directory, which in a container is a mount point.
	t.Chdir(s.path("stack"))
	for _, k := range statKernels {
		if on, err := k.At(""); err != nil || len(on) != 0 {
			t.Errorf("empty path without %b: %v, %v", k.Without, on, err)
		}
	}
}

// Where a directory is bound to itself and shared, a mount below it is in the
// table twice but only once on its path.
func TestAtBelowSharedSelfBind(t *testing.T) {
	s := newSandbox(t)
	s.tmpfs("top", 0)
	s.ok(unix.Mount("", s.path("top"), "", unix.MS_SHARED, ""))
	kubelet := s.mkdir("top/kubelet")
	s.ok(unix.Mount(kubelet, kubelet, "", unix.MS_BIND, ""))
	pod := s.tmpfs("top/kubelet/pod", 0)
	twice := slices.DeleteFunc(s.table(), func(m Mount) bool { return m.MountPoint != pod })
	if len(twice) != 2 {
		t.Fatalf("the test needs 2 lines in the table, there are\n%s", text(twice))
	}
	for _, k := range statKernels {
		on, err := k.At(pod)
		if err != nil || len(on) != 1 || on[0].ParentID != s.mount(kubelet).ID {
			t.Errorf("without %b: %v\n%s", k.Without, err, text(on))
		}
	}
}

// statmount and mountinfo report the same for each mount, in every field.
func TestStatAtAgreesWithTable(t *testing.T) {
	s := newSandbox(t)
	if !hasStatCalls() {
		t.Skip("this kernel has no statmount")
	}
	for name, flags := range map[string]uintptr{
		"a": 0, "b": unix.MS_RDONLY, "c": unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "d": unix.MS_NOATIME, "e": unix.MS_STRICTATIME,
		"f": unix.MS_NODIRATIME, "g": unix.MS_NOSYMFOLLOW, "h": unix.MS_SYNCHRONOUS | unix.MS_DIRSYNC, "i\nj k\\l\t#": 0, longPath: 0,
	} {
		s.tmpfs(name, flags)
	}
	s.ok(unix.Mount("odd so\"ur\\ce\n,#", s.mkdir("odd source"), "tmpfs", 0, "size=1m,mode=700"))
	s.ok(unix.Mount("", s.mkdir("no source"), "tmpfs", 0, ""))
	s.mkdir("a/sub dir")
	s.ok(unix.Mount(s.path("a/sub dir"), s.mkdir("bind"), "", unix.MS_BIND, ""))
	table := s.table()
	reported := 0
	for _, m := range table {
		stat, err := Kernel{}.statAt(unix.AT_FDCWD, m.MountPoint)
		if err == errIncomplete {
			continue
		}
		if want := Stack(table, m.MountPoint); err != nil || !slices.Equal(stat, want) {
			t.Errorf("%q: %v\n%swant\n%s", m.MountPoint, err, text(stat), text(want))
		}
		reported++
	}
	// Either this kernel reports all, except the one without a source, or none.
	if reported != 0 && reported < len(table)-1 {
		t.Errorf("statmount reported %d of %d mounts", reported, len(table))
	}
	if _, err := At(s.path("no source")); err != nil {
		t.Error(err)
	}
}

func TestMountStat(t *testing.T) {
	text := "ext4\x00/root\x00/point\x00/dev/x\x00errors=remount-ro\x00sub\x00"
	full := mountStat{
		mask:  statSuper | statMountBasics | statRoot | statMountPoint | statFSType | statOptions | statFSSubtype | statSource,
		major: 8, minor: 1, oldID: 36, oldParent: 35,
		fsType: 0, root: 5, mountPoint: 11, superSource: 18, options: 25, fsSubtype: 43,
		superFlags: unix.MS_RDONLY | unix.MS_LAZYTIME,
		attr:       unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOATIME | unix.MOUNT_ATTR_IDMAP,
	}
	without := func(bits uint64) *mountStat { s := full; s.mask &^= bits; return &s }
	want := Mount{36, 35, 8, 1, "/root", "/point", "ro,noatime,idmapped", "ext4.sub", "/dev/x", "ro,lazytime,errors=remount-ro"}
	if m, err := full.mount(text); err != nil || m != want {
		t.Errorf("%+v, %v; want %+v", m, err, want)
	}
	want.FSType, want.SuperOptions = "ext4", "ro,lazytime"
	if m, err := without(statFSSubtype | statOptions).mount(text); err != nil || m != want {
		t.Errorf("%+v, %v; want %+v", m, err, want)
	}
	for bit, want := range map[uint64]error{statMountPoint: errUnreachable, statSource: errIncomplete, statSuper: errIncomplete,
		statMountBasics: errIncomplete, statRoot: errIncomplete, statFSType: errIncomplete} {
		if m, err := without(bit).mount(text); err != want {
			t.Errorf("without %#x: %+v, %v", bit, m, err)
		}
	}
	full.mountPoint = 1 << 30
	if m, err := full.mount(text); err != nil || m.MountPoint != "" {
		t.Errorf("offset out of bounds: %+v, %v", m, err)
	}
}
