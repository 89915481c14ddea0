package probe

import "encoding/binary"

// The layouts are those of the kernel's documentation: filesystems/ext4
// (super block), filesystems/xfs (on-disk format) and the btrfs on-disk format.

const (
	extMagicAt = 1024 + 0x38

	extStateValid  = 0x1
	extStateErrors = 0x2

	extCompatJournal   = 0x4
	extIncompatRecover = 0x4
	extIncompat64Bit   = 0x80
	extIncompatExt4    = 0x40 | 0x80 | 0x200              // extents, 64bit, flex_bg
	extROCompatExt4    = 0x8 | 0x10 | 0x20 | 0x40 | 0x400 // huge_file, gdt_csum, dir_nlink, extra_isize, metadata_csum
	extJournalDeviceIC = 0x8                              // an external journal, not a file system
)

func ext(head []byte, size int64) (Result, bool) {
	if len(head) < 2048 || head[extMagicAt] != 0x53 || head[extMagicAt+1] != 0xef {
		return Result{}, false
	}
	sb := head[1024:2048]
	le := binary.LittleEndian
	compat, incompat, roCompat := le.Uint32(sb[0x5c:]), le.Uint32(sb[0x60:]), le.Uint32(sb[0x64:])
	log := le.Uint32(sb[0x18:])
	blocks := uint64(le.Uint32(sb[0x4:]))
	if incompat&extIncompat64Bit != 0 {
		blocks |= uint64(le.Uint32(sb[0x150:])) << 32
	}
	if incompat&extJournalDeviceIC != 0 {
		return Result{Kind: Foreign, Type: "jbd"}, true
	}
	if log > 6 || blocks == 0 || blocks > 1<<62>>(10+log) {
		return Result{Kind: Foreign, Type: "ext"}, true
	}
	blockSize := int64(1024) << log
	r := Result{
		Kind: Filesystem, Type: "ext2",
		UUID: uuid(sb[0x68:0x78]), Label: text(sb[0x78:0x88]),
		Size: int64(blocks) * blockSize, BlockSize: blockSize,
	}
	switch {
	case incompat&extIncompatExt4 != 0 || roCompat&extROCompatExt4 != 0:
		r.Type = "ext4"
	case compat&extCompatJournal != 0:
		r.Type = "ext3"
	}
	r.Recovery = incompat&extIncompatRecover != 0
	state := le.Uint16(sb[0x3a:])
	r.Clean = state&extStateValid != 0 && state&extStateErrors == 0
	r.Full = extFull(sb, int64(blocks), size/blockSize, blockSize)
	return r, true
}

// ExtClean reports whether the ext superblock at the start of a device, of which head is at
// least 2 KiB, records no error. It is true if there is none.
func ExtClean(head []byte) bool {
	r, ok := ext(head, 0)
	return !ok || r.Clean
}

// extFull reports whether the file system covers the device up to a last block
// group too small to be used: mke2fs and resize2fs drop a remainder that would
// hold little more than its own bitmaps and inode table.
func extFull(sb []byte, blocks, deviceBlocks, blockSize int64) bool {
	le := binary.LittleEndian
	if blocks >= deviceBlocks {
		return true
	}
	perGroup := int64(le.Uint32(sb[0x20:]))
	if perGroup == 0 {
		return false
	}
	inodeSize := max(int64(le.Uint16(sb[0x58:])), 128)
	inodeTable := (int64(le.Uint32(sb[0x28:]))*inodeSize + blockSize - 1) / blockSize
	descriptors := (deviceBlocks/perGroup + 1) * 64 / blockSize
	overhead := 3 + inodeTable + descriptors + 1 + int64(le.Uint16(sb[0xce:]))
	missing := deviceBlocks - blocks
	first := int64(le.Uint32(sb[0x14:]))
	return missing <= (deviceBlocks-first)%perGroup && missing < overhead+50
}

func xfs(head []byte, size int64) (Result, bool) {
	if len(head) < 512 || string(head[:4]) != "XFSB" {
		return Result{}, false
	}
	be := binary.BigEndian
	blockSize, blocks := be.Uint32(head[4:]), be.Uint64(head[8:])
	if blockSize < 512 || blockSize > 64<<10 || blockSize&(blockSize-1) != 0 || blocks == 0 || blocks > 1<<62/uint64(blockSize) {
		return Result{Kind: Foreign, Type: "xfs"}, true
	}
	inProgress := head[126] != 0
	r := Result{
		Kind: Filesystem, Type: "xfs",
		UUID: uuid(head[32:48]), Label: text(head[108:120]),
		Size: int64(blocks) * int64(blockSize), BlockSize: int64(blockSize),
		Incomplete: inProgress, Clean: !inProgress,
	}
	r.Full = XFSFull(r.Size, int64(blockSize), size)
	return r, true
}

// XFSSize returns the size in bytes from the xfs superblock at the start of head; 0 if there
// is none.
func XFSSize(head []byte) int64 {
	r, _ := xfs(head, 0)
	return r.Size
}

// XFSFull reports whether an xfs of fsSize bytes can use no more of a device
// of size bytes: a last allocation group below 64 blocks is not created.
func XFSFull(fsSize, blockSize, size int64) bool { return size-fsSize < 64*blockSize }

func btrfs(head []byte, size int64) (Result, bool) {
	const at = 64 << 10
	if len(head) < at+4096 {
		return Result{}, false
	}
	sb := head[at : at+4096]
	// mkfs.btrfs writes another magic until everything else is written.
	magic := string(sb[0x40:0x48])
	unfinished := magic == "!BHRfS_M"
	if magic != "_BHRfS_M" && !unfinished {
		return Result{}, false
	}
	const flagError = 1 << 2
	le := binary.LittleEndian
	total, sector := le.Uint64(sb[0x70:]), int64(le.Uint32(sb[0x90:]))
	device := le.Uint64(sb[0xc9+8:]) // of this device; total is that of all
	devices := le.Uint64(sb[0x88:])
	if total == 0 || total > 1<<62 || device > total || devices > 1<<30 {
		return Result{Kind: Foreign, Type: "btrfs"}, true
	}
	return Result{
		Kind: Filesystem, Type: "btrfs",
		UUID: uuid(sb[0x20:0x30]), Label: text(sb[0x12b : 0x12b+256]),
		Size: int64(total), BlockSize: sector,
		Incomplete: unfinished,
		Clean:      !unfinished && le.Uint64(sb[0x38:])&flagError == 0,
		Full:       BtrfsFull(int64(device), sector, size),
		Devices:    int(devices),
	}, true
}

// BtrfsFull reports whether a btrfs that uses used bytes of a device of size bytes can use
// no more of it: it uses whole sectors.
func BtrfsFull(used, sector, size int64) bool { return size-used < max(sector, 4096) }
