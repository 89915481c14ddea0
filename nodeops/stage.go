package nodeops

import (
	"context"
	"slices"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
)

// DefaultFSType is the file system type of requests that have none.
const DefaultFSType = "ext4"

// StageFilesystemRequest is the request of [Node.StageFilesystem].
type StageFilesystemRequest struct {
	VolumeID          string
	Device            Device
	StagingTargetPath string   // absolute; an existing directory
	FSType            string   // "ext4", "xfs" or "btrfs"; "" is [DefaultFSType]
	MountFlags        []string // as NodeStageVolume has them
	ReadOnly          bool     // mount read-only; nothing is formatted, repaired or grown, and if the device refuses writes, no log is replayed: the latest changes before a crash are missing
	MustHoldData      bool     // refuse a blank device instead of formatting it: for a clone or a restored snapshot
	Fsck              Fsck     // when to check an ext4 before it is mounted
	Prezeroed         bool     // let mkfs skip writing zeros: only if the storage guarantees that a new device reads as zeros

	// NeverUsed states that the volume was never written to since its storage was allocated,
	// by a durable record of the driver. Thick LVM, local disks and LUNs that are not zeroed
	// show what an earlier volume has left there. Then a device with data of an unknown kind
	// is formatted; one with any known signature is still refused, and so is the mark of
	// another volume's mkfs. The driver has to change its record after StageFilesystem has
	// succeeded and before NodeStageVolume answers, as a pod writes after that: with an
	// outdated record, a volume whose file system is destroyed would be formatted. If the
	// process is killed in between, the next call finds the mark or the file system, and needs
	// no record. Not with MustHoldData or Prezeroed.
	NeverUsed bool

	// OldestKernel is the oldest Linux that has to mount the volume read-write, such as
	// "5.4"; the minimum is 3.16. mkfs disables the features that it cannot mount. "" uses
	// the defaults of the installed mkfs, which the kernel of a node that is older than
	// the driver's image may not support. Existing file systems are not changed.
	OldestKernel string
}

// Fsck selects when e2fsck checks an ext4 before it is mounted. It repairs what can be
// repaired without loss of data; if that is not enough, staging is csierr.Precondition. xfs
// and btrfs check themselves when mounted, and no repair program is run on them: one that
// runs before the log was replayed destroys data.
//
// An ext4 that has to grow before it is mounted is always checked.
type Fsck int

const (
	FsckIfNeeded Fsck = iota // if the superblock records errors, or the journal has to be replayed and may
	FsckNever                // mount an ext4 even if it has errors
	FsckAlways               // a full check, each time: minutes on a large volume
)

// StageFilesystem mounts the volume's file system at the staging path. A device
// that is proven blank (but see NeverUsed) is formatted first; a file system that is smaller than its
// device is grown (before or after mounting, depending on its type).
//
// It is idempotent, also after the process was killed at any point: what is done already
// is found and checked. An interrupted mkfs, also by a power failure, is detected by its
// mark and repeated, also on another node; only a mkfs of a device below 1 MiB has no
// mark, and what it leaves is csierr.Precondition, for an operator to decide. On an error
// this call leaves nothing mounted.
//
// A mount at the path that failed (of a device that was gone and came back; of a file system
// that is read-only after an error, or has recorded errors) is replaced once the volume is not
// published any more. Until then it is csierr.Uncertain, or success for an ext4 that records
// errors and accepts writes (errors=continue; see [Stats]). Any other mount at the path that
// differs is csierr.Conflict; options of the file system are not compared, since the kernel
// shows them in another form. A device that holds another file system or unknown data, or refuses writes
// while ReadOnly is not set, is csierr.Precondition. A device that another process has opened exclusively, such as the mkfs
// of an earlier call whose process was killed, is csierr.Busy.
func (n *Node) StageFilesystem(ctx context.Context, r StageFilesystemRequest) error {
	const op = "stage"
	if r.FSType == "" {
		r.FSType = DefaultFSType
	}
	opts, err := checkStage(r)
	if err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.StagingTargetPath, func(ctx context.Context, target resolvedPath) error {
		return n.stageFilesystem(ctx, r, target, opts)
	})
}

func checkStage(r StageFilesystemRequest) (mountapi.Options, error) {
	if !slices.Contains(fsTypes(), r.FSType) {
		return mountapi.Options{}, faultf(csierr.Invalid, "file system type %q is not supported; use one of %v", r.FSType, fsTypes())
	}
	if err := checkPath(r.StagingTargetPath); err != nil {
		return mountapi.Options{}, err
	}
	if r.Fsck < FsckIfNeeded || r.Fsck > FsckAlways {
		return mountapi.Options{}, faultf(csierr.Invalid, "unknown Fsck %d", r.Fsck)
	}
	if r.NeverUsed && (r.MustHoldData || r.Prezeroed) {
		return mountapi.Options{}, faultf(csierr.Invalid, "NeverUsed contradicts MustHoldData and Prezeroed")
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
			return mountapi.Options{}, faultf(csierr.Invalid, "mount option %s is not supported: a volume is a whole %s on one device", key, r.FSType)
		}
	}
	return opts, nil
}

// StageBlockRequest is the request of [Node.StageBlock].
type StageBlockRequest struct {
	VolumeID          string
	Device            Device
	StagingTargetPath string // absolute; nothing is created or mounted at it
}

// StageBlock waits for the device of a raw block volume and checks its identity and that
// it is not mounted as a file system, so that a mistake is found before a pod gets the
// device. It changes nothing, and there is nothing to unstage. Its errors are those of
// PublishBlock.
func (n *Node) StageBlock(ctx context.Context, r StageBlockRequest) error {
	const op = "stage"
	if err := checkPath(r.StagingTargetPath); err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.run(ctx, op, r.VolumeID, r.StagingTargetPath, func(ctx context.Context, _ resolvedPath) error {
		return n.stageBlock(ctx, r.Device)
	})
}

// UnstageRequest is the request of [Node.Unstage].
type UnstageRequest struct {
	VolumeID          string // for logs and errors only
	StagingTargetPath string // absolute

	// Device is that of the volume, if Path is set. Without it Unstage answers only for what
	// is mounted at StagingTargetPath: not for a raw block volume, nor for a file system that
	// another mount namespace has mounted.
	Device Device
}

// Unstage unmounts everything that is mounted at the staging path, stacked mounts
// included, and keeps the directory, which the CO created. It is idempotent: if nothing is
// mounted or the path does not exist, it succeeds. While the volume is published in this
// mount namespace the error is csierr.Precondition and lists the paths; those for which
// Config.IsOrphaned returns true are unpublished first.
//
// With a Device, success also means that it is released and may be detached, for a raw block
// volume as well; the errors are those of [Node.Released].
func (n *Node) Unstage(ctx context.Context, r UnstageRequest) error {
	const op = "unstage"
	if err := checkPath(r.StagingTargetPath); err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.run(ctx, op, r.VolumeID, r.StagingTargetPath, func(ctx context.Context, target resolvedPath) error {
		defer n.dropStats(target) // after the unmount, or a concurrent Stats would store it again
		return n.unstage(ctx, r, target)
	})
}
