package mountapi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

func openPoint(t *testing.T, path string) *Point {
	t.Helper()
	p, err := OpenPoint(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func bindOnItself(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
}

// A Point stays what it was when the link on its path is replaced, and when its directory is
// renamed; so does its second one.
func TestPoint(t *testing.T) {
	gate.UserNS(t)
	dir := t.TempDir()
	bindOnItself(t, dir+"/a/p")
	bindOnItself(t, dir+"/b/p")
	must(t, os.Symlink("a", dir+"/link"))
	first, err := OpenPoint(dir + "/link//p/")
	must(t, err)
	second, err := first.Dup()
	must(t, err)
	t.Cleanup(second.Close)
	if first.Path() != dir+"/a/p" || second.Path() != first.Path() {
		t.Errorf("paths are %s and %s", first.Path(), second.Path())
	}
	must(t, os.Remove(dir+"/link"))
	must(t, os.Symlink("b", dir+"/link"))
	must(t, os.Rename(dir+"/a", dir+"/c"))
	must(t, os.Rename(dir+"/b", dir+"/a"))
	if on, err := second.At(); err != nil || len(on) != 1 || on[0].MountPoint != dir+"/c/p" {
		t.Errorf("mounted is %v, %v", on, err)
	}
	first.Close()
	for _, want := range []bool{true, false} {
		if was, err := second.Unmount(); was != want || err != nil {
			t.Errorf("unmounted: %v, %v", was, err)
		}
	}
	if on, err := At(dir + "/a/p"); err != nil || len(on) != 1 {
		t.Errorf("what took its path: %v, %v", on, err)
	}
	must(t, unix.Unmount(dir+"/a/p", 0))
}

func TestPointErrors(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	must(t, os.Symlink("loop", dir+"/loop"))
	for path, want := range map[string]error{
		"":                 fs.ErrNotExist,
		dir + "/missing/p": fs.ErrNotExist,
		dir + "/file/p":    unix.ENOTDIR,
		dir + "/loop/p":    unix.ELOOP,
		tooLong(t, dir):    unix.ENAMETOOLONG,
	} {
		if p, err := OpenPoint(path); !errors.Is(err, want) {
			t.Errorf("%.100s: %v, %v; want %v", path, p, err, want)
		}
	}
}

// tooLong is a path that the kernel does not take, in a directory that exists.
func tooLong(t *testing.T, dir string) string {
	for len(dir) < unix.PathMax-500 {
		dir += "/" + strings.Repeat("d", 200)
	}
	must(t, os.MkdirAll(dir, 0o755))
	dir = filepath.Join(dir, strings.Repeat("e", 200))
	must(t, os.MkdirAll(dir, 0o755))
	return dir + "/" + strings.Repeat("m", unix.PathMax-1-len(dir))
}

// Without /proc a Point is resolved by the library, and unmounted by its path.
func TestPointWithoutProc(t *testing.T) {
	gate.UserNS(t)
	dir := t.TempDir()
	bindOnItself(t, dir+"/a/p")
	must(t, os.Symlink("a", dir+"/link"))
	must(t, unix.Mount("tmpfs", "/proc", "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount("/proc", 0)) }()
	p := openPoint(t, dir+"/link/p")
	second, err := p.Dup()
	must(t, err)
	defer second.Close()
	if p.Path() != dir+"/a/p" {
		t.Errorf("path is %s", p.Path())
	}
	for _, want := range []bool{true, false} {
		if was, err := second.Unmount(); was != want || err != nil {
			t.Errorf("unmounted: %v, %v", was, err)
		}
	}
	if _, err := OpenPoint(dir + "/missing/p"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A Source is what was at its path when it was opened, also by the mount table, and its copy is
// that mount's.
func TestSource(t *testing.T) {
	gate.UserNS(t)
	dir := t.TempDir()
	for _, name := range []string{"s", "t"} {
		must(t, os.Mkdir(dir+"/"+name, 0o755))
	}
	must(t, unix.Mount("ours", dir+"/s", "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir+"/s", 0)) })
	s, err := OpenSource(dir + "/s")
	must(t, err)
	table := *s
	table.st.Mask = 0 // as on a kernel without statmount
	for _, source := range []*Source{s, &table} {
		if m, ok, err := source.Mount(); !ok || err != nil || m.Source != "ours" || m.MountPoint != dir+"/s" {
			t.Errorf("mount is %+v, %v, %v", m, ok, err)
		}
	}
	must(t, unix.Mount("theirs", dir+"/s", "tmpfs", 0, ""))
	if m, ok, err := s.Mount(); err == nil && (!ok || m.Source != "ours") {
		t.Errorf("below another mount it is %+v, %v", m, ok)
	}
	if m, ok, err := table.Mount(); err == nil || ok {
		t.Errorf("below another mount the table has %+v", m)
	}
	tree, err := s.Clone(ReadOnly)
	must(t, err)
	must(t, tree.Attach(dir+"/t"))
	if on, err := At(dir + "/t"); err != nil || len(on) != 1 || on[0].Source != "ours" || !on[0].MountReadOnly() {
		t.Errorf("attached is %+v, %v", on, err)
	}
	must(t, tree.Close())
	must(t, unix.Unmount(dir+"/t", 0))
	must(t, unix.Unmount(dir+"/s", 0))
	s.Close()

	s, err = OpenSource(dir + "/t")
	must(t, err)
	defer s.Close()
	table = *s
	table.st.Mask = 0
	for _, source := range []*Source{s, &table} {
		if m, ok, err := source.Mount(); ok || err != nil {
			t.Errorf("on a plain directory %+v, %v", m, err)
		}
	}
	must(t, os.Symlink("t", dir+"/link"))
	if _, err := OpenSource(dir + "/link"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symlink: %v", err)
	}
}
