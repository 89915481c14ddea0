package fastmount_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops/fastmount"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
)

// A contractCase does the same with mount-utils and with fastmount, each in a
// world of its own, and what the two worlds saw is compared.
type contractCase struct {
	name string
	do   func(*world)
	// differs is the reason of a difference that is wanted; then both transcripts
	// are given, so that a change of either side shows.
	differs      string
	theirs, ours string
	helper       bool // fastmount hands this to mount(8)
	root         bool // mount(8) fails at this in a user namespace
}

// world is a directory on a tmpfs of its own and the transcript of what was done
// there:
//
//	src/            marker, sub/
//	dst/ dst2/ sp ace/
//	file file2      regular files
//	link -> dst, srclink -> src, dangling -> nowhere
//	dev             a loop device with ext4 (symlink; in root cases only)
type world struct {
	mount.MounterForceUnmounter
	t    *testing.T
	dir  string
	dev  string
	said []string
}

func (w *world) p(name string) string { return filepath.Join(w.dir, name) }

func (w *world) say(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *world) try(what string, err error) {
	if err == nil {
		w.say("%s ok", what)
	} else {
		w.t.Logf("%s: %v", what, err)
		w.say("%s failed", what)
	}
}

func (w *world) mnt(source, target, fsType string, opts ...string) {
	w.t.Helper()
	w.try("mount", w.Mount(source, target, fsType, opts))
}

func (w *world) bind(opts ...string) {
	w.t.Helper()
	w.mnt(w.p("src"), w.p("dst"), "", append([]string{"bind"}, opts...)...)
}

// show says what is mounted below the world's directory: path, root, type and
// options, whether the superblock is read-only, whether it is a shared or a
// slave mount.
func (w *world) show() {
	text, err := os.ReadFile("/proc/self/mountinfo")
	ok(w.t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		path, below := strings.CutPrefix(f[4], w.dir+"/")
		if !below {
			continue
		}
		sep := slices.Index(f, "-")
		opts := strings.Split(f[5], ",")
		slices.Sort(opts)
		super, _, _ := strings.Cut(f[sep+3], ",")
		var tags []string
		for _, tag := range f[6:sep] {
			tag, _, _ = strings.Cut(tag, ":")
			tags = append(tags, tag)
		}
		lines = append(lines, fmt.Sprint(path, " ", f[3], " ", f[sep+1], " ", opts, " ", super, " ", tags))
	}
	w.said = append(w.said, lines...)
}

func (w *world) check(names ...string) {
	for _, name := range names {
		path := name
		if !strings.HasPrefix(path, "/") {
			path = w.dir + "/" + name // not Join: a slash at the end is to stay
		}
		is, err := w.IsMountPoint(path)
		not, err2 := w.IsLikelyNotMountPoint(path)
		w.say("%s: mount point %v %v, likely not %v %v", name, is, os.IsNotExist(err), not, os.IsNotExist(err2))
	}
}

func (w *world) refs(name string) {
	refs, err := w.GetMountRefs(w.p(name))
	for i := range refs {
		refs[i] = strings.TrimPrefix(refs[i], w.dir+"/")
	}
	slices.Sort(refs)
	w.try("refs", err)
	w.say("%q", refs)
}

func (w *world) writable(name string) {
	err := os.WriteFile(w.p(name), []byte("x"), 0o600)
	w.say("%s writable: %v", name, err == nil)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spy counts what reaches mount(8).
type spy struct {
	mount.Interface
	calls int
}

func (s *spy) MountSensitive(source, target, fsType string, opts, sensitive []string) error {
	s.calls++
	return s.Interface.MountSensitive(source, target, fsType, opts, sensitive)
}

func newWorld(t *testing.T, m mount.Interface) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	ok(t, err)
	ok(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { unmountBelow(t, dir) })
	w := &world{t: t, MounterForceUnmounter: m.(mount.MounterForceUnmounter), dir: dir}
	for _, d := range []string{"src/sub", "dst", "dst2", "sp ace"} {
		ok(t, os.MkdirAll(w.p(d), 0o755))
	}
	for _, f := range []string{"src/marker", "file", "file2"} {
		ok(t, os.WriteFile(w.p(f), nil, 0o644))
	}
	ok(t, os.Symlink("dst", w.p("link")))
	ok(t, os.Symlink("src", w.p("srclink")))
	ok(t, os.Symlink("nowhere", w.p("dangling")))
	return w
}

// unmountBelow removes dir's mount and those below it.
func unmountBelow(t testing.TB, dir string) {
	points, err := fastmount.New().List()
	ok(t, err)
	for _, p := range slices.Backward(points) {
		if p.Path == dir || strings.HasPrefix(p.Path, dir+"/") {
			err := unix.Unmount(p.Path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
			if err != nil && err != unix.EINVAL { // EINVAL: it went with a peer
				t.Errorf("unmount %s: %v", p.Path, err)
			}
		}
	}
}

func runContract(t *testing.T, cases []contractCase, device func(*testing.T) string) {
	peer := mount.NewWithoutSystemd("")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				gate.Root(t)
			}
			run := func(name string, m mount.Interface) (said string) {
				t.Run(name, func(t *testing.T) {
					dev := ""
					if device != nil {
						dev = device(t) // detached after the world is unmounted
					}
					w := newWorld(t, m)
					w.dev = dev
					c.do(w)
					said = strings.ReplaceAll(strings.Join(w.said, "\n"), w.dir, "DIR")
					if w.dev != "" {
						said = strings.ReplaceAll(said, w.dev, "DEV")
					}
				})
				return said
			}
			helper := &spy{Interface: peer}
			theirs, ours := run("mount-utils", peer), run("fastmount", fastmount.New(fastmount.WithFallback(helper)))
			if helper.calls > 0 != c.helper {
				t.Errorf("mount(8) was called %d times", helper.calls)
			}
			if c.differs == "" {
				if theirs != ours {
					t.Errorf("mount-utils:\n%s\nfastmount:\n%s", theirs, ours)
				}
				return
			}
			if theirs != c.theirs {
				t.Errorf("mount-utils:\n%s\nwant:\n%s", theirs, c.theirs)
			}
			if ours != c.ours {
				t.Errorf("fastmount:\n%s\nwant:\n%s", ours, c.ours)
			}
		})
	}
}

func lines(l ...string) string { return strings.Join(l, "\n") }

func TestContract(t *testing.T) {
	gate.UserNS(t)
	gate.Tools(t, "mount", "umount")
	var cases []contractCase
	add := func(c ...contractCase) { cases = append(cases, c...) }

	// Binds: attributes.
	for _, opts := range []string{
		"", "ro", "rw", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "strictatime", "relatime", "nosymfollow",
		"ro nosuid nodev noexec noatime", "ro rw", "rw ro", "noatime strictatime", "noatime atime",
		"ro,nosuid", "ro defaults", "ro _netdev", "ro nofail", "ro x-systemd.automount", "ro comment=a", "discard size=5",
		`ro context="a,b"`, "private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable", "shared ro", "shared slave",
	} {
		root := strings.Contains(opts, "_netdev") || strings.Contains(opts, "x-") // mount(8) writes /run/mount/utab
		add(contractCase{name: "bind " + opts, root: root, do: func(w *world) {
			w.bind(strings.Fields(opts)...)
			w.show()
			w.writable("dst/new")
			w.check("dst")
		}})
	}
	// Binds: what the source restricts.
	for _, c := range []struct {
		source uintptr
		opts   string
	}{
		{unix.MS_RDONLY, ""}, {unix.MS_RDONLY, "rw"}, {unix.MS_NOEXEC | unix.MS_NOSUID, "exec suid nodev"},
		{unix.MS_NOATIME, ""}, {unix.MS_NOATIME, "relatime"}, {unix.MS_NOATIME, "strictatime"},
		{unix.MS_STRICTATIME, ""}, {unix.MS_STRICTATIME, "noatime"},
	} {
		add(contractCase{name: fmt.Sprintf("bind of %#x %s", c.source, c.opts), do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("src"), "tmpfs", c.source&^unix.MS_RDONLY, ""))
			ok(w.t, unix.Mount("", w.p("src"), "", unix.MS_BIND|unix.MS_REMOUNT|c.source, ""))
			w.bind(strings.Fields(c.opts)...)
			w.show()
		}})
	}
	add(
		contractCase{name: "bind of a read-only superblock", do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("src"), "tmpfs", unix.MS_RDONLY, ""))
			w.bind()
			points, err := w.List()
			ok(w.t, err)
			for _, p := range points {
				if p.Path == w.p("dst") {
					w.say("%v", p.Opts[0])
				}
			}
		}},
		contractCase{name: "bind of nosymfollow",
			differs: "what restricts the source restricts the bind",
			do: func(w *world) {
				ok(w.t, unix.Mount("tmpfs", w.p("src"), "tmpfs", unix.MS_NOSYMFOLLOW, ""))
				w.bind()
				w.show()
			},
			theirs: lines("mount ok", "src / tmpfs [nosymfollow relatime rw] rw []", "dst / tmpfs [relatime rw] rw []"),
			ours:   lines("mount ok", "src / tmpfs [nosymfollow relatime rw] rw []", "dst / tmpfs [nosymfollow relatime rw] rw []"),
		},
	)
	// Binds: paths.
	for _, c := range []struct{ name, source, target string }{
		{"file", "file", "file2"}, {"file on a directory", "file", "dst"}, {"directory on a file", "src", "file"},
		{"missing source", "none", "dst"}, {"missing target", "src", "none"}, {"dangling target", "src", "dangling"},
		{"symlink as source", "srclink", "dst"}, {"symlink as target", "src", "link"}, {"dot", "src/.", "dst/."},
		{"space", "src", "sp ace"}, {"trailing slash", "src/", "dst/"},
	} {
		add(contractCase{name: "bind " + c.name, do: func(w *world) {
			w.mnt(w.dir+"/"+c.source, w.dir+"/"+c.target, "", "bind", "ro")
			w.show()
		}})
	}
	add(
		contractCase{name: "bind by relative paths", do: func(w *world) {
			w.t.Chdir(w.dir)
			w.mnt("src", "dst", "", "bind")
			w.show()
			w.check("dst")
			is, err := w.IsMountPoint("dst")
			w.say("%v %v", is, err)
			w.try("unmount", w.Unmount("dst"))
		}},
		contractCase{name: "bind through /proc/self/fd", do: func(w *world) {
			fd, err := unix.Open(w.p("src"), unix.O_PATH, 0)
			ok(w.t, err)
			defer unix.Close(fd)
			w.mnt(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), w.p("dst"), "", "bind")
			w.show()
		}},
		contractCase{name: "bind leaves out mounts below, rbind has them", do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("src/sub"), "tmpfs", 0, ""))
			w.bind("ro")
			w.mnt(w.p("src"), w.p("dst2"), "", "rbind", "ro", "nosuid")
			w.show()
			w.writable("dst2/new")
			w.writable("dst2/sub/new")
		}},
		contractCase{name: "rbind of a missing source", do: func(w *world) {
			w.mnt(w.p("none"), w.p("dst"), "", "rbind")
			w.mnt(w.p("src"), w.p("none"), "", "rbind")
			w.show()
		}},
		contractCase{name: "binds stack", do: func(w *world) {
			w.bind()
			w.bind("ro")
			w.show()
			w.try("unmount", w.Unmount(w.p("dst")))
			w.show()
		}},
		contractCase{name: "bind with a type", do: func(w *world) {
			w.mnt(w.p("src"), w.p("dst"), "ext4", "bind")
			w.show()
		}},
		contractCase{name: "bind without a source", helper: true, do: func(w *world) {
			w.mnt("", w.p("dst"), "", "bind")
			w.show()
		}},
		contractCase{name: "bind of an unbindable mount", do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("src"), "tmpfs", 0, ""))
			ok(w.t, unix.Mount("", w.p("src"), "", unix.MS_UNBINDABLE, ""))
			w.bind("ro")
			w.show()
		}},
		contractCase{name: "bind below a shared mount, made private", do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("dst2"), "tmpfs", 0, ""))
			ok(w.t, unix.Mount("", w.p("dst2"), "", unix.MS_SHARED, ""))
			ok(w.t, os.MkdirAll(w.p("dst2/a"), 0o755))
			ok(w.t, os.MkdirAll(w.p("dst2/b"), 0o755))
			w.mnt(w.p("src"), w.p("dst2/a"), "", "bind")
			w.mnt(w.p("src"), w.p("dst2/b"), "", "bind", "private")
			w.show()
		}},
		contractCase{name: "propagation only", helper: true, do: func(w *world) {
			w.bind()
			w.mnt(w.p("dst"), w.p("dst"), "", "rshared")
			w.mnt(w.p("src"), w.p("src"), "", "rshared") // not a mount
			w.show()
		}},
		contractCase{name: "X-mount.mkdir", helper: true, do: func(w *world) {
			w.bind("X-mount.mkdir", "ro")
			w.show()
		}},
	)
	// What a host sees that shares the target's directory with the driver.
	add(contractCase{name: "read-only bind, as a peer of the target's mount gets it",
		differs: "a remount is not propagated: the host would keep a writable mount",
		do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("dst"), "tmpfs", 0, ""))
			ok(w.t, unix.Mount("", w.p("dst"), "", unix.MS_SHARED, ""))
			ok(w.t, unix.Mount(w.p("dst"), w.p("dst2"), "", unix.MS_BIND, ""))
			ok(w.t, os.Mkdir(w.p("dst/t"), 0o755))
			w.mnt(w.p("src"), w.p("dst/t"), "", "bind", "ro")
			w.writable("dst/t/new")
			w.writable("dst2/t/new")
		},
		theirs: lines("mount ok", "dst/t/new writable: false", "dst2/t/new writable: true"),
		ours:   lines("mount ok", "dst/t/new writable: false", "dst2/t/new writable: false"),
	})
	// Remounts.
	add(
		contractCase{name: "bind,remount,ro",
			differs: "one mount is changed, no other is stacked on it",
			do: func(w *world) {
				w.bind("nosuid")
				w.bind("remount", "ro")
				w.show()
			},
			theirs: lines("mount ok", "mount ok", "dst /src tmpfs [nosuid relatime rw] rw []", "dst /src tmpfs [relatime ro] rw []"),
			ours:   lines("mount ok", "mount ok", "dst /src tmpfs [nosuid relatime ro] rw []"),
		},
		contractCase{name: "bind,remount where nothing is mounted", do: func(w *world) {
			w.bind("remount", "ro")
			w.show()
		}},
		contractCase{name: "bind,remount without a source",
			differs: "mount-utils searches fstab for the bind",
			do: func(w *world) {
				w.bind()
				w.mnt("", w.p("dst"), "", "bind", "remount", "ro", "noexec")
				w.show()
				w.mnt("", w.p("dst"), "", "bind", "remount", "rw")
				w.show()
				w.mnt("", w.p("dst2"), "", "bind", "remount", "ro")
			},
			theirs: lines("mount ok", "mount failed", "dst /src tmpfs [relatime rw] rw []", "mount failed", "dst /src tmpfs [relatime rw] rw []", "mount failed"),
			ours: lines("mount ok", "mount ok", "dst /src tmpfs [noexec relatime ro] rw []",
				"mount ok", "dst /src tmpfs [noexec relatime rw] rw []", "mount failed"),
		},
		contractCase{name: "remount by target", root: true, do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("dst"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m"))
			for _, opts := range []string{"ro", "rw", "noexec", "noatime", "size=2m", "ro,exec", "size=3m"} {
				w.mnt("", w.p("dst"), "", "remount", opts)
				w.show()
			}
			var st unix.Statfs_t
			ok(w.t, unix.Statfs(w.p("dst"), &st))
			w.say("%d", int64(st.Blocks)*st.Bsize)
		}},
		contractCase{name: "remount,ro with a file open for writing", do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("dst"), "tmpfs", 0, ""))
			f, err := os.Create(w.p("dst/f"))
			ok(w.t, err)
			defer f.Close()
			w.mnt("", w.p("dst"), "", "remount", "ro")
			w.show()
		}},
		contractCase{name: "remount of what is not mounted", do: func(w *world) {
			w.mnt("", w.p("dst"), "", "remount", "ro")
			w.mnt("", w.p("none"), "", "remount", "ro")
			w.mnt("tmpfs", w.p("dst"), "tmpfs", "remount", "ro")
		}},
		contractCase{name: "remount with an option that tmpfs lacks", do: func(w *world) {
			ok(w.t, unix.Mount("tmpfs", w.p("dst"), "tmpfs", 0, ""))
			w.mnt("", w.p("dst"), "", "remount", "nosuch=1")
			w.show()
		}},
		contractCase{name: "remount of a type that is left to mount(8)", helper: true, do: func(w *world) {
			ok(w.t, unix.Mount("ramfs", w.p("dst"), "ramfs", 0, ""))
			w.mnt("", w.p("dst"), "", "remount", "ro")
			w.show()
		}},
		contractCase{name: "remount by source and target",
			differs: "a remount changes what it names",
			do: func(w *world) {
				ok(w.t, unix.Mount("tmpfs", w.p("dst"), "tmpfs", unix.MS_NOSUID, ""))
				w.mnt("tmpfs", w.p("dst"), "tmpfs", "remount", "ro")
				w.show()
			},
			theirs: lines("mount ok", "dst / tmpfs [relatime ro] ro []"),
			ours:   lines("mount ok", "dst / tmpfs [nosuid relatime ro] ro []"),
		},
	)
	// tmpfs.
	for _, opts := range []string{"", "ro", "size=1m,mode=0700", "noexec nosuid nodev noatime", "nosuch", "size=x", "shared", "defaults", "sync"} {
		add(contractCase{name: "tmpfs " + opts, do: func(w *world) {
			w.mnt("tmpfs", w.p("dst"), "tmpfs", strings.Fields(opts)...)
			w.show()
		}})
	}
	add(
		contractCase{name: "tmpfs stacks", do: func(w *world) {
			w.mnt("a", w.p("dst"), "tmpfs")
			w.mnt("a", w.p("dst"), "tmpfs")
			w.show()
		}},
		contractCase{name: "tmpfs on a missing target", do: func(w *world) {
			w.mnt("tmpfs", w.p("none"), "tmpfs")
			w.mnt("tmpfs", w.p("file"), "tmpfs")
			w.show()
		}},
		contractCase{name: "type that no kernel has", helper: true, do: func(w *world) {
			w.mnt("x", w.p("dst"), "nosuchfs")
			w.mnt("server:/x", w.p("dst"), "nfs", "ro")
			w.mnt("/nowhere", w.p("dst"), "")
			w.show()
		}},
		contractCase{name: "nothing given", helper: true, do: func(w *world) {
			w.mnt("", "", "")
			w.mnt("", w.p("dst"), "")
		}},
	)
	// Unmounts.
	add(
		contractCase{name: "unmount", do: func(w *world) {
			w.bind()
			w.try("unmount", w.Unmount(w.p("dst")))
			w.try("unmount again", w.Unmount(w.p("dst")))
			w.try("unmount a file", w.Unmount(w.p("file")))
			w.try("unmount a missing path", w.Unmount(w.p("none")))
			w.try("unmount below a file", w.Unmount(w.p("file/x")))
			w.try("unmount a dangling link", w.Unmount(w.p("dangling")))
			w.try("unmount a link to a directory", w.Unmount(w.p("link")))
			w.show()
			w.say("skip the check: %v", w.CanSafelySkipMountPointCheck())
		}},
		contractCase{name: "unmount through a symlink", do: func(w *world) {
			w.bind()
			w.try("unmount", w.Unmount(w.p("link")))
			w.show()
		}},
		contractCase{name: "unmount with a file open", do: func(w *world) {
			w.mnt("tmpfs", w.p("dst"), "tmpfs")
			f, err := os.Create(w.p("dst/f"))
			ok(w.t, err)
			w.try("unmount", w.Unmount(w.p("dst")))
			w.try("unmount by force", w.UnmountWithForce(w.p("dst"), time.Hour))
			w.show()
			f.Close()
			w.try("unmount by force", w.UnmountWithForce(w.p("dst"), time.Hour))
			w.try("unmount by force", w.UnmountWithForce(w.p("dst"), time.Hour))
			w.try("unmount by force", w.UnmountWithForce(w.p("none"), time.Hour))
			w.show()
		}},
		contractCase{name: "unmount with a mount below", do: func(w *world) {
			w.mnt("tmpfs", w.p("dst"), "tmpfs")
			ok(w.t, os.Mkdir(w.p("dst/a"), 0o755))
			w.mnt("tmpfs", w.p("dst/a"), "tmpfs")
			w.try("unmount", w.Unmount(w.p("dst")))
			w.show()
		}},
	)
	for _, extensive := range []bool{false, true} {
		add(contractCase{name: fmt.Sprint("cleanup ", extensive), do: func(w *world) {
			w.bind("ro")
			w.mnt(w.p("file"), w.p("file2"), "", "bind")
			for _, name := range []string{"dst", "file2", "none", "dst2", "src"} {
				w.try(name, mount.CleanupMountPoint(w.p(name), w.MounterForceUnmounter, extensive))
				_, err := os.Lstat(w.p(name))
				w.say("gone: %v", os.IsNotExist(err))
			}
			w.bind2("sp ace")
			w.try("force", mount.CleanupMountWithForce(w.p("sp ace"), w.MounterForceUnmounter, extensive, time.Hour))
			w.show()
		}})
	}
	// Checks.
	add(
		contractCase{name: "checks", do: func(w *world) {
			w.bind()
			w.mnt("tmpfs", w.p("dst2"), "tmpfs")
			w.mnt(w.p("file"), w.p("file2"), "", "bind")
			w.mnt(w.p("src"), w.p("sp ace"), "", "bind")
			w.check("src", "dst", "dst/", "dst/.", "dst/sub", "dst/sub/..", "dst2", "file", "file2", "sp ace", "link", "srclink",
				"none", "none/none", "file/x", "dangling", "/", "/proc")
		}},
		contractCase{name: "references", do: func(w *world) {
			for _, name := range []string{"src", "none", "dangling"} {
				w.refs(name)
			}
			w.bind()
			w.mnt(w.p("src"), w.p("dst2"), "", "bind", "ro")
			w.mnt(w.p("src/sub"), w.p("file"), "", "bind") // refused: not a directory
			for _, name := range []string{"src", "dst", "dst2", "dst/sub", "link", "src/marker", "file"} {
				w.refs(name)
			}
			ok(w.t, unix.Mount("tmpfs", w.p("src/sub"), "tmpfs", 0, ""))
			w.refs("src/sub")
			w.refs("dst/sub")
		}},
		contractCase{name: "references of a path with a space",
			differs: "mount-utils compares with the kernel's escapes",
			do: func(w *world) {
				w.bind()
				w.mnt(w.p("src"), w.p("sp ace"), "", "bind")
				w.refs("dst")
			},
			theirs: lines("mount ok", "mount ok", "refs ok", `["sp\\040ace"]`),
			ours:   lines("mount ok", "mount ok", "refs ok", `["sp ace"]`),
		},
		contractCase{name: "list", do: func(w *world) {
			w.mnt("a b", w.p("dst"), "tmpfs", "ro", "nosuid", "size=1m")
			w.bind("noatime")
			w.mnt("tmpfs", w.p("sp ace"), "tmpfs", "sync")
			points, err := w.List()
			ok(w.t, err)
			for _, p := range points {
				if strings.HasPrefix(p.Path, w.dir) {
					w.say("%s", strings.ReplaceAll(fmt.Sprint(p), `\040`, " ")) // the escapes are the one difference
				}
			}
		}},
		contractCase{name: "device name from a mount", do: func(w *world) {
			w.mnt("name", w.p("dst"), "tmpfs")
			name, n, err := mount.GetDeviceNameFromMount(w.MounterForceUnmounter, w.p("link"))
			w.say("%s %d %v", name, n, err)
		}},
	)
	runContract(t, cases, nil)
}

func (w *world) bind2(target string) {
	ok(w.t, os.MkdirAll(w.p("src"), 0o755))
	w.mnt(w.p("src"), w.p(target), "", "bind")
}

// loopDevice makes a loop device of an image and returns its path.
func loopDevice(t testing.TB, mkfs string, opts ...loopdev.Option) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	ok(t, err)
	ok(t, f.Truncate(320<<20)) // mkfs.xfs refuses less than 300 MiB
	ok(t, f.Close())
	if mkfs != "" {
		f := strings.Fields(mkfs)
		if out, err := exec.Command(f[0], append(f[1:], image)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", mkfs, err, out)
		}
	}
	d, err := loopdev.Attach(t.Context(), image, opts...)
	ok(t, err)
	t.Cleanup(func() { ok(t, d.Detach(context.Background())) })
	return d.Path
}

func TestContractOnADevice(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mount", "umount", "mkfs.ext4")
	var cases []contractCase
	for _, opts := range []string{
		"", "ro", "defaults", "errors=remount-ro", "noatime nosuid nodev", "nosuch", "noload ro", "data=ordered,discard", "nofail", "shared",
	} {
		cases = append(cases, contractCase{name: "ext4 " + opts, do: func(w *world) {
			w.mnt(w.dev, w.p("dst"), "ext4", strings.Fields(opts)...)
			w.show()
			w.check("dst")
		}})
	}
	cases = append(cases,
		contractCase{name: "twice on one target", do: func(w *world) {
			w.mnt(w.dev, w.p("dst"), "ext4")
			w.mnt(w.dev, w.p("dst"), "ext4")
			w.mnt(w.dev, w.p("link"), "ext4")
			w.show()
		}},
		contractCase{name: "on two targets", do: func(w *world) {
			w.mnt(w.dev, w.p("dst"), "ext4")
			w.mnt(w.dev, w.p("dst2"), "ext4", "nosuid")
			w.mnt(w.dev, w.p("sp ace"), "ext4", "ro") // EBUSY: the superblock is writable
			w.show()
			w.refs("dst")
		}},
		contractCase{name: "wrong type", do: func(w *world) {
			w.mnt(w.dev, w.p("dst"), "xfs")
			w.show()
		}},
		contractCase{name: "missing device", do: func(w *world) {
			w.mnt("/dev/nosuch", w.p("dst"), "ext4")
			w.mnt(w.dev, w.p("none"), "ext4")
			w.mnt(w.dev, w.p("file"), "ext4")
			w.show()
		}},
		contractCase{name: "missing device, nofail",
			differs: "success means mounted",
			do: func(w *world) {
				w.mnt("/dev/nosuch", w.p("dst"), "ext4", "nofail")
				w.show()
			},
			theirs: "mount ok", ours: "mount failed"},
		contractCase{name: "symlink to the device", do: func(w *world) {
			ok(w.t, os.Symlink(w.dev, w.p("dev")))
			w.mnt(w.p("dev"), w.p("dst"), "ext4")
			name, n, err := mount.GetDeviceNameFromMount(w.MounterForceUnmounter, w.p("dst"))
			w.say("%s %d %v", name, n, err)
		}},
		contractCase{name: "type to be guessed", helper: true, do: func(w *world) {
			w.mnt(w.dev, w.p("dst"), "")
			w.show()
		}},
		contractCase{name: "no block device", helper: true, do: func(w *world) {
			w.mnt("/dev/null", w.p("dst"), "ext4")
			w.mnt(w.p("file"), w.p("dst"), "ext4")
			w.show()
		}},
		contractCase{name: "remount", do: func(w *world) {
			w.mnt(w.dev, w.p("dst"), "ext4", "nosuid")
			for _, opts := range []string{"ro", "rw", "noatime", "errors=continue", "ro,noexec", "nosuch", "commit=7"} {
				w.mnt("", w.p("dst"), "", "remount", opts)
				w.show()
			}
		}},
		contractCase{name: "bind of a staged volume", do: func(w *world) {
			w.mnt(w.dev, w.p("src"), "ext4", "noexec")
			w.bind("ro", "nosuid")
			w.show()
			w.refs("src")
			w.try("unmount", w.Unmount(w.p("dst")))
			w.try("unmount", w.Unmount(w.p("src")))
			w.show()
		}},
	)
	runContract(t, cases, func(t *testing.T) string { return loopDevice(t, "mkfs.ext4 -q") })
}

func TestContractOnAWriteProtectedDevice(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mount", "umount", "mkfs.ext4")
	runContract(t, []contractCase{{name: "ext4", do: func(w *world) {
		w.mnt(w.dev, w.p("dst"), "ext4", "nosuid")
		w.show()
		w.mnt(w.dev, w.p("dst2"), "ext4", "ro")
		w.mnt(w.dev, w.p("sp ace"), "xfs")
		w.show()
	}}}, func(t *testing.T) string { return loopDevice(t, "mkfs.ext4 -q", loopdev.WithReadOnly()) })
}

// Every type that is mounted here has been tried here.
func TestContractOnEveryType(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mount", "umount")
	mkfs := map[string]string{
		"ext2": "mkfs.ext2 -q", "ext3": "mkfs.ext3 -q", "ext4": "mkfs.ext4 -q", "xfs": "mkfs.xfs -q", "btrfs": "mkfs.btrfs -q",
	}
	for fsType := range mkfs {
		t.Run(fsType, func(t *testing.T) {
			gate.Tools(t, strings.Fields(mkfs[fsType])[0])
			if supported, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(supported), "\t"+fsType+"\n") {
				t.Skipf("this kernel has no %s", fsType)
			}
			runContract(t, []contractCase{{name: "life", do: func(w *world) {
				w.mnt(w.dev, w.p("dst"), fsType, "defaults", "noatime")
				w.writable("dst/a")
				for _, opts := range []string{"ro", "rw", "nosuid", "ro"} {
					w.mnt("", w.p("dst"), "", "remount", opts)
					w.show()
				}
				w.try("unmount", w.Unmount(w.p("dst")))
				w.mnt(w.dev, w.p("dst"), fsType, "ro", "nodev")
				w.mnt(w.dev, w.p("dst"), fsType, "ro")
				w.bind2("dst2")
				w.show()
				w.refs("dst")
				points, err := w.List()
				ok(w.t, err)
				for _, p := range points {
					if p.Path == w.p("dst") {
						w.say("%v", p)
					}
				}
			}}}, func(t *testing.T) string { return loopDevice(t, mkfs[fsType]) })
		})
	}
}
