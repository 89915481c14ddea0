package filepool

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

// tune applies the mutable parameters to the loop device of the image. It is
// idempotent.
func tune(dev *loopdev.Device, image string, mutable map[string]string) error {
	if len(mutable) == 0 {
		return nil
	}
	f, err := os.OpenFile(dev.Path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close() // until then the device stays with its image
	if err := serves(f, image); err != nil {
		return err
	}
	if text, ok := mutable[paramReadAhead]; ok {
		kib, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKRASET, 2*kib); err != nil {
			return fmt.Errorf("set the read-ahead of %s: %w", dev.Path, err)
		}
	}
	direct, ok := mutable[paramDirectIO]
	if !ok || (direct == "true") == dev.DirectIO {
		return nil
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_DIRECT_IO, map[string]int{"true": 1}[direct])
	// EINVAL: the pool does not offer it for this image, as XFS does not once a snapshot
	// shares its blocks. A pod would not start for it any more.
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("set direct I/O of %s: %w", dev.Path, err)
	}
	return nil
}

// serves checks that the loop device has not been attached to another image since.
func serves(dev *os.File, image string) error {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return fmt.Errorf("%s: %w", dev.Name(), err)
	}
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return err
	}
	if info.Device != uint64(st.Dev) || info.Inode != st.Ino {
		return fmt.Errorf("%s serves another image than %s", dev.Name(), image)
	}
	return nil
}
