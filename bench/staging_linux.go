package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

const mib, gib = 1 << 20, 1 << 30

// volume is a blank loop device and a directory to stage it on.
type volume struct {
	node    *nodeops.Node
	dev     *loopdev.Device
	dir     string
	staging string
}

func (b *bench) newVolume(size int64) (_ *volume, err error) {
	dir, err := os.MkdirTemp(b.dir, "v")
	if err != nil {
		return nil, err
	}
	v := &volume{dir: dir, staging: filepath.Join(dir, "staging")}
	image := filepath.Join(dir, "image")
	if err := errors.Join(os.Mkdir(v.staging, 0o755), os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		return nil, err
	}
	if v.node, err = nodeops.New(nodeops.Config{}); err != nil {
		return nil, err
	}
	v.dev, err = loopdev.Attach(context.Background(), image)
	return v, err
}

func (v *volume) close() error {
	err := unix.Unmount(v.staging, 0)
	if errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return errors.Join(err, v.dev.Detach(context.Background()), os.RemoveAll(filepath.Join(v.dir, "image")))
}

func (v *volume) unmount() error { return unix.Unmount(v.staging, 0) }

// erase unmounts the device and makes it blank.
func (v *volume) erase() error {
	if err := v.unmount(); err != nil {
		return err
	}
	d, err := os.OpenFile(v.dev.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Fallocate(int(d.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, v.dev.Size)
}

func (v *volume) stage(fsType string, prezeroed bool) error {
	return v.node.StageFilesystem(context.Background(), nodeops.StageFilesystemRequest{
		VolumeID: "v", Device: nodeops.Device{Path: v.dev.Path}, StagingTargetPath: v.staging, FSType: fsType, Prezeroed: prezeroed,
	})
}

func measureStaging(b *bench) error {
	t := b.newTable("staging", "Staging", "A volume on a loop device: one with a clean file system, and a blank one of 1 GiB, which is formatted "+
		"(prezeroed: the storage says that it is zero). In parentheses how many times faster than SafeFormatAndMount of k8s.io/mount-utils, "+
		"which checks less: it formats a device on which blkid finds nothing.", true, "FormatAndMount", "nodeops")
	if b.short {
		return nil
	}
	// It logs each mkfs.
	stderr, null := os.Stderr, (*os.File)(nil)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	os.Stderr = null
	defer func() { os.Stderr = stderr }()
	for _, c := range []struct {
		fsType string
		size   int64
	}{{"ext4", 64 * mib}, {"xfs", 320 * mib}, {"btrfs", 128 * mib}} {
		err := b.withVolume(c.size, func(v *volume) error {
			if err := errors.Join(v.stage(c.fsType, false), v.unmount()); err != nil {
				return err
			}
			return b.add(t, "clean "+c.fsType, 0, v.ways(c.fsType, false, v.unmount))
		})
		for _, prezeroed := range []bool{false, true} {
			if err == nil {
				err = b.withVolume(gib, func(v *volume) error {
					name := "fresh " + c.fsType
					if prezeroed {
						name += ", prezeroed"
					}
					return b.add(t, name, 0, v.ways(c.fsType, prezeroed, v.erase))
				})
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.fsType, err)
		}
	}
	return nil
}

func (b *bench) withVolume(size int64, do func(*volume) error) error {
	v, err := b.newVolume(size)
	if err != nil {
		return err
	}
	return errors.Join(do(v), v.close())
}

func (v *volume) ways(fsType string, prezeroed bool, undo func() error) []way {
	m := mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), exec.New())
	return []way{
		{"FormatAndMount", each(func() error { return m.FormatAndMount(v.dev.Path, v.staging, fsType, nil) }, undo)},
		{"nodeops", each(func() error { return v.stage(fsType, prezeroed) }, undo)},
	}
}
