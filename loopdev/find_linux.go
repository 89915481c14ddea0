package loopdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// configured returns the numbers of the loop devices that have a backing file.
func configured() ([]int, error) {
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, fmt.Errorf("%w: /sys is needed to find loop devices", err)
	}
	var numbers []int
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimPrefix(e.Name(), "loop"))
		if err != nil || !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		if _, err := os.Stat(sysPath(n)); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// sysPath is a file that exists while device n has a backing file.
func sysPath(n int) string { return fmt.Sprintf("/sys/block/loop%d/loop/backing_file", n) }

func openDevice(n, mode int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.OpenFile(path, mode, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the device exists, but its node is missing in this /dev: mount devtmpfs or the host's /dev here, or run mknod %s b with the numbers in /sys/block/loop%d/dev", err, path, n)
	}
	return dev, err
}

// find returns, open read-only, the device that serves the inode of stat.
func find(stat *unix.Stat_t) (*os.File, error) {
	numbers, err := configured()
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		dev, err := openDevice(n, os.O_RDONLY)
		if err != nil {
			// Relevant only if it may serve this file.
			var other unix.Stat_t
			backing, _, _ := backingPath(n)
			if unix.Stat(backing, &other) == nil && other.Dev == stat.Dev && other.Ino == stat.Ino {
				return nil, err
			}
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Device == uint64(stat.Dev) && info.Inode == stat.Ino {
			return dev, nil
		}
		dev.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: detached meanwhile
			return nil, fmt.Errorf("query the image of %s: %w", dev.Name(), err)
		}
	}
	return nil, ErrNotAttached
}

func findPath(path string) (*Device, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return nil, os.NewSyscallError("lstat", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%w: not a regular file", unix.EINVAL)
	}
	dev, err := find(&stat)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	d, _, err := inspect(dev)
	if errors.Is(err, unix.ENXIO) {
		return nil, ErrNotAttached
	}
	return d, err
}

func list() ([]Device, error) {
	numbers, err := configured()
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, n := range numbers {
		dev, err := openDevice(n, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d, _, err := inspect(dev)
		dev.Close()
		if errors.Is(err, unix.ENXIO) { // detached meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, *d)
	}
	return all, nil
}

// inspect describes an open device. The error is ENXIO if it has no image.
func inspect(dev *os.File) (*Device, *unix.LoopInfo64, error) {
	fd := int(dev.Fd())
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return nil, nil, fmt.Errorf("query the image of %s: %w", dev.Name(), err)
	}
	if want := fmt.Sprintf("/dev/loop%d", info.Number); dev.Name() != want {
		return nil, nil, fmt.Errorf("%w: %s is the node of loop device %d: create it again with the numbers in /sys/block", unix.EINVAL, dev.Name(), info.Number)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, nil, os.NewSyscallError("fstat", err)
	}
	readOnly, err := unix.IoctlGetInt(fd, unix.BLKROGET)
	if err != nil {
		return nil, nil, fmt.Errorf("read the read-only flag of %s: %w", dev.Name(), err)
	}
	size, err := deviceSize(dev)
	if err != nil {
		return nil, nil, err
	}
	backing, deleted, err := backingPath(int(info.Number))
	if err != nil {
		return nil, nil, err
	}
	return &Device{
		Path:         dev.Name(),
		Number:       int(info.Number),
		Rdev:         uint64(stat.Rdev),
		Backing:      backing,
		BackingDev:   info.Device,
		BackingInode: info.Inode,
		Deleted:      deleted,
		Detaching:    info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		ReadOnly:     readOnly != 0,
		DirectIO:     info.Flags&unix.LO_FLAGS_DIRECT_IO != 0,
		Size:         size,
	}, info, nil
}

// backingPath reads the path of the image of device n from sysfs. (LOOP_GET_STATUS64 returns
// the name that was set at the attachment, truncated to 63 bytes.)
func backingPath(n int) (path string, deleted bool, err error) {
	data, err := os.ReadFile(sysPath(n))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return "", false, unix.ENXIO
	}
	if err != nil {
		return "", false, err
	}
	path = strings.TrimSuffix(string(data), "\n")
	if name, ok := strings.CutSuffix(path, " (deleted)"); ok {
		// Unless the name of the file ends like that.
		if _, err := os.Lstat(path); err != nil {
			return name, true, nil
		}
	}
	return path, false, nil
}

func deviceSize(dev *os.File) (int64, error) {
	size, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKGETSIZE64)
	if err != nil {
		return 0, fmt.Errorf("read the size of %s: %w", dev.Name(), err)
	}
	return int64(size), nil
}
