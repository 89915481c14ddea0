package mountapi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// kernels are the running one and those that it can stand for. What follows must
// hold on each.
var kernels = []struct {
	name   string
	kernel Kernel
}{
	{"this", Kernel{}},
	{"6.7", Kernel{Without: StatCalls}},
	{"5.11", Kernel{Without: StatCalls | TreeCalls}},
	{"5.1", Kernel{Without: StatCalls | TreeCalls | ContextCalls}},
	{"this with old mounts", Kernel{Without: TreeCalls | ContextCalls}},
}

func onEachKernel(t *testing.T, test func(*testing.T, Kernel)) {
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) { test(t, k.kernel) })
	}
}

// A sandbox is a tmpfs, gone with the test. Its paths are relative to dir.
type sandbox struct {
	testing.TB
	dir    string
	before []Mount
}

func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	gate.UserNS(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	s := &sandbox{TB: t, dir: dir}
	s.ok(err)
	s.ok(unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { s.ok(unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)) })
	t.Setenv("TMPDIR", s.mkdir("tmp"))
	s.before = s.table()
	return s
}

func (s *sandbox) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *sandbox) path(p string) string { return filepath.Join(s.dir, p) }

func (s *sandbox) mkdir(p string) string {
	s.Helper()
	s.ok(os.MkdirAll(s.path(p), 0o755))
	return s.path(p)
}

func (s *sandbox) touch(p string) string {
	s.Helper()
	s.ok(os.WriteFile(s.path(p), nil, 0o644))
	return s.path(p)
}

// tmpfs mounts one on a new directory.
func (s *sandbox) tmpfs(p string, flags uintptr) string {
	s.Helper()
	s.ok(unix.Mount("tmpfs", s.mkdir(p), "tmpfs", flags, ""))
	return s.path(p)
}

func (s *sandbox) table() []Mount {
	s.Helper()
	table, err := Table()
	s.ok(err)
	return table
}

// mount returns the only mount on the path.
func (s *sandbox) mount(path string) Mount {
	s.Helper()
	on := Stack(s.table(), path)
	if len(on) != 1 {
		s.Fatalf("%d mounts on %s", len(on), path)
	}
	return on[0]
}

// expectNothingNew says that the mounts, and the temporary directory, are as before.
func (s *sandbox) expectNothingNew() {
	s.Helper()
	if added, gone := without(s.table(), s.before), without(s.before, s.table()); len(added)+len(gone) > 0 {
		s.Errorf("mounts that were not there before\n%sand mounts that are not there any more\n%s", text(added), text(gone))
	}
	s.expectNoScratch()
}

func (s *sandbox) expectNoScratch() {
	s.Helper()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		s.Errorf("in the temporary directory are %v, %v", left, err)
	}
}

func without(table, known []Mount) []Mount {
	return slices.DeleteFunc(slices.Clone(table), func(m Mount) bool { return slices.Contains(known, m) })
}

func text(table []Mount) string {
	var b strings.Builder
	for _, m := range table {
		fmt.Fprintf(&b, "%+v\n", m)
	}
	return b.String()
}

// bind is what the callers of this package do.
func bind(k Kernel, source, target string, attr Attr) error {
	tree, err := k.CloneTree(source, attr)
	if err != nil {
		return err
	}
	defer tree.Close()
	return tree.Attach(target)
}

// What works when it is tried must be used: otherwise every test of the native
// way would in fact be one of the fallback.
func TestNativeCallsAreUsed(t *testing.T) {
	s := newSandbox(t)
	if fd, err := unix.OpenTree(unix.AT_FDCWD, s.dir, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC); err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		unix.Close(fd)
		if (err == nil) != hasTreeCalls() {
			t.Errorf("mount_setattr: %v, but hasTreeCalls is %t", err, hasTreeCalls())
		}
	}
	if fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC); err == nil {
		unix.Close(fd)
		if !hasContextCalls() {
			t.Error("fsopen works, but hasContextCalls is false")
		}
	}
	if _, _, err := statMount(0); (err != unix.ENOSYS && err != unix.EPERM) != hasStatCalls() {
		t.Errorf("statmount: %v, but hasStatCalls is %t", err, hasStatCalls())
	}
}

var roles = []gate.Option{gate.WithRole("filtered", filtered)}

// A seccomp filter counts as an older kernel, whatever errno it answers with.
func TestSeccomp(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS, unix.EACCES} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			s := newSandbox(t)
			s.mkdir("target")
			out, err := gate.RoleCommand(t.Context(), "filtered", fmt.Sprint(int(errno)), s.dir).CombinedOutput()
			if err != nil || string(out) != "false false false\n" {
				t.Errorf("%s%v", out, err)
			}
			s.expectNothingNew()
		})
	}
}
