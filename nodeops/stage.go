package nodeops

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/csikit/csikit/internal/mountapi"
)

// DefaultFSType is used where a request names no file system type.
const DefaultFSType = "ext4"

// StageFilesystemRequest asks for the file system of a volume to be mounted at its
// staging path.
type StageFilesystemRequest struct {
	VolumeID          string
	Device            Device
	StagingTargetPath string   // absolute; an existing directory
	FSType            string   // "ext4", "xfs" or "btrfs"; "" is [DefaultFSType]
	MountFlags        []string // as NodeStageVolume has them
	ReadOnly          bool     // mount read-only; nothing is formatted, repaired or grown
	MustHoldData      bool     // a clone or restore: being blank is an error, never a reason to format
	Fsck              Fsck     // when an ext4 is checked before it is mounted
	Prezeroed         bool     // the storage guarantees that a new device reads as zeros; mkfs need not write them

	// OldestKernel is the oldest Linux that is to mount the volume read-write, such as
	// "5.4"; 3.16 is the earliest that can be asked for. mkfs then leaves out what it
	// cannot mount. "" takes what the installed mkfs makes, which a node that is older
	// than the driver's image may refuse. What is formatted already stays as it is.
	OldestKernel string

	// MountGroup is the group (a decimal ID) that may write to the volume, as
	// volume_mount_group has it. The root of the file system gets this group, its
	// write permission and the set-group-ID bit, so that what is made in it is the
	// group's as well. Nothing below is touched: with millions of files that takes
	// hours. "" leaves the root as it is; ignored where ReadOnly is set.
	MountGroup string
}

// Fsck says when e2fsck looks at an ext4 before it is mounted. It repairs what can be
// repaired without loss; where that is not enough, staging is KindPrecondition. xfs and
// btrfs check themselves when they are mounted, and are never given to a repair
// program: one that runs before the log was replayed destroys data.
//
// An ext4 that is to grow before it is mounted is checked in any case.
type Fsck int

const (
	FsckIfNeeded Fsck = iota // when the superblock records errors
	FsckNever                // an ext4 with errors is mounted as it is
	FsckAlways               // every block, each time: minutes on a large volume
)

// StageFilesystem mounts the volume's file system at the staging path. A device
// that is proven blank is formatted first; a file system that is smaller than its
// device is grown (before or after mounting, as its type needs it).
//
// It is idempotent, also after the process was killed at any point: whatever is
// done already is found and checked. A mkfs that was cut off, by a power failure too,
// is found by the mark that it ran under and made again, on another node as well;
// only a mkfs of a device below 1 MiB has none, and leaves what is KindPrecondition,
// for an operator to decide. On an error nothing is mounted by
// this call. A dead mount at the path (of a device that failed and came back) is taken
// away and made anew, or KindUncertain while the volume is still published. What
// else is mounted at the path is KindConflict, but for options of
// the file system, which the kernel prints in words of its own and which are not
// compared; a device that holds another file system,
// or something that is not known, is KindPrecondition; a device that somebody
// else holds open, such as the mkfs of an earlier call whose process was killed,
// is KindBusy.
func (n *Node) StageFilesystem(ctx context.Context, r StageFilesystemRequest) error {
	const op = "stage"
	if r.FSType == "" {
		r.FSType = DefaultFSType
	}
	opts, err := checkStage(r)
	if err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.StagingTargetPath, func(ctx context.Context) error {
		return n.stageFilesystem(ctx, r, opts)
	})
}

func checkStage(r StageFilesystemRequest) (mountapi.Options, error) {
	if !slices.Contains(fsTypes(), r.FSType) {
		return mountapi.Options{}, faultf(KindInvalid, "file system type %q is not supported; use one of %v", r.FSType, fsTypes())
	}
	if err := checkPath(r.StagingTargetPath); err != nil {
		return mountapi.Options{}, err
	}
	if r.Fsck < FsckIfNeeded || r.Fsck > FsckAlways {
		return mountapi.Options{}, faultf(KindInvalid, "there is no Fsck %d", r.Fsck)
	}
	if _, err := parseGroup(r.MountGroup); err != nil {
		return mountapi.Options{}, err
	}
	if r.OldestKernel != "" {
		if _, err := parseKernel(r.OldestKernel); err != nil {
			return mountapi.Options{}, err
		}
	}
	opts, err := parseFlags(r.MountFlags, r.ReadOnly)
	if err != nil {
		return mountapi.Options{}, err
	}
	for _, o := range opts.Data {
		if key, _, _ := strings.Cut(o, "="); slices.Contains(filesystems[r.FSType].refused, key) {
			return mountapi.Options{}, faultf(KindInvalid, "mount option %s: a volume is the whole of one %s on one device", key, r.FSType)
		}
	}
	return opts, nil
}

// parseGroup returns -1 for no group.
func parseGroup(group string) (gid int, err error) {
	if group == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(group, 10, 32)
	if err != nil || n == 1<<32-1 { // the kernel's word for no change
		return -1, faultf(KindInvalid, "mount group %q is not the decimal ID of a group", group)
	}
	return int(n), nil
}

// StageBlockRequest asks for the device of a raw block volume to be ready.
type StageBlockRequest struct {
	VolumeID          string
	Device            Device
	StagingTargetPath string // absolute; nothing is made or mounted there
}

// StageBlock waits for the device of a raw block volume and checks that it is the
// right one and that nobody has it mounted as a file system, so that a mistake shows
// before a pod gets the device. It changes nothing, and there is nothing to unstage.
// Its errors are those of PublishBlock.
func (n *Node) StageBlock(ctx context.Context, r StageBlockRequest) error {
	const op = "stage"
	if err := checkPath(r.StagingTargetPath); err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.run(ctx, op, r.VolumeID, r.StagingTargetPath, func(ctx context.Context) error {
		return n.stageBlock(ctx, r.Device)
	})
}

// UnstageRequest asks for what is staged at a path to be unmounted.
type UnstageRequest struct {
	VolumeID          string // for logs and errors only
	StagingTargetPath string // absolute
}

// Unstage unmounts what is mounted at the staging path, stacked mounts included,
// and leaves the directory, which the CO made. Nothing mounted and no such path
// are success. It refuses with KindPrecondition while the volume is published
// somewhere in this mount namespace, and names those paths; those that
// Config.IsOrphaned gives up are unpublished first.
func (n *Node) Unstage(ctx context.Context, r UnstageRequest) error {
	const op = "unstage"
	if err := checkPath(r.StagingTargetPath); err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.run(ctx, op, r.VolumeID, r.StagingTargetPath, func(ctx context.Context) error {
		defer n.forget(r.StagingTargetPath) // once nothing can be measured there
		return n.unstage(ctx, r.StagingTargetPath)
	})
}
