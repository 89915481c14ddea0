package nodeops

import (
	"context"
	"slices"

	"github.com/csikit/csikit/internal/mountapi"
)

// DefaultFSType is used where a request names no file system type.
const DefaultFSType = "ext4"

// FilesystemStage asks for the file system of a volume to be mounted at its
// staging path.
type FilesystemStage struct {
	VolumeID          string
	Device            Device
	StagingTargetPath string   // absolute; an existing directory
	FSType            string   // "ext4" or "xfs"; "" is [DefaultFSType]
	MountFlags        []string // as NodeStageVolume has them
	ReadOnly          bool     // mount read-only; nothing is formatted, repaired or grown
	MustHoldData      bool     // a clone or restore: being blank is an error, never a reason to format
	Prezeroed         bool     // the storage guarantees that a new device reads as zeros; mkfs need not write them
}

// StageFilesystem mounts the volume's file system at the staging path. A device
// that is proven blank is formatted first; a file system that is smaller than its
// device is grown (before or after mounting, as its type needs it).
//
// It is idempotent, also after the process was killed at any point: whatever is
// done already is found and checked. (A mkfs that was killed as well, as by a power
// failure, may leave a device that is neither blank nor a file system: that is
// KindPrecondition, for an operator to decide.) On an error nothing is mounted by
// this call. What else is mounted at the path is KindConflict, but for options of
// the file system, which the kernel prints in words of its own and which are not
// compared; a device that holds another file system,
// or something that is not known, is KindPrecondition; a device that somebody
// else holds open, such as the mkfs of an earlier call whose process was killed,
// is KindBusy.
func (n *Node) StageFilesystem(ctx context.Context, r FilesystemStage) error {
	const op = "stage"
	if r.FSType == "" {
		r.FSType = DefaultFSType
	}
	opts, err := checkStage(r)
	if err != nil {
		return wrap(op, r.VolumeID, r.StagingTargetPath, err)
	}
	return n.run(ctx, op, r.VolumeID, r.StagingTargetPath, func() error {
		return n.stageFilesystem(r, opts)
	})
}

func checkStage(r FilesystemStage) (mountapi.Options, error) {
	if !slices.Contains(fsTypes(), r.FSType) {
		return mountapi.Options{}, faultf(KindInvalid, "file system type %q is not supported; use one of %v", r.FSType, fsTypes())
	}
	if err := checkPath(r.StagingTargetPath); err != nil {
		return mountapi.Options{}, err
	}
	opts, err := mountapi.ParseOptions(r.MountFlags)
	if err != nil {
		return mountapi.Options{}, &fault{kind: KindInvalid, err: err}
	}
	if r.ReadOnly {
		opts.Attr |= mountapi.ReadOnly
	}
	return opts, nil
}

// Unstage unmounts what is mounted at the staging path, stacked mounts included,
// and leaves the directory, which the CO made. Nothing mounted and no such path
// are success. It refuses with KindPrecondition while the volume is published
// somewhere in this mount namespace, and names those paths.
func (n *Node) Unstage(ctx context.Context, volumeID, stagingTargetPath string) error {
	const op = "unstage"
	if err := checkPath(stagingTargetPath); err != nil {
		return wrap(op, volumeID, stagingTargetPath, err)
	}
	return n.run(ctx, op, volumeID, stagingTargetPath, func() error {
		return n.unstage(stagingTargetPath)
	})
}
