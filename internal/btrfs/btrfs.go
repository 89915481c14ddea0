// Package btrfs asks a mounted btrfs about itself and grows it, by ioctl.
//
// It touches what it asks, which may hang where the device does: not for teardown.
package btrfs

import "fmt"

// Info is what a mounted btrfs says of itself.
type Info struct {
	// FSID is its name in sysfs: the UUID, or a temporary one where a copy with
	// the same UUID is mounted as well (Linux 6.7).
	FSID       string
	Devices    int   // those that it consists of, missing ones included
	SectorSize int64 // bytes; it uses whole sectors of a device

	lastDevice uint64 // the highest ID of its devices; if there is one device, that device's
}

// LeastGrown is the least size that the kernel lets a btrfs grow to, in bytes.
const LeastGrown = 256 << 20

func fsid(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
