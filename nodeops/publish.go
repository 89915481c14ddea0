package nodeops

import (
	"context"
	"path/filepath"

	"github.com/csikit/csikit/internal/mountapi"
)

// PublishFilesystemRequest asks for a staged file system to be bound into a pod's
// directory.
type PublishFilesystemRequest struct {
	VolumeID          string
	StagingTargetPath string   // what StageFilesystem mounted
	Device            Device   // where Path is given: the device that must be mounted there
	TargetPath        string   // absolute; made by Publish, its parent must exist
	MountFlags        []string // those about the mount itself count (nosuid, noatime, ...); the file system got its own at stage
	ReadOnly          bool
	Exclusive         bool // refuse when the volume is published at another path already (the SINGLE_NODE_WRITER modes)
}

// PublishFilesystem binds the staged file system to the target path, which it
// makes. A read-only target is never writable, not for a moment.
//
// It is idempotent. Nothing, a dead mount or another device at the staging path is
// KindPrecondition: stage first. Something else mounted at the target is
// KindConflict with every difference; a dead mount there is taken away and
// made anew. On an error the target is as it was before, but for dead mounts.
func (n *Node) PublishFilesystem(ctx context.Context, r PublishFilesystemRequest) error {
	const op = "publish"
	for _, p := range []string{r.StagingTargetPath, r.TargetPath} {
		if err := checkPath(p); err != nil {
			return wrap(op, r.VolumeID, r.TargetPath, err)
		}
	}
	opts, err := parseFlags(r.MountFlags, r.ReadOnly)
	if err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context) error {
		return n.publishFilesystem(ctx, r, opts.Attr)
	})
}

// PublishBlockRequest asks for a raw block device to appear at a pod's path.
type PublishBlockRequest struct {
	VolumeID   string
	Device     Device
	TargetPath string // absolute; a file made by Publish, its parent must exist
	ReadOnly   bool
	Exclusive  bool // refuse when the device is published at another path already
}

// PublishBlock binds the device node to a file at the target path, which it
// makes. No file system code is reached.
//
// A read-only bind of a device node does not stop writes, so ReadOnly is
// enforced on the device itself, for as long as every publication of it is
// read-only; read-only beside read-write on one device is KindPrecondition and
// names the other path (but see Config.DeviceCgroup). Idempotency and errors are those of PublishFilesystem.
func (n *Node) PublishBlock(ctx context.Context, r PublishBlockRequest) error {
	const op = "publish"
	if err := checkPath(r.TargetPath); err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context) error {
		return n.publishBlock(ctx, r)
	})
}

// UnpublishRequest asks for what is published at a pod's path to be unmounted.
type UnpublishRequest struct {
	VolumeID   string // for logs and errors only
	TargetPath string // absolute
}

// Unpublish unmounts what is mounted at the target path, file system or block
// device, stacked mounts included, and removes the path by unlink or rmdir.
// Nothing mounted and no such path are success. A directory that is not empty
// once nothing is mounted on it is KindPrecondition and is left alone.
//
// It needs no knowledge about the volume, and never opens or stats what is mounted, which
// may be dead (but see Config.Unmount).
func (n *Node) Unpublish(ctx context.Context, r UnpublishRequest) error {
	const op = "unpublish"
	if err := checkPath(r.TargetPath); err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runUnmount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context) error {
		defer n.forget(r.TargetPath) // once nothing can be measured there
		return n.unpublish(ctx, r.TargetPath)
	})
}

// parseFlags reads a request's mount flags, with what it says of access beside them.
func parseFlags(flags []string, readOnly bool) (mountapi.Options, error) {
	opts, err := mountapi.ParseOptions(flags)
	if err != nil {
		return mountapi.Options{}, &fault{kind: KindInvalid, err: err}
	}
	if readOnly {
		opts.Attr |= mountapi.ReadOnly
	}
	return opts, nil
}

func checkPath(p string) error {
	if !filepath.IsAbs(p) {
		return faultf(KindInvalid, "path %q is not absolute", p)
	}
	if filepath.Clean(p) == string(filepath.Separator) {
		return faultf(KindInvalid, "path is the root directory")
	}
	return nil
}
