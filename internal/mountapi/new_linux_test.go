package mountapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

// mountNew makes the file system and attaches it, if check is content.
func mountNew(k Kernel, fsType, source, target string, o Options, check func(*Tree) error) error {
	tree, err := k.NewTree(fsType, source, o)
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := check(tree); err != nil {
		return err
	}
	return tree.Attach(target)
}

func TestNewTmpfs(t *testing.T) {
	check := func(*Tree) error { return nil }
	onEachKernel(t, func(t *testing.T, k Kernel) {
		for _, test := range []struct {
			name, fsType, target string
			options              Options
			super                string // a word of the super options
			err                  error
		}{
			{name: "plain"},
			{name: "options", options: Options{Attr: NoSuid | NoAtime, Data: []string{"size=1m", "mode=700"}}, super: "size=1024k"},
			{name: "read-only", options: Options{Attr: ReadOnly}, super: "ro"},
			{name: "strictatime", options: Options{Attr: StrictAtime}},
			{name: "everything", options: Options{Attr: ReadOnly | NoSuid | NoDev | NoExec | NoAtime | NoDirAtime | NoSymFollow}},
			{name: "unknown option", options: Options{Data: []string{"size=1m", "nope"}}, err: ErrOption},
			{name: "unknown option with a value", options: Options{Data: []string{"nope=1"}}, err: ErrOption},
			{name: "bad value", options: Options{Data: []string{"size=many"}}, err: ErrOption},
			{name: "two options in one", options: Options{Data: []string{"size=1m,mode=700"}}, err: ErrOption},
			{name: "unknown type", fsType: "nope", err: unix.ENODEV},
			{name: "missing target", target: "nope", err: fs.ErrNotExist},
			{name: "target is a file", target: "file", err: unix.ENOTDIR},
			{name: "target is a symlink", target: "link", err: unix.ELOOP},
		} {
			t.Run(test.name, func(t *testing.T) {
				s := newSandbox(t)
				s.mkdir("target")
				s.touch("file")
				s.ok(os.Symlink("target", s.path("link")))
				fsType, target := "tmpfs", "target"
				if test.fsType != "" {
					fsType = test.fsType
				}
				if test.target != "" {
					target = test.target
				}
				err := mountNew(k, fsType, "name", s.path(target), test.options, check)
				if test.err != nil {
					if !errors.Is(err, test.err) {
						t.Errorf("error is %v, want %v", err, test.err)
					}
					s.expectNothingNew()
					return
				}
				s.ok(err)
				s.expectNoScratch()
				m := s.expectAdded(k, s.path(target), test.options.Attr)
				if m.FSType != "tmpfs" || m.Source != "name" || test.super != "" && !hasOption(m.SuperOptions, test.super) {
					t.Errorf("mounted as %+v", m)
				}
				expectWritable(t, s.path(target), test.options.Attr&ReadOnly == 0)
			})
		}
	})
}

// A volume is a file system on a loop device.
type volume struct {
	*sandbox
	dev *loopdev.Device
}

func newVolume(t *testing.T, fsType string) *volume {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs")
	s := newSandbox(t)
	image := s.touch("image")
	s.ok(os.Truncate(image, 320<<20)) // mkfs.xfs refuses less than 300 MiB
	dev, err := loopdev.Attach(t.Context(), image)
	s.ok(err)
	v := &volume{s, dev}
	t.Cleanup(func() { v.detach() })
	v.setReadOnly(false)
	if fsType != "" {
		if out, err := exec.Command("mkfs."+fsType, "-q", dev.Path).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.%s: %v, %s", fsType, err, out)
		}
	}
	s.mkdir("target")
	s.before = s.table()
	return v
}

func (v *volume) detach() {
	v.Helper()
	v.setReadOnly(false)
	// Not the test's context, which is over in its Cleanup.
	if err := v.dev.Detach(context.Background()); err != nil {
		v.Error(err)
	}
}

func (v *volume) setReadOnly(on bool) {
	v.Helper()
	f, err := os.Open(v.dev.Path)
	v.ok(err)
	defer f.Close()
	flag := 0
	if on {
		flag = 1
	}
	v.ok(unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, flag))
}

// checkRoot checks that the tree is of this device, as a CSI driver must.
func (v *volume) checkRoot(fsType string) func(*Tree) error {
	return func(tree *Tree) error {
		if fsType == "btrfs" { // reports it only by ioctl
			dir, err := tree.Open()
			if err != nil {
				return err
			}
			return dir.Close()
		}
		root, err := tree.Root()
		want := Root{Major: unix.Major(v.dev.Rdev), Minor: unix.Minor(v.dev.Rdev)}
		if err == nil && root != want {
			err = fmt.Errorf("root is %+v, want %+v", root, want)
		}
		return err
	}
}

func TestNewOnDevice(t *testing.T) {
	plain := func(*volume) {}
	for _, test := range []struct {
		name, on string // "" is a blank device
		fsType   string // what it is mounted as
		source   string // the device if empty
		prepare  func(*volume)
		options  Options
		super    string
		err      error
	}{
		{name: "ext4", on: "ext4", fsType: "ext4"},
		{name: "xfs", on: "xfs", fsType: "xfs"},
		{name: "btrfs", on: "btrfs", fsType: "btrfs", options: Options{Data: []string{"subvolid=5"}}, super: "subvolid=5"},
		{name: "ext4 with options", on: "ext4", fsType: "ext4",
			options: Options{Attr: NoSuid | NoDirAtime, Data: []string{"errors=remount-ro", "data=journal"}}, super: "errors=remount-ro"},
		{name: "xfs with options", on: "xfs", fsType: "xfs", options: Options{Attr: NoAtime, Data: []string{"nouuid"}}, super: "nouuid"},
		{name: "read-only ext4", on: "ext4", fsType: "ext4", options: Options{Attr: ReadOnly}, super: "ro"},
		{name: "read-only xfs", on: "xfs", fsType: "xfs", options: Options{Attr: ReadOnly, Data: []string{"norecovery"}}, super: "norecovery"},
		{name: "read-only device, read-only", on: "ext4", fsType: "ext4", prepare: func(v *volume) { v.setReadOnly(true) },
			options: Options{Attr: ReadOnly}, super: "ro"},
		{name: "read-only device, read-write", on: "ext4", fsType: "ext4", prepare: func(v *volume) { v.setReadOnly(true) }, err: unix.EACCES},
		{name: "unknown option of ext4", on: "ext4", fsType: "ext4", options: Options{Data: []string{"nope"}}, err: ErrOption},
		{name: "unknown option of xfs", on: "xfs", fsType: "xfs", options: Options{Data: []string{"nope=1"}}, err: ErrOption},
		{name: "blank as ext4", fsType: "ext4", err: unix.EINVAL},
		{name: "blank as xfs", fsType: "xfs", err: unix.EINVAL},
		{name: "ext4 as xfs", on: "ext4", fsType: "xfs", err: unix.EINVAL},
		{name: "missing device", fsType: "ext4", source: "/dev/nope", err: fs.ErrNotExist},
		{name: "directory as device", fsType: "ext4", source: "/dev", err: unix.ENOTBLK},
		{name: "mounted read-write elsewhere", on: "ext4", fsType: "ext4", options: Options{Attr: ReadOnly}, err: unix.EBUSY,
			prepare: func(v *volume) {
				v.ok(unix.Mount(v.dev.Path, v.mkdir("elsewhere"), "ext4", 0, ""))
				v.Cleanup(func() { v.ok(unix.Unmount(v.path("elsewhere"), 0)) })
			}},
	} {
		if test.prepare == nil {
			test.prepare = plain
		}
		t.Run(test.name, func(t *testing.T) {
			onEachKernel(t, func(t *testing.T, k Kernel) {
				v := newVolume(t, test.on)
				test.prepare(v)
				v.before = v.table()
				source, target := v.dev.Path, v.path("target")
				if test.source != "" {
					source = test.source
				}
				err := mountNew(k, test.fsType, source, target, test.options, v.checkRoot(test.fsType))
				if test.err != nil {
					if !errors.Is(err, test.err) || test.err != ErrOption && errors.Is(err, ErrOption) {
						t.Errorf("error is %v, want %v", err, test.err)
					}
					v.expectNothingNew()
					return
				}
				v.ok(err)
				v.expectNoScratch()
				m := v.expectAdded(k, target, test.options.Attr)
				if m.FSType != test.fsType || m.Source != source || test.super != "" && !hasOption(m.SuperOptions, test.super) {
					t.Errorf("mounted as %+v", m)
				}
				if m.Major != unix.Major(v.dev.Rdev) || m.Minor != unix.Minor(v.dev.Rdev) {
					t.Errorf("the table shows device %d:%d, want that of %s", m.Major, m.Minor, source)
				}
				expectWritable(t, target, test.options.Attr&ReadOnly == 0)
				if was, err := Unmount(target); !was || err != nil {
					t.Errorf("Unmount: %t, %v", was, err)
				}
				v.expectNothingNew()
			})
		})
	}
}

// After Close of a tree that was not attached the device is free immediately.
func TestNewTreeReleasesDevice(t *testing.T) {
	onEachKernel(t, func(t *testing.T, k Kernel) {
		v := newVolume(t, "ext4")
		tree, err := k.NewTree("ext4", v.dev.Path, Options{})
		v.ok(err)
		if err := v.exclusive(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("opening the mounted device exclusively: %v", err)
		}
		v.ok(tree.Close())
		v.ok(v.exclusive())
		v.expectNothingNew()
	})
}

func (v *volume) exclusive() error {
	f, err := os.OpenFile(v.dev.Path, os.O_RDWR|unix.O_EXCL, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}

func TestMountData(t *testing.T) {
	page := os.Getpagesize()
	for _, test := range []struct {
		options []string
		want    string
		err     error
	}{
		{nil, "", nil},
		{[]string{"discard", "data=ordered"}, "discard,data=ordered", nil},
		{[]string{"context=system_u:object_r:t:s0:c1,c2", "discard"}, `context="system_u:object_r:t:s0:c1,c2",discard`, nil},
		{[]string{"context=system_u:object_r:t:s0"}, "context=system_u:object_r:t:s0", nil},
		{[]string{"a=b=c,d"}, `a="b=c,d"`, nil},
		{[]string{"discard,ro"}, "", ErrOption},
		{[]string{"a,b=c"}, "", ErrOption},
		{[]string{`context=a",b`}, "", ErrOption},
		{[]string{strings.Repeat("x", page-1)}, strings.Repeat("x", page-1), nil},
		{[]string{strings.Repeat("x", page)}, "", ErrOption},
	} {
		if got, err := mountData(test.options); got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%.60q: %.60q, %v; want %.60q, %v", test.options, got, err, test.want, test.err)
		}
	}
}
