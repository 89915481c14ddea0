// Package blockdev opens, locks, reads and writes a block device whose identity was checked
// on the descriptor: its path may refer to another disk by then.
package blockdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

// Device is an open block device.
type Device struct {
	File *os.File // for reading
	Path string   // symbolic links resolved
	Size int64
}

// Hold opens the device exclusively: while it is held no program can format, check or
// mount it, and it cannot be held while a program does that, or while a program runs for
// which it was claimed. That is EBUSY.
func (d Device) Hold() (release func(), err error) {
	fd, err := unix.Open(d.Path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	op := "open exclusively"
	if err == nil {
		op = "flock"
		if err = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err == nil {
			err = unix.Flock(fd, unix.LOCK_UN)
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = unix.EBUSY
	}
	if err != nil {
		return nil, &os.PathError{Op: op, Path: d.Path, Err: err}
	}
	return sync.OnceFunc(func() { CloseWithoutFork(func() error { return unix.Close(fd) }) }), nil
}

// CloseWithoutFork closes a descriptor that locks a device while no program is being
// started: between fork and exec, a child has a copy of each descriptor and keeps the
// device locked.
func CloseWithoutFork(closeFile func() error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	_ = closeFile()
}

// Claim locks the device for a program, which inherits the file and keeps the lock until it
// ends, even if this process is killed. mke2fs and mkfs.xfs open the device exclusively
// themselves; mkfs.btrfs only checks that it could, and writes without. It is EBUSY if the
// device stays locked for five seconds, and ctx's error if that ends before.
//
// It is the lock that udev respects: it does not probe a device that is locked
// (systemd.io/BLOCK_DEVICE_LOCKING), and holds the lock for the short time it probes.
func (d Device) Claim(ctx context.Context) (*os.File, error) {
	f, err := d.Reopen(unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if err := Lock(ctx, int(f.Fd())); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "flock", Path: d.Path, Err: err}
	}
	return f, nil
}

// Lock locks the open file exclusively. It waits for the lock until ctx ends, and for at most
// five seconds; then it is EBUSY. A lock that is free is taken in any case.
func Lock(ctx context.Context, fd int) error {
	timeout := time.After(5 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-timeout:
			return unix.EBUSY
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Reopen opens the same device again, even if its path leads elsewhere now.
func (d Device) Reopen(flags int) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", d.File.Fd()), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.Path, Err: err}
	}
	return os.NewFile(uintptr(fd), d.Path), nil
}

// Disk reads a device with direct I/O where that is possible.
type Disk struct {
	*os.File
	aligned io.ReaderAt
	cached  *os.File
}

// ReadAt reads what is on the disk.
func (d Disk) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.aligned.ReadAt(p, off)
	if errors.Is(err, unix.EINVAL) { // direct I/O is not possible here; the page cache may be
		return d.cached.ReadAt(p, off)
	}
	return n, err
}

// Direct opens the device for reads that bypass the page cache.
func (d Device) Direct() (Disk, error) {
	f, err := d.Reopen(unix.O_RDONLY | unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) {
		f, err = d.Reopen(unix.O_RDONLY)
	}
	if err != nil {
		return Disk{}, err
	}
	block, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		f.Close()
		return Disk{}, os.NewSyscallError("ioctl BLKSSZGET", err)
	}
	return Disk{f, probe.Aligned(f, d.Size, int64(block)), d.File}, nil
}

// WriteBlocks writes the blocks, by offset, and makes them durable.
func (d Device) WriteBlocks(blocks map[int64][]byte) error {
	f, err := d.Reopen(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	for place, block := range blocks {
		if _, err := f.WriteAt(block, place); err != nil {
			return err
		}
	}
	return f.Sync()
}

// CompareBlocks reads the blocks back from the disk.
func (d Device) CompareBlocks(blocks map[int64][]byte) error {
	disk, err := d.Direct()
	if err != nil {
		return err
	}
	defer disk.Close()
	for place, want := range blocks {
		have := make([]byte, len(want))
		if _, err := disk.ReadAt(have, place); err != nil {
			return fmt.Errorf("read back what was written to %s: %w", d.Path, err)
		}
		if !bytes.Equal(have, want) {
			return fmt.Errorf("%s returns other data at byte %d than was written: check that no other node writes to it", d.Path, place)
		}
	}
	return nil
}
