package nodeops

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/csikit/csikit/csierr"
)

// filesystem describes a file system type.
type filesystem struct {
	mkfs      []string // creates one on a blank device; not interactive, prints only errors
	prezeroed []string // added to mkfs if the device is known to read as zeros
	notBlank  []string // added to mkfs if the device does not read as zeros
	check     []string // checks a file system without writing, while its device is held; exits with 0 if it is sound
	data      []string // mount options that are always set
	noReplay  []string // mount options for a device that refuses writes, on which a log cannot be replayed
	refused   []string // mount options that would mount another volume
	features  []feature
}

// feature is one that mkfs may enable by default and an older kernel cannot mount
// read-write: mkfs is part of the driver's image, the kernel of the node.
type feature struct {
	kernel version   // the first that supports it
	mkfs   version   // the first that knows the feature, and accepts off
	off    [2]string // arguments that disable it; can be combined with others
}

// mkfs must not discard: that erases the mark, takes minutes on large devices, and after a
// wrong decision that the device is blank would lose all data.
var filesystems = map[string]filesystem{
	"ext4": {
		// No reserved blocks: they are for a root file system.
		mkfs: []string{"mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "nodiscard"},
		// mke2fs(8) warns that a lazily zeroed journal may replay the remains of an older
		// one; on storage that reads as zeros there are none.
		prezeroed: []string{"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}, // the last -E takes effect
		check:     []string{"e2fsck", "-f", "-n"},
		noReplay:  []string{"noload"},
		features: []feature{
			{version{4, 4}, version{1, 43}, [2]string{"-O", "^metadata_csum_seed"}},
			{version{5, 15}, version{1, 47}, [2]string{"-O", "^orphan_file"}},
		},
	},
	"xfs": {
		mkfs:     []string{"mkfs.xfs", "-q", "-K"},
		notBlank: []string{"-f"},
		check:    []string{"xfs_repair", "-n"},
		// A clone or restore has the UUID of its source, and xfs refuses to mount both.
		data:     []string{"nouuid"},
		noReplay: []string{"norecovery"},
		features: []feature{
			{version{4, 2}, version{4, 2}, [2]string{"-i", "sparse=0"}},
			{version{4, 8}, version{4, 9}, [2]string{"-m", "rmapbt=0"}},
			{version{4, 9}, version{4, 9}, [2]string{"-m", "reflink=0"}},
			{version{5, 10}, version{5, 10}, [2]string{"-m", "inobtcount=0"}},
			{version{5, 10}, version{5, 10}, [2]string{"-m", "bigtime=0"}},
			{version{5, 19}, version{5, 19}, [2]string{"-i", "nrext64=0"}},
			{version{6, 10}, version{6, 10}, [2]string{"-i", "exchange=0"}},
			{version{6, 10}, version{6, 10}, [2]string{"-n", "parent=0"}},
			{version{6, 13}, version{6, 13}, [2]string{"-m", "metadir=0"}},
		},
	},
	"btrfs": {
		mkfs:     []string{"mkfs.btrfs", "-q", "-K"},
		notBlank: []string{"-f"},
		// --force: without, it opens the device exclusively, which is held already.
		check: []string{"btrfs", "check", "--readonly", "--force"},
		// The top-level subvolume, even if a user has set another default.
		data:     []string{"subvolid=5"},
		noReplay: []string{"rescue=nologreplay"}, // Linux 5.9
		refused:  []string{"subvol", "subvolid", "device"},
		features: []feature{
			{version{4, 9}, version{5, 15}, [2]string{"-R", "^free-space-tree"}},
		},
	},
}

// disableArgs returns the arguments with which a mkfs of that version disables what the
// kernel does not support.
func (fs filesystem) disableArgs(kernel, mkfs version) []string {
	var args []string
	for _, f := range fs.features {
		if kernel.before(f.kernel) && !mkfs.before(f.mkfs) {
			args = append(args, f.off[:]...)
		}
	}
	return args
}

// version is that of a kernel or a program: major, minor, patch.
type version [3]int

func (v version) before(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

// earliest is the first kernel that supports all features that are not in the table above.
var earliest = version{3, 16}

var versionNumber = regexp.MustCompile(`\d{1,4}(\.\d{1,4}){1,2}`)

// findVersion reads the first version in a text.
func findVersion(text string) (v version, ok bool) {
	number := versionNumber.FindString(text)
	for i, part := range strings.Split(number, ".") {
		v[i], _ = strconv.Atoi(part) // the expression matches nothing else
	}
	return v, number != ""
}

// parseKernel parses StageFilesystemRequest.OldestKernel, which is not empty.
func parseKernel(text string) (version, error) {
	v, ok := findVersion(text)
	switch {
	case !ok || versionNumber.FindString(text) != text:
		return v, faultf(csierr.Invalid, "oldest kernel %q is not a version such as 5.4 or 5.4.0", text)
	case v.before(earliest):
		return v, faultf(csierr.Invalid, "oldest kernel %s is before 3.16, the earliest supported", text)
	}
	return v, nil
}

func fsTypes() []string {
	types := make([]string, 0, len(filesystems))
	for t := range filesystems {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}
