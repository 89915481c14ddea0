package probe

import (
	"io"
	"strings"
)

// A signature is a magic string in one of a few places.
type signature struct {
	name  string
	magic string
	at    []int64 // from the start of the device

	// far lists places that depend on the size of the device.
	far func(size int64) []int64

	// container: its contents must not be used directly, even if they look like a file system.
	container bool
}

// containers are checked before file systems: they are created over an old file system
// without erasing it, while each mkfs erases them. Others are checked after: their magic may
// be left from before the file system.
var containers = []signature{
	{name: "crypto_LUKS", magic: "LUKS\xba\xbe", at: []int64{0}},
	{name: "LVM2_member", magic: "LABELONE", at: []int64{0, 512, 1024, 1536}},
	{name: "linux_raid_member", magic: "\xfc\x4e\x2b\xa9", at: []int64{0, 4 * kib}}, // versions 1.1 and 1.2
	{name: "bcache", magic: "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", at: []int64{4*kib + 24}},
	{name: "BitLocker", magic: "\xeb\x52\x90-FVE-FS-", at: []int64{0}},
	{name: "BitLocker", magic: "\xeb\x58\x90-FVE-FS-", at: []int64{0}},
	{name: "stratis", magic: "!Stra0tis\x86\xff\x02^\x41rh", at: []int64{512 + 4}},
	{name: "vdo", magic: "dmvdo001", at: []int64{0}},
	{name: "ceph_bluestore", magic: "bluestore block device", at: []int64{0}},
}

var others = []signature{
	{name: "squashfs", magic: "hsqs", at: []int64{0}},
	{name: "squashfs", magic: "sqsh", at: []int64{0}},
	{name: "erofs", magic: "\xe2\xe1\xf5\xe0", at: []int64{kib}},
	{name: "f2fs", magic: "\x10\x20\xf5\xf2", at: []int64{kib, 5 * kib}},
	{name: "bcachefs", magic: "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", at: []int64{4*kib + 24}},
	{name: "jfs", magic: "JFS1", at: []int64{32 * kib}},
	{name: "reiserfs", magic: "ReIsEr", at: []int64{64*kib + 52}},
	{name: "gfs2", magic: "\x01\x16\x19\x70", at: []int64{64 * kib}},
	{name: "ocfs2", magic: "OCFSV2", at: []int64{kib, 2 * kib, 4 * kib, 8 * kib}},
	{name: "iso9660", magic: "CD001", at: []int64{32*kib + 1}},
	{name: "apfs", magic: "NXSB", at: []int64{32}},
	// One for each page size, 10 bytes before the end of the first page.
	{name: "swap", magic: "SWAPSPACE2", at: []int64{4*kib - 10, 8*kib - 10, 16*kib - 10, 32*kib - 10, 64*kib - 10}},
	{name: "swap", magic: "SWAP-SPACE", at: []int64{4*kib - 10, 8*kib - 10, 16*kib - 10, 32*kib - 10, 64*kib - 10}},
	{name: "swsuspend", magic: "S1SUSPEND", at: []int64{4*kib - 10, 8*kib - 10, 16*kib - 10, 32*kib - 10, 64*kib - 10}},
	// These carry the boot sector's 55 AA as well.
	{name: "ntfs", magic: "NTFS    ", at: []int64{3}},
	{name: "exfat", magic: "EXFAT   ", at: []int64{3}},
	{name: "vfat", magic: "FAT12   ", at: []int64{54}},
	{name: "vfat", magic: "FAT16   ", at: []int64{54}},
	{name: "vfat", magic: "FAT32   ", at: []int64{82}},
	{name: "gpt", magic: "EFI PART", at: []int64{512, 4 * kib}},
	{name: "dos", magic: "\x55\xaa", at: []int64{510}},
}

// faraway are signatures outside of what is read first: at the end of the device, or second
// copies of what may have been wiped at the start.
var faraway = []signature{
	// The two 64 KiB and 4 KiB boundaries before the end of the device.
	{name: "linux_raid_member", magic: "\xfc\x4e\x2b\xa9", far: func(size int64) []int64 { return []int64{size&^(64*kib-1) - 64*kib, (size - 8*kib) &^ (4*kib - 1)} }, container: true},
	{name: "linux_raid_member", magic: "\xa9\x2b\x4e\xfc", far: func(size int64) []int64 { return []int64{size&^(64*kib-1) - 64*kib} }, container: true}, // big endian 0.90
	{name: "drbd", magic: "\x83\x74\x02\x6b", far: drbd, container: true},
	{name: "drbd", magic: "\x83\x74\x02\x6c", far: drbd, container: true},
	{name: "drbd", magic: "\x83\x74\x02\x6d", far: drbd, container: true},
	{name: "zfs_member", magic: "\x0c\xb1\xba\x00\x00\x00\x00\x00", far: uberblocks},
	{name: "zfs_member", magic: "\x00\x00\x00\x00\x00\xba\xb1\x0c", far: uberblocks},
	// The second header of LUKS2 is behind the first, which has one of these sizes.
	{name: "crypto_LUKS", magic: "SKUL\xba\xbe", at: []int64{16 * kib, 32 * kib, 64 * kib, 128 * kib, 256 * kib, 512 * kib, mib, 2 * mib, 4 * mib}},
	{name: "btrfs", magic: "_BHRfS_M", at: []int64{64*mib + 64, 256*gib + 64}},
	{name: "ext", magic: "\x53\xef", at: []int64{8*mib + kib + 0x38, 32*mib + 0x38, 128*mib + 0x38}},
	{name: "gpt", magic: "EFI PART", far: func(size int64) []int64 { return []int64{size - 512, size - 4*kib} }},
}

// drbd's internal metadata is at the end of the device: the magic of versions 8 and 9.
func drbd(size int64) []int64 { return []int64{size&^(4*kib-1) - 4*kib + 60} }

// uberblocks of ZFS fill the second half of its four labels of 256 KiB, two at
// either end of the device; they are 1 KiB or more apart.
func uberblocks(size int64) []int64 {
	const label = 256 * kib
	end := size &^ (label - 1)
	var at []int64
	for _, l := range []int64{0, label, end - 2*label, end - label} {
		for off := label / 2; off < label; off += kib {
			at = append(at, l+off)
		}
	}
	return at
}

// find names what announces itself in the first bytes of a device.
func find(table []signature, head []byte) string {
	for _, s := range table {
		for _, off := range s.at {
			if off < int64(len(head)) && strings.HasPrefix(string(head[off:min(off+int64(len(s.magic)), int64(len(head)))]), s.magic) {
				return s.name
			}
		}
	}
	return ""
}

// findFar names the first wanted faraway signature at or behind the offset from.
func findFar(r io.ReaderAt, size, from int64, wanted func(signature) bool) (string, error) {
	for _, s := range faraway {
		if !wanted(s) {
			continue
		}
		at := s.at
		if s.far != nil {
			at = s.far(size)
		}
		for _, off := range at {
			if off < max(from, 0) || off > size-int64(len(s.magic)) {
				continue
			}
			b, err := read(r, off, int64(len(s.magic)))
			if err != nil {
				return "", err
			}
			if string(b) == s.magic {
				return s.name, nil
			}
		}
	}
	return "", nil
}
