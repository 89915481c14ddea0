package nodeops

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
)

// PublishFilesystemRequest is the request of [Node.PublishFilesystem].
type PublishFilesystemRequest struct {
	VolumeID          string
	StagingTargetPath string   // where StageFilesystem mounted the volume
	Device            Device   // if Path is set: the device that must be mounted at StagingTargetPath
	TargetPath        string   // absolute; created by this call, its parent must exist
	MountFlags        []string // only flags of the mount have an effect (nosuid, noatime, ...); options of the file system were set by StageFilesystem
	ReadOnly          bool
	Exclusive         bool // refuse if the volume is published at another path already (the SINGLE_NODE_WRITER modes; see Two pods of one node)
}

// PublishFilesystem bind-mounts the staged file system at the target path, which it
// creates. A read-only target is attached read-only: it is never writable first.
//
// It is idempotent. If nothing, a corrupted mount or another device is mounted at the
// staging path, the error is csierr.Precondition: stage first. A mount at the target that
// differs is csierr.Conflict with every difference; a corrupted one is replaced. On an error
// the target is as it was before, except that corrupted mounts may have been unmounted.
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
	return n.runMount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context, target resolvedPath) error {
		return n.publishFilesystem(ctx, r, target, opts.Attr)
	})
}

// PublishBlockRequest is the request of [Node.PublishBlock].
type PublishBlockRequest struct {
	VolumeID   string
	Device     Device
	TargetPath string // absolute; a file created by this call, its parent must exist
	ReadOnly   bool
	Exclusive  bool // refuse if the device is published at another path already
}

// PublishBlock bind-mounts the device node on a file at the target path, which it
// creates. The device is not opened as a file system.
//
// A read-only bind mount of a device node does not prevent writes, so ReadOnly is enforced
// on the device itself, as long as every publication of it is read-only. Publishing one
// device both read-only and read-write is csierr.Precondition and names the other path (but
// see Config.DeviceCgroup). Idempotency and errors are those of PublishFilesystem.
func (n *Node) PublishBlock(ctx context.Context, r PublishBlockRequest) error {
	const op = "publish"
	if err := checkPath(r.TargetPath); err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context, target resolvedPath) error {
		return n.publishBlock(ctx, r, target)
	})
}

// UnpublishRequest is the request of [Node.Unpublish].
type UnpublishRequest struct {
	VolumeID   string // for logs and errors only
	TargetPath string // absolute
}

// Unpublish unmounts everything that is mounted at the target path, file system or block
// device, stacked mounts included, and removes the path by unlink or rmdir. It is
// idempotent: if nothing is mounted or the path does not exist, it succeeds. A directory
// that is not empty after the unmount is csierr.Precondition and not removed.
//
// It needs no information about the volume, and never opens or stats the mount, which may
// be hung (but see Config.Unmount).
func (n *Node) Unpublish(ctx context.Context, r UnpublishRequest) error {
	const op = "unpublish"
	if err := checkPath(r.TargetPath); err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runUnmount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context, target resolvedPath) error {
		defer n.dropStats(target) // after the unmount, or a concurrent Stats would store it again
		return n.unpublish(ctx, target)
	})
}

// parseFlags parses the mount flags of a request and adds its access mode.
func parseFlags(flags []string, readOnly bool) (mountapi.Options, error) {
	opts, err := mountapi.ParseOptions(flags)
	if err != nil {
		return mountapi.Options{}, &fault{kind: csierr.Invalid, err: err}
	}
	if readOnly {
		opts.Attr |= mountapi.ReadOnly
	}
	return opts, nil
}

func checkPath(p string) error {
	if !filepath.IsAbs(p) {
		return faultf(csierr.Invalid, "path %q is not absolute", p)
	}
	for name := range strings.SplitSeq(p, string(filepath.Separator)) {
		if len(name) > 255 { // NAME_MAX of all file systems
			return faultf(csierr.Invalid, "path %q: %q is longer than 255 bytes, which no file system supports", p, name)
		}
	}
	if filepath.Clean(p) == string(filepath.Separator) {
		return faultf(csierr.Invalid, "path is the root directory")
	}
	return nil
}
