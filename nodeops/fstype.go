package nodeops

import "slices"

// filesystem is what nodeops knows of one file system type.
type filesystem struct {
	mkfs      []string // makes one on a blank device; never asks, prints only errors
	prezeroed []string // added to mkfs when the device is known to read as zeros
	again     []string // added to mkfs when an earlier one was cut off
	check     []string // reads a file system through while we hold its device, and exits with 0 if it is sound
	data      []string // mount options that are always given
	refused   []string // mount options that make another volume of it
}

// mkfs must not discard: that takes the mark with it, takes minutes on large
// devices, and turns a wrong answer about what is blank into the loss of everything.
var filesystems = map[string]filesystem{
	"ext4": {
		// No reserved blocks: they are for a root file system.
		mkfs: []string{"mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "nodiscard"},
		// mke2fs(8) warns that a lazily zeroed journal may replay what an older one
		// left behind; on storage that reads as zeros there is nothing left.
		prezeroed: []string{"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}, // the last -E counts
		check:     []string{"e2fsck", "-f", "-n"},
	},
	"xfs": {
		mkfs:  []string{"mkfs.xfs", "-q", "-K"},
		again: []string{"-f"},
		check: []string{"xfs_repair", "-n"},
		// A clone or restore has its source's UUID, and xfs refuses to mount two of them.
		data: []string{"nouuid"},
	},
	"btrfs": {
		mkfs:  []string{"mkfs.btrfs", "-q", "-K"},
		again: []string{"-f"},
		// --force: it would open the device exclusively, which we do.
		check: []string{"btrfs", "check", "--readonly", "--force"},
		// The whole of it, whatever subvolume was made the default by whoever used it.
		data:    []string{"subvolid=5"},
		refused: []string{"subvol", "subvolid", "device"},
	},
}

func fsTypes() []string {
	types := make([]string, 0, len(filesystems))
	for t := range filesystems {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}
