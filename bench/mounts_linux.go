package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/csikit/csikit/nodeops/fastmount"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

const (
	utilsWay = "mount-utils"
	mobyWay  = "moby/sys/mountinfo"
	fastWay  = "fastmount"
)

// world has a source on a file system of its own, like a staged volume, and many mounts beside it.
type world struct{ dir, source, target string }

func (b *bench) newWorld(mounts int) (w world, err error) {
	dir, err := os.MkdirTemp(b.dir, "w")
	if err == nil {
		err = unix.Mount("bench", dir, "tmpfs", 0, "")
	}
	if err != nil {
		return w, err
	}
	w = world{dir, filepath.Join(dir, "source"), filepath.Join(dir, "target")}
	for _, d := range []string{w.source, w.target} {
		err = errors.Join(err, os.Mkdir(d, 0o755))
	}
	if err == nil {
		err = unix.Mount("volume", w.source, "tmpfs", 0, "")
	}
	for i := 0; i < mounts && err == nil; i++ {
		beside := filepath.Join(dir, fmt.Sprint("other-", i))
		if err = os.Mkdir(beside, 0o755); err == nil {
			err = unix.Mount(w.source, beside, "", unix.MS_BIND, "")
		}
	}
	return w, err
}

// close unmounts what is mounted below as well.
func (w world) close() error { return unix.Unmount(w.dir, unix.MNT_DETACH) }

func measureMounts(b *bench) error {
	t := b.newTable("mounts", "Mount primitives", "The methods of mount.Interface, by k8s.io/mount-utils and by fastmount, which replaces it; "+
		"in parentheses how many times faster than mount-utils.", true, utilsWay, fastWay)
	moby := b.newTable("mountinfo", "Reading the mount table", "The mount table and what is in it, beside moby/sys/mountinfo.", true, mobyWay, utilsWay, fastWay)
	sizes := []int{10, 1000, 10000}
	if b.short {
		sizes = []int{10}
	}
	for _, mounts := range sizes {
		w, err := b.newWorld(mounts)
		if err != nil {
			return err
		}
		err = b.primitives(t, moby, w, mounts)
		if err = errors.Join(err, w.close()); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) primitives(t, moby *table, w world, mounts int) error {
	utils, fast := mount.NewWithoutSystemd(""), fastmount.New()
	both := func(op, undo func(mount.Interface) error) []way {
		var ways []way
		for _, m := range []struct {
			name string
			m    mount.Interface
		}{{utilsWay, utils}, {fastWay, fast}} {
			var back func() error
			if undo != nil {
				back = func() error { return undo(fast) }
			}
			ways = append(ways, way{m.name, each(func() error { return op(m.m) }, back)})
		}
		return ways
	}
	bind := func(options ...string) func(mount.Interface) error {
		return func(m mount.Interface) error {
			return m.Mount(w.source, w.target, "", append([]string{"bind"}, options...))
		}
	}
	unmount := func(m mount.Interface) error { return m.Unmount(w.target) }
	isMountPoint := func(path string, want bool) func(mount.Interface) error {
		return func(m mount.Interface) error {
			is, err := m.IsMountPoint(path)
			if err == nil && is != want {
				err = fmt.Errorf("%s is a mount point: %v", path, is)
			}
			return err
		}
	}
	add := func(name string, op, undo func(mount.Interface) error) error {
		return b.add(t, fmt.Sprintf("%s, %d mounts", name, mounts), float64(mounts), both(op, undo))
	}
	err := add("bind", bind(), unmount)
	if err == nil {
		err = add("read-only bind", bind("ro"), unmount)
	}
	if err == nil {
		if err = bind()(fast); err == nil {
			err = add("unmount", unmount, bind())
			err = errors.Join(err, unmount(fast))
		}
	}
	if err == nil {
		err = add("is a mount point", isMountPoint(w.source, true), nil)
	}
	if err == nil {
		err = add("is no mount point", isMountPoint(w.target, false), nil)
	}
	if err == nil {
		err = add("device of a mount", func(m mount.Interface) error {
			device, refs, err := mount.GetDeviceNameFromMount(m, w.source)
			if err == nil && (device != "volume" || refs == 0) {
				err = fmt.Errorf("device is %q", device)
			}
			return err
		}, nil)
	}
	if err == nil {
		err = add("references of a mount", func(m mount.Interface) error {
			refs, err := m.GetMountRefs(w.source)
			if err == nil && len(refs) != mounts {
				err = fmt.Errorf("%d references, want %d", len(refs), mounts)
			}
			return err
		}, nil)
	}
	if err != nil {
		return err
	}
	list := both(func(m mount.Interface) error { _, err := m.List(); return err }, nil)
	theirs := way{mobyWay, each(func() error { _, err := mountinfo.GetMounts(nil); return err }, nil)}
	return b.add(moby, fmt.Sprintf("list, %d mounts", mounts), float64(mounts), append([]way{theirs}, list...))
}
