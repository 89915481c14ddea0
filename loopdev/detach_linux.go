package loopdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// busyWait is how long Detach waits for processes that open a device briefly.
const busyWait = 500 * time.Millisecond

// serves reports whether the open device still serves the image of d: its number may have
// been reused for another image.
func (d *Device) serves(dev *os.File) (bool, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	switch {
	case errors.Is(err, unix.ENXIO):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("query its image: %w", err)
	}
	return info.Device == d.BackingDev && info.Inode == d.BackingInode, nil
}

func (d *Device) resize() (int64, error) {
	dev, err := openDevice(d.Number, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	ours, err := d.serves(dev)
	if err != nil {
		return 0, err
	}
	if !ours {
		return 0, ErrNotAttached
	}
	return setCapacity(dev)
}

func setCapacity(dev *os.File) (int64, error) {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return 0, fmt.Errorf("set the size of %s to that of its image: %w", dev.Name(), err)
	}
	return deviceSize(dev)
}

func (d *Device) detach(ctx context.Context) error {
	unlock, err := d.lockImage(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for deadline := time.Now().Add(busyWait); ; {
		gone, err := d.clear()
		if gone || err != nil && !errors.Is(err, ErrBusy) {
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
		if pause(ctx) != nil {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// clear tries once to release the device. ErrBusy may be transient.
func (d *Device) clear() (gone bool, err error) {
	dev, err := openDevice(d.Number, os.O_RDONLY)
	if err != nil {
		if _, statErr := os.Stat(sysPath(d.Number)); errors.Is(statErr, os.ErrNotExist) {
			return true, nil
		}
		return false, err
	}
	ours, err := d.serves(dev)
	dev.Close()
	if err != nil || !ours {
		return !ours && err == nil, err
	}
	// LOOP_CLR_FD succeeds on a mounted device and detaches it after the unmount. An
	// exclusive open detects that, and prevents a mount.
	dev, err = openDevice(d.Number, os.O_RDONLY|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		return false, fmt.Errorf("%w: mounted or claimed, in this or another mount namespace: unmount it first", ErrBusy)
	}
	if err != nil {
		return false, err
	}
	ours, err = d.serves(dev)
	if err == nil && ours {
		err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
	}
	// From Linux 6.11 on, the device is released only when the last descriptor is closed,
	// including this one.
	dev.Close()
	switch {
	case errors.Is(err, unix.ENXIO): // released meanwhile
		return true, nil
	case err != nil:
		return false, fmt.Errorf("release: %w", err)
	case !ours:
		return true, nil
	}
	if stillThere, err := d.attached(); err != nil || !stillThere {
		return err == nil, err
	}
	return false, fmt.Errorf("%w: open in another process: the kernel detaches it at the last close", ErrBusy)
}

func (d *Device) attached() (bool, error) {
	// Check /sys first: opening the device would delay its release.
	if _, err := os.Stat(sysPath(d.Number)); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	dev, err := openDevice(d.Number, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer dev.Close()
	return d.serves(dev)
}

// lockImage takes the lock of Attach if the image still has its path. If it was renamed or
// deleted, no Attach can find it under that path either.
func (d *Device) lockImage(ctx context.Context) (unlock func(), err error) {
	none := func() {}
	if d.Deleted {
		return none, nil
	}
	image, stat, err := openImage(d.Backing, true)
	if err != nil {
		return none, nil
	}
	if uint64(stat.Dev) != d.BackingDev || stat.Ino != d.BackingInode {
		image.Close()
		return none, nil
	}
	if err := lock(ctx, image); err != nil {
		image.Close()
		return nil, err
	}
	return func() { image.Close() }, nil
}
