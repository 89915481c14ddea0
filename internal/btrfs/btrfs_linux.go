package btrfs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/btrfs.h.
const (
	ioctlResize     = 1<<30 | 4096<<16 | 0x94<<8 | 3  // _IOW(0x94, 3, struct btrfs_ioctl_vol_args)
	ioctlDeviceInfo = 3<<30 | 4096<<16 | 0x94<<8 | 30 // _IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args)
	ioctlFSInfo     = 2<<30 | 1024<<16 | 0x94<<8 | 31 // _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)
)

// fsInfo is struct btrfs_ioctl_fs_info_args.
type fsInfo struct {
	maxID, devices       uint64
	fsid                 [16]byte
	nodeSize, sectorSize uint32
	_                    [984]byte
}

// deviceInfo is struct btrfs_ioctl_dev_info_args.
type deviceInfo struct {
	id                    uint64
	_                     [16]byte // its UUID; zero: select only by id
	bytesUsed, totalBytes uint64
	_                     [4056]byte
}

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	_    int64
	name [4088]byte
}

func ioctl(dir *os.File, name string, request uintptr, arg unsafe.Pointer) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), request, uintptr(arg))
	if errno != 0 {
		return 0, &os.PathError{Op: "ioctl " + name, Path: dir.Name(), Err: errno}
	}
	return int(r), nil
}

// Stat queries the btrfs that dir is in; ENOTTY if it is of another type.
func Stat(dir *os.File) (Info, error) {
	var a fsInfo
	if _, err := ioctl(dir, "BTRFS_IOC_FS_INFO", ioctlFSInfo, unsafe.Pointer(&a)); err != nil {
		return Info{}, err
	}
	return Info{FSID: fsid(a.fsid), Devices: int(a.devices), SectorSize: int64(a.sectorSize), lastDevice: a.maxID}, nil
}

// ErrDevices means that a btrfs does not consist of exactly one device.
var ErrDevices = errors.New("btrfs does not consist of one device")

// BlockDevice returns the number of the block device that the btrfs consists of. Sysfs has
// that of the device that the kernel has open; the names in the mount table and from
// BTRFS_IOC_DEV_INFO are the last ones that any process has used.
func (i Info) BlockDevice() (major, minor uint32, err error) {
	dir := "/sys/fs/btrfs/" + i.FSID + "/devices"
	devices, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	if i.Devices != 1 || len(devices) != 1 {
		return 0, 0, fmt.Errorf("%w but of %d, of which %d are present", ErrDevices, i.Devices, len(devices))
	}
	file := dir + "/" + devices[0].Name() + "/dev"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(strings.TrimSpace(string(text)), "%d:%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("%s: %q is not a device number", file, text)
	}
	return major, minor, nil
}

// DeviceSize returns how many bytes of its one device the btrfs uses.
func (i Info) DeviceSize(dir *os.File) (int64, error) {
	if i.Devices != 1 {
		return 0, fmt.Errorf("%w but of %d", ErrDevices, i.Devices)
	}
	a := deviceInfo{id: i.lastDevice}
	if _, err := ioctl(dir, "BTRFS_IOC_DEV_INFO", ioctlDeviceInfo, unsafe.Pointer(&a)); err != nil {
		return 0, err
	}
	return int64(a.totalBytes), nil
}

// ErrBusy means that an operation such as a balance excludes a resize.
var ErrBusy = errors.New("a balance or another exclusive operation of btrfs is running")

// Grow grows the btrfs to the size of its device, of MinGrownSize bytes or more. It needs
// CAP_SYS_ADMIN.
func (i Info) Grow(dir *os.File) error {
	var a volArgs
	copy(a.name[:], fmt.Sprintf("%d:max", i.lastDevice))
	r, err := ioctl(dir, "BTRFS_IOC_RESIZE", ioctlResize, unsafe.Pointer(&a))
	if err == nil && r != 0 { // enum btrfs_err_code: BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS
		err = ErrBusy
	}
	return err
}
