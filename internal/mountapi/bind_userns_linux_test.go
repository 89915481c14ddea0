package mountapi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// longPath has almost as many bytes as a path may have.
var longPath = strings.Repeat(strings.Repeat("x", 250)+"/", 15) + "end"

func TestBind(t *testing.T) {
	const restricted = ReadOnly | NoSuid | NoDev | NoExec | NoAtime | NoDirAtime
	volume := func(flags uintptr) func(*sandbox) {
		return func(s *sandbox) { s.tmpfs("volume", flags) }
	}
	link := func(to string) func(*sandbox) {
		return func(s *sandbox) { s.ok(os.Symlink(to, s.path("link"))) }
	}
	directory := func(p string) func(*sandbox) {
		return func(s *sandbox) { s.mkdir(p) }
	}
	tests := []struct {
		name           string
		prepare        func(*sandbox)
		source, target string // "volume" and "target" if empty
		attr           Attr
		want           Attr
		err            error
	}{
		{name: "read-write"},
		{name: "read-only", attr: ReadOnly, want: ReadOnly},
		{name: "nosuid, nodev, noexec", attr: NoSuid | NoDev | NoExec, want: NoSuid | NoDev | NoExec},
		{name: "noatime", attr: NoAtime, want: NoAtime},
		{name: "nodiratime", attr: NoDirAtime, want: NoDirAtime},
		{name: "strictatime", attr: StrictAtime, want: StrictAtime},
		{name: "nosymfollow", attr: NoSymFollow, want: NoSymFollow},
		{name: "everything", attr: restricted, want: restricted},

		{name: "inherited", prepare: volume(unix.MS_NOSUID | unix.MS_NOATIME | unix.MS_NODIRATIME), want: NoSuid | NoAtime | NoDirAtime},
		{name: "added to what is inherited", prepare: volume(unix.MS_NOSUID | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_NOSYMFOLLOW),
			attr: ReadOnly, want: ReadOnly | NoSuid | NoAtime | NoDirAtime | NoSymFollow},
		{name: "read-only of strictatime", prepare: volume(unix.MS_STRICTATIME), attr: ReadOnly, want: ReadOnly | StrictAtime},
		{name: "strictatime of noatime", prepare: volume(unix.MS_NOATIME), attr: StrictAtime, want: StrictAtime},
		{name: "noatime of strictatime", prepare: volume(unix.MS_STRICTATIME), attr: NoAtime, want: NoAtime},
		{name: "read-write of read-only", prepare: volume(unix.MS_RDONLY), want: ReadOnly},

		{name: "file", source: "file", target: "target-file"},
		{name: "read-only file", source: "file", target: "target-file", attr: ReadOnly, want: ReadOnly},
		{name: "subdirectory", source: ".", attr: ReadOnly, want: ReadOnly},
		{name: "space", prepare: directory("a b"), target: "a b", attr: ReadOnly, want: ReadOnly},
		{name: "newline", prepare: directory("a\nb"), target: "a\nb", attr: ReadOnly, want: ReadOnly},
		{name: "backslash, quote, comma", prepare: directory(`a\040",#`), target: `a\040",#`, attr: ReadOnly, want: ReadOnly},
		{name: "long target", prepare: directory(longPath), target: longPath, attr: ReadOnly, want: ReadOnly},
		{name: "long source", prepare: directory(longPath), source: longPath, attr: ReadOnly, want: ReadOnly},
		{name: "symlink as parent of the target", prepare: link("parent"), target: "link/target"},
		{name: "on a mount", prepare: func(s *sandbox) { s.tmpfs("target", 0) }, attr: ReadOnly, want: ReadOnly},

		{name: "missing source", source: "nope", err: fs.ErrNotExist},
		{name: "missing target", target: "nope", err: fs.ErrNotExist},
		{name: "source below a file", source: "file/x", err: unix.ENOTDIR},
		{name: "symlink as source", prepare: link("volume"), source: "link", err: unix.ELOOP},
		{name: "symlink to a file as source", prepare: link("file"), source: "link", target: "target-file", err: unix.ELOOP},
		{name: "symlink as target", prepare: link("target"), target: "link", err: unix.ELOOP},
		{name: "dangling symlink as target", prepare: link("nope"), target: "link", err: unix.ELOOP},
		{name: "directory on a file", target: "target-file", err: unix.ENOTDIR},
		{name: "file on a directory", source: "file", err: unix.ENOTDIR},
		{name: "too long", target: longPath + "/" + longPath, err: unix.ENAMETOOLONG},
		{name: "unbindable", prepare: func(s *sandbox) { s.ok(unix.Mount("", s.path("volume"), "", unix.MS_UNBINDABLE, "")) }, err: unix.EINVAL},
	}
	onEachKernel(t, func(t *testing.T, k Kernel) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				s := newSandbox(t)
				s.tmpfs("volume", 0)
				for _, d := range []string{"target", "parent/target"} {
					s.mkdir(d)
				}
				for _, f := range []string{"file", "target-file"} {
					s.touch(f)
				}
				if test.prepare != nil {
					test.prepare(s)
				}
				s.before = s.table()
				source, target := "volume", "target"
				if test.source != "" {
					source = test.source
				}
				if test.target != "" {
					target = test.target
				}
				target = s.path(target)
				err := bind(k, s.path(source), target, test.attr)
				if test.err != nil {
					if !errors.Is(err, test.err) {
						t.Errorf("error is %v, want %v", err, test.err)
					}
					s.expectNothingNew()
					return
				}
				s.ok(err)
				s.expectNoScratch()
				s.expectAdded(k, target, test.want)
				expectWritable(t, target, test.want&ReadOnly == 0)
				if was, err := Unmount(target); !was || err != nil {
					t.Errorf("Unmount: %t, %v", was, err)
				}
				s.expectNothingNew()
			})
		}
	})
}

// expectAdded says that one mount is there that was not before, on top of target.
func (s *sandbox) expectAdded(k Kernel, target string, attr Attr) Mount {
	s.Helper()
	target, err := Resolve(target)
	s.ok(err)
	added := without(s.table(), s.before)
	if len(added) != 1 || added[0].MountPoint != target || added[0].MountAttr() != attr {
		s.Fatalf("mounted is\n%swant one mount on %s with %v", text(added), target, attr)
	}
	on, err := k.At(target)
	if err != nil || len(on) == 0 || on[len(on)-1] != added[0] {
		s.Errorf("At: %v\n%swant the top to be\n%s", err, text(on), text(added))
	}
	return added[0]
}

func expectWritable(t *testing.T, path string, want bool) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.IsDir() {
		path = filepath.Join(path, "written")
	}
	err = os.WriteFile(path, []byte("x"), 0o600)
	if want && err != nil || !want && !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v, want it possible: %t", err, want)
	}
}

func TestBindIsNotRecursive(t *testing.T) {
	onEachKernel(t, func(t *testing.T, k Kernel) {
		s := newSandbox(t)
		s.tmpfs("volume", 0)
		s.tmpfs("volume/below", 0)
		s.touch("volume/below/file")
		s.ok(bind(k, s.path("volume"), s.mkdir("target"), ReadOnly))
		if _, err := os.Lstat(s.path("target/below/file")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the mount below the source came along: %v", err)
		}
	})
}

// In another mount namespace the bind is what it is here, from its first moment.
func TestPropagation(t *testing.T) {
	onEachKernel(t, func(t *testing.T, k Kernel) {
		s := newSandbox(t)
		volume := s.tmpfs("volume", 0)
		pods := s.tmpfs("pods", 0)
		s.ok(unix.Mount("", pods, "", unix.MS_SHARED, ""))
		s.ok(unix.Mount(pods, s.mkdir("peer"), "", unix.MS_BIND, ""))
		target, tmp := s.mkdir("pods/target"), s.mkdir("pods/tmp")
		t.Setenv("TMPDIR", tmp) // the peer sees it, too
		s.before = s.table()
		source := s.mount(volume)
		k.fail = func(step string) error {
			for _, m := range s.table() {
				if !m.SameDevice(source) || m.MountPoint == volume {
					continue
				}
				if !isBelow(m.MountPoint, tmp) || step == "move" && !m.MountReadOnly() {
					t.Errorf("before step %q there is %+v", step, m)
				}
			}
			return nil
		}
		s.ok(bind(k, volume, target, ReadOnly))
		for _, p := range []string{"pods/target", "peer/target"} {
			if m := s.mount(s.path(p)); !m.MountReadOnly() {
				t.Errorf("%s is bound as %+v", p, m)
			}
		}
		if was, err := Unmount(target); !was || err != nil {
			t.Errorf("Unmount: %t, %v", was, err)
		}
		s.expectNothingNew()
	})
}

// A tree that is not attached, because Attach is not called or fails, leaves no trace.
func TestTreeVanishes(t *testing.T) {
	onEachKernel(t, func(t *testing.T, k Kernel) {
		s := newSandbox(t)
		volume := s.mount(s.tmpfs("volume", 0))
		s.before = s.table()
		tree, err := k.CloneTree(volume.MountPoint, ReadOnly)
		s.ok(err)
		root, err := tree.Root()
		if want := (Root{Major: volume.Major, Minor: volume.Minor}); err != nil || root != want {
			t.Errorf("root is %+v, %v; want %+v", root, err, want)
		}
		if err := tree.Attach(s.path("nope")); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		s.ok(tree.Close())
		s.expectNothingNew()
	})
}

// Each step of the fallback fails once, and nothing is left.
func TestFallbackFails(t *testing.T) {
	for _, op := range []struct {
		name  string
		steps int
		make  func(Kernel, string) (*Tree, error)
	}{
		{"bind", 6, func(k Kernel, source string) (*Tree, error) { return k.CloneTree(source, ReadOnly) }},
		{"tmpfs", 4, func(k Kernel, source string) (*Tree, error) { return k.NewTree("tmpfs", "tmpfs", Options{}) }},
	} {
		t.Run(op.name, func(t *testing.T) {
			s := newSandbox(t)
			s.tmpfs("volume", 0)
			s.mkdir("target")
			s.before = s.table()
			attempt := func(failAt int) (steps []string, err error) {
				k := Kernel{Without: TreeCalls | ContextCalls, fail: func(step string) error {
					steps = append(steps, step)
					if len(steps) == failAt {
						return unix.EIO
					}
					return nil
				}}
				tree, err := op.make(k, s.path("volume"))
				if err != nil {
					return steps, err
				}
				err = tree.Attach(s.path("target"))
				s.ok(tree.Close())
				return steps, err
			}
			for i := 1; i <= op.steps; i++ {
				if steps, err := attempt(i); !errors.Is(err, unix.EIO) || len(steps) != i {
					t.Errorf("failed at %d of %q: %v", i, steps, err)
				}
				s.expectNothingNew()
			}
			if steps, err := attempt(0); err != nil || len(steps) != op.steps {
				t.Errorf("%q: %v", steps, err)
			}
			s.expectNoScratch()
		})
	}
}

// A kernel before 5.10 would mount as if nosymfollow had not been asked for.
func TestFallbackIgnoresFlag(t *testing.T) {
	s := newSandbox(t)
	k := Kernel{Without: TreeCalls, fail: func(step string) error {
		if step != "stat" {
			return nil
		}
		scratch, err := filepath.Glob(filepath.Join(os.TempDir(), "*", "m"))
		if err != nil || len(scratch) != 1 {
			t.Fatal(scratch, err)
		}
		return unix.Mount("", scratch[0], "", unix.MS_BIND|unix.MS_REMOUNT, "")
	}}
	if err := bind(k, s.mkdir("volume"), s.mkdir("target"), NoSymFollow); !errors.Is(err, ErrOption) {
		t.Error(err)
	}
	s.expectNothingNew()
}

func TestFallbackWithoutTemporaryDirectory(t *testing.T) {
	s := newSandbox(t)
	t.Setenv("TMPDIR", s.path("nope"))
	err := bind(Kernel{Without: TreeCalls}, s.mkdir("volume"), s.mkdir("target"), 0)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "temporary directory") {
		t.Error(err)
	}
}

func TestUnmount(t *testing.T) {
	s := newSandbox(t)
	expect := func(path string, want bool, wantErr error) {
		t.Helper()
		if was, err := Unmount(s.path(path)); was != want || !errors.Is(err, wantErr) {
			t.Errorf("%s: %t, %v; want %t, %v", path, was, err, want, wantErr)
		}
	}
	s.mkdir("plain")
	s.touch("file")
	s.ok(os.Symlink("volume", s.path("link")))
	expect("plain", false, nil)
	expect("file", false, nil)
	expect("nope", false, nil)
	expect("nope/nope", false, nil)
	expect("file/nope", false, nil)

	s.tmpfs("volume", 0)
	s.tmpfs("volume", 0)
	f, err := os.Create(s.path("volume/open"))
	s.ok(err)
	expect("link", false, nil)
	expect("volume", false, unix.EBUSY)
	s.ok(f.Close())
	expect("volume", true, nil)
	expect("volume", true, nil)
	expect("volume", false, nil)
	s.expectNothingNew()
}
