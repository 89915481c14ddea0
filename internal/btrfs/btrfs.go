// Package btrfs queries and grows a mounted btrfs by ioctl.
//
// It accesses the file system, which may hang with its device: not for teardown.
package btrfs

import "fmt"

// Info describes a mounted btrfs.
type Info struct {
	// FSID is its name in sysfs: the UUID, or a temporary one if a copy with the same UUID
	// is mounted as well (Linux 6.7).
	FSID       string
	Devices    int   // including missing ones
	SectorSize int64 // bytes; only whole sectors of a device are used

	lastDevice uint64 // the highest ID of its devices; if there is one device, that device's
}

// MinGrownSize is the smallest size in bytes to which the kernel grows a btrfs.
const MinGrownSize = 256 << 20

func fsid(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
