package loopdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pollInterval = 10 * time.Millisecond
	// Each lost race for a number means that another process got it; this many in a row
	// indicate another problem.
	maxRaces = 1000
)

func attach(ctx context.Context, path string, c config) (*Device, error) {
	image, stat, err := openImage(path, c.readOnly)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := lock(ctx, image); err != nil {
		return nil, err
	}
	dev, err := find(stat)
	switch {
	case err == nil:
		defer dev.Close()
		return adopt(dev, c, image)
	case errors.Is(err, ErrNotAttached):
		return configure(ctx, image, path, c)
	}
	return nil, err
}

// openImage opens path, for its lock, and requires a regular file that can be opened for
// the access.
func openImage(path string, readOnly bool) (*os.File, *unix.Stat_t, error) {
	// O_NONBLOCK: a FIFO in place of the image must not block the open.
	const flags = unix.O_NOFOLLOW | unix.O_NONBLOCK
	// Writable even if read-only was requested: NFS grants an exclusive flock only then.
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if err != nil && readOnly {
		f, err = os.OpenFile(path, os.O_RDONLY|flags, 0)
	}
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			err = fmt.Errorf("%w: the image must not be a symbolic link", err)
		}
		return nil, nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		f.Close()
		return nil, nil, os.NewSyscallError("fstat", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, nil, fmt.Errorf("%w: not a regular file", unix.EINVAL)
	}
	return f, &stat, nil
}

// lock takes the flock that serialises Attach and Detach of one image. It is released
// when f is closed.
func lock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || errors.Is(err, unix.EBADF) {
			// EBADF: NFS, mounted read-only. A read-only image may be attached twice
			// without harm.
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock", err)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for another process that attaches, detaches or locks it: %w", err)
		}
	}
}

func pause(ctx context.Context) error {
	t := time.NewTimer(pollInterval)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// configure attaches image to a free device.
func configure(ctx context.Context, image *os.File, path string, c config) (*Device, error) {
	// The device keeps the open file, and with it any flock on it: a process that is killed
	// before it unlocks would lock the image until the detach. So open another one, through
	// /proc, to get the same inode.
	mode := os.O_RDWR
	if c.readOnly {
		mode = os.O_RDONLY
	}
	backing, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", image.Fd()), mode, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()

	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: load the loop module, and mount the host's /dev into the container", err)
	}
	defer control.Close()
	for range maxRaces {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		dev, err := openDevice(n, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		d, err := configureDevice(dev, backing, path, c)
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process took the number first
			return d, err
		}
	}
	return nil, fmt.Errorf("%w: no free loop device could be claimed in %d attempts", unix.EBUSY, maxRaces)
}

func configureDevice(dev, backing *os.File, path string, c config) (*Device, error) {
	conf := unix.LoopConfig{Fd: uint32(backing.Fd()), Size: 512}
	conf.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	if c.readOnly {
		conf.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	copy(conf.Info.File_name[:len(conf.Info.File_name)-1], path) // informational; may be truncated
	err := unix.IoctlLoopConfigure(int(dev.Fd()), &conf)
	if errors.Is(err, unix.EINVAL) {
		// Most kernels disable direct I/O automatically if it is not supported.
		conf.Info.Flags &^= unix.LO_FLAGS_DIRECT_IO
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &conf)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		err = configureInSteps(dev, backing, &conf.Info)
	}
	if err != nil {
		return nil, fmt.Errorf("configure %s: %w", dev.Name(), err)
	}
	d, err := settle(dev, c.readOnly)
	if err != nil {
		return nil, errors.Join(err, unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0))
	}
	return d, nil
}

// configureInSteps is LOOP_CONFIGURE for Linux before 5.8. A process that is killed between the
// steps leaves a device that serves the image: the next Attach finds it by its inode. The device
// is read-only if the image is open for reading only.
func configureInSteps(dev, backing *os.File, info *unix.LoopInfo64) error {
	fd := int(dev.Fd())
	if err := unix.IoctlSetInt(fd, unix.LOOP_SET_FD, int(backing.Fd())); err != nil {
		return fmt.Errorf("LOOP_SET_FD: %w", err)
	}
	info.Flags = 0 // of the flags, LOOP_SET_STATUS64 sets only those of autoclear and partitions
	if err := unix.IoctlLoopSetStatus64(fd, info); err != nil {
		return errors.Join(fmt.Errorf("LOOP_SET_STATUS64: %w", err), unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0))
	}
	// The block size of the disk below, where that is larger: see the package's documentation.
	_ = unix.IoctlSetInt(fd, unix.LOOP_SET_BLOCK_SIZE, 512)
	_ = unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1) // refused where the file system has none
	return nil
}

// settle sets the read-only flag of the block device, since one that was set by BLKROSET
// on an earlier attachment outlives the detach.
func settle(dev *os.File, readOnly bool) (*Device, error) {
	d, _, err := inspect(dev)
	if err != nil {
		return nil, err
	}
	if d.ReadOnly != readOnly {
		flag := 0
		if readOnly {
			flag = 1
		}
		if err := unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, flag); err != nil {
			return nil, fmt.Errorf("set the read-only flag of %s to %d: %w", dev.Name(), flag, err)
		}
		d.ReadOnly = readOnly
	}
	return d, nil
}

// adopt changes a device that serves image already to the requested state.
func adopt(dev *os.File, c config, image *os.File) (*Device, error) {
	d, info, err := inspect(dev)
	if err != nil {
		return nil, err
	}
	switch {
	case info.Offset != 0 || info.Sizelimit != 0:
		return nil, fmt.Errorf("%w: %s serves it with offset %d and size limit %d: detach it first",
			ErrConflict, d.Path, info.Offset, info.Sizelimit)
	case info.Flags&unix.LO_FLAGS_READ_ONLY != 0 && !c.readOnly:
		return nil, fmt.Errorf("%w: %s serves it read-only: detach it first", ErrConflict, d.Path)
	case !d.ReadOnly && c.readOnly:
		return nil, fmt.Errorf("%w: %s serves it writable: detach it first", ErrConflict, d.Path)
	}
	if info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
		// Set by a Detach that found it open, or by losetup.
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		if err := unix.IoctlLoopSetStatus64(int(dev.Fd()), info); err != nil {
			return nil, fmt.Errorf("revoke the pending detach of %s: %w", d.Path, err)
		}
		d.Detaching = false
	}
	stat, err := image.Stat()
	if err != nil {
		return nil, err
	}
	if d.Size != stat.Size()&^511 {
		if d.Size, err = setCapacity(dev); err != nil {
			return nil, err
		}
	}
	if d.ReadOnly && !c.readOnly {
		return settle(dev, false)
	}
	return d, nil
}
