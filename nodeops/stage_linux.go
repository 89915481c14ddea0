package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/btrfs"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

func (n *Node) stageFilesystem(ctx context.Context, r StageFilesystemRequest, path resolvedPath, opts mountapi.Options) (err error) {
	dev, err := n.awaitDevice(ctx, r.Device)
	if err != nil {
		return err
	}
	defer dev.close()
	if r.FSType == "btrfs" && !strings.HasPrefix(dev.path, "/dev/") {
		return faultf(csierr.Invalid, "device %s is not in /dev: the mount table shows only the path of a btrfs device, so it has to be one in /dev", dev.path)
	}
	point, err := path.target()
	if err != nil {
		return err
	}
	target := path.path
	table, err := readTable()
	if err != nil {
		return err
	}
	readOnly := opts.Attr&mountapi.ReadOnly != 0
	want := wanted{dev.major, dev.minor, "/", r.FSType, opts.Attr}
	if on := table.at(target); len(on) > 0 {
		why := corrupted(target)
		if m := on[len(on)-1]; why == nil && !readOnly && want.sameDevice(m) {
			why = failure(m, dev)
		}
		if why != nil && !(errors.Is(why, errRecorded) && r.Fsck == FsckNever) {
			err := n.unmountFailed(ctx, r, table, point, why)
			if err == nil {
				return n.stageFilesystem(ctx, r, path, opts)
			}
			// The file system accepts writes, as its mount option errors=continue requests.
			if !errors.Is(why, errRecorded) {
				return err
			}
			n.log.Warn("the file system needs a check", "volume_id", r.VolumeID, "path", target, "error", err)
		}
		if diff := want.compare(on); len(diff) > 0 {
			return conflict("another volume or another configuration is staged at the staging path", diff)
		}
		// An earlier call may have been interrupted before it. After a final code the CO
		// would not unmount what stays mounted.
		if err := n.finishStage(ctx, r, target, dev, readOnly); err != nil {
			return &fault{kind: csierr.Uncertain, err: err}
		}
		return nil
	}
	if err := table.checkUnused(dev, target); err != nil {
		return err
	}
	// Check the target before anything is written to the device.
	if st, err := lstat(point); err != nil {
		return faultf(csierr.Precondition, "the CO has to create the staging directory: %w", err)
	} else if !isType(st, unix.S_IFDIR) {
		return conflict("the staging path exists and has the wrong type", []Difference{{"staging path", "a directory", describe(st)}})
	}
	refusesWrites, err := dev.readOnly()
	if err != nil {
		return err
	}
	if refusesWrites && !readOnly {
		return faultf(csierr.Precondition, "%s refuses writes: it is attached or was set read-only; attach it read-write, or stage the volume read-only", dev.path)
	}
	if refusesWrites {
		opts.Data = append(slices.Clone(filesystems[r.FSType].noReplay), opts.Data...)
	}
	if err := n.prepareFilesystem(ctx, r, dev, readOnly); err != nil {
		return err
	}
	if err := n.mountDevice(ctx, dev, point, r.FSType, opts); err != nil {
		return err
	}
	if err := n.finishStage(ctx, r, target, dev, readOnly); err != nil {
		if undo := n.unmountAll(ctx, point); undo != nil {
			return faultf(csierr.Uncertain, "%w; and it cannot be unmounted: %w", err, undo)
		}
		return err
	}
	return nil
}

func (n *Node) stageBlock(ctx context.Context, d Device) error {
	dev, err := n.awaitDevice(ctx, d)
	if err != nil {
		return err
	}
	defer dev.close()
	table, err := readTable()
	if err != nil {
		return err
	}
	return table.refuseFilesystem(dev)
}

// unmountFailed unmounts a mount that failed, so that it can be replaced. It unmounts only
// the top one: the one below may be healthy, and is checked next.
func (n *Node) unmountFailed(ctx context.Context, r StageFilesystemRequest, table table, target *mountapi.Point, why error) error {
	// The failed superblock stays as long as one of its mounts, and a new mount would show
	// it. No final code: the CO would not unmount what is mounted.
	on := table.at(target.Path())
	err := n.notPublished(ctx, table, on[len(on)-1:], target.Path())
	if err == nil {
		err = n.unmountTop(ctx, target)
	}
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: fmt.Errorf("the mount at the staging path is corrupted (%w) and cannot be replaced: %w", why, err)}
	}
	n.log.Warn("unmounted a corrupted mount, to mount the volume again", "volume_id", r.VolumeID, "path", target.Path(), "error", why)
	return nil
}

// checkUnused checks that the device is not in use except at the target.
func (t table) checkUnused(dev *device, target string) error {
	// After a reboot, a stale /dev/disk/by-id link has given one device to two
	// volumes (hetznercloud/csi-driver#1455).
	if others := t.elsewhere(mountapi.Mount{Major: dev.major, Minor: dev.minor}, target); len(others) > 0 {
		return faultf(csierr.Precondition, "%s is mounted at %s already: it is the device of another volume, or this volume was unmounted manually while in use; unmount it there first", dev.path, paths(others))
	}
	others, err := t.nodes(dev)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return faultf(csierr.Precondition, "%s is published as a raw block device at %s: unpublish it there first", dev.path, paths(others))
	}
	return nil
}

// mountDevice mounts the device's file system on target.
func (n *Node) mountDevice(ctx context.Context, dev *device, target *mountapi.Point, fsType string, opts mountapi.Options) (err error) {
	_, done := n.telemetry.step(ctx, "mount")
	defer func() { done(err) }()
	// Two concurrent calls may both have found the device unused.
	defer n.lock(dev.name())()
	table, err := readTable()
	if err != nil {
		return err
	}
	if err := table.checkUnused(dev, target.Path()); err != nil {
		return err
	}
	opts.Data = append(slices.Clone(filesystems[fsType].data), opts.Data...)
	tree, err := mountapi.NewTree(fsType, dev.path, opts)
	if err != nil {
		return mountFault(err)
	}
	defer tree.Close() // before a later unmount: it keeps the mount busy
	// The path was resolved to a device twice, by us and by the kernel.
	major, minor, err := deviceBehind(tree, fsType)
	if err != nil {
		return err
	}
	if major != dev.major || minor != dev.minor {
		return faultf(csierr.Precondition, "%s now refers to a different device; retry", dev.path)
	}
	return attach(ctx, tree, target)
}

// deviceBehind returns the number of the block device of a mount of that file system type.
func deviceBehind(mount interface {
	Root() (mountapi.Root, error)
	Open() (*os.File, error)
}, fsType string) (major, minor uint32, err error) {
	if fsType != "btrfs" {
		root, err := mount.Root()
		return root.Major, root.Minor, err
	}
	dir, err := mount.Open()
	if err != nil {
		return 0, 0, err
	}
	defer dir.Close()
	info, err := btrfs.Stat(dir)
	if err != nil {
		return 0, 0, err
	}
	return info.BlockDevice()
}

// finishStage does what needs a mounted file system. An ext4 was grown before, if possible:
// that it was not, or that a btrfs is too small to grow, must not fail the staging of a
// volume.
func (n *Node) finishStage(ctx context.Context, r StageFilesystemRequest, target string, dev *device, readOnly bool) error {
	if readOnly || r.FSType != "xfs" && (r.FSType != "btrfs" || dev.size < btrfs.MinGrownSize) {
		return nil
	}
	err := n.growMounted(ctx, r.FSType, target, dev)
	if errors.Is(err, btrfs.ErrBusy) { // such as a balance, which a mount resumes and an unmount only pauses
		n.log.Warn("the file system is smaller than its device and cannot be grown now", "volume_id", r.VolumeID, "device", dev.path, "error", err)
		return nil
	}
	return err
}

func (n *Node) unstage(ctx context.Context, r UnstageRequest, path resolvedPath) error {
	if err := n.unmountStaged(ctx, path); err != nil {
		return err
	}
	if r.Device.Path == "" {
		return nil
	}
	dev, err := openDevice(r.Device)
	if errors.Is(err, errNoDevice) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dev.close()
	table, err := readTable()
	if err != nil {
		return err
	}
	published, err := table.uses(dev)
	if err != nil {
		return err
	}
	if err := n.refusePublished(ctx, published); err != nil {
		return err
	}
	return n.released(dev)
}

func (n *Node) unmountStaged(ctx context.Context, path resolvedPath) error {
	if notExist(path.err) {
		return nil
	}
	if path.err != nil {
		return path.err
	}
	target := path.path
	table, err := readTable()
	if err != nil {
		return err
	}
	on := table.at(target)
	if len(on) == 0 {
		return nil
	}
	if err := n.notPublished(ctx, table, on, target); err != nil {
		return err
	}
	if err := n.unmountAll(ctx, path.point); err != nil {
		return err
	}
	// EINVAL, which ends unmountAll, is also the error for a mount that this namespace may
	// not unmount.
	if table, err = readTable(); err != nil {
		return err
	}
	if on := table.at(target); len(on) > 0 {
		return faultf(csierr.Uncertain, "still mounted: %s", on[len(on)-1].Source)
	}
	return nil
}

// notPublished checks that what is staged at the target is mounted nowhere else.
func (n *Node) notPublished(ctx context.Context, table table, on []mountapi.Mount, target string) error {
	for _, m := range on {
		if err := n.refusePublished(ctx, table.elsewhere(m, target)); err != nil {
			return err
		}
	}
	return nil
}

// refusePublished unpublishes orphaned publications, and returns an error if others remain.
func (n *Node) refusePublished(ctx context.Context, published []mountapi.Mount) error {
	others, err := n.unpublishOrphaned(ctx, published)
	if err == nil && len(others) > 0 {
		err = faultf(csierr.Precondition, "the volume is still published at %s: unpublish it first", paths(others))
	}
	return err
}

// unpublishOrphaned unpublishes the orphaned publications, and returns the others.
func (n *Node) unpublishOrphaned(ctx context.Context, published []mountapi.Mount) (rest []mountapi.Mount, err error) {
	for _, m := range published {
		if n.isOrphaned == nil || !n.isOrphaned(m.MountPoint) {
			rest = append(rest, m)
			continue
		}
		n.log.Warn("unpublishing an orphaned publication", "path", m.MountPoint)
		// Serialized with other operations on the path, as if the CO had requested it.
		err := n.serialized(ctx, n.teardown, m.MountPoint, func(ctx context.Context, target resolvedPath) error {
			defer n.dropStats(target)
			return n.unpublish(ctx, target)
		})
		if err != nil {
			return nil, fmt.Errorf("unpublish the orphaned publication at %s: %w", m.MountPoint, err)
		}
	}
	return rest, nil
}

func mountFault(err error) error {
	switch {
	case errors.Is(err, mountapi.ErrOption):
		return &fault{kind: csierr.Invalid, err: fmt.Errorf("mount: %w", err)}
	case errors.Is(err, unix.EBUSY):
		return &fault{kind: csierr.Busy, err: fmt.Errorf("mount: %w", err)}
	case errors.Is(err, unix.EEXIST):
		return faultf(csierr.Precondition, "mount: a copy of this btrfs is mounted on this node, and only Linux 6.7 and later mount both: unmount the copy, or upgrade: %w", err)
	case errors.Is(err, unix.EINVAL):
		return &fault{kind: csierr.Precondition, err: fmt.Errorf("mount: %w", err)}
	}
	return fmt.Errorf("mount: %w", err)
}

func unmountFault(target string, err error) error {
	if errors.Is(err, unix.EBUSY) {
		user := "a process, perhaps in another mount namespace,"
		if pids := users(target); len(pids) > 0 {
			user = "process " + strings.Join(pids, ", ")
		}
		return faultf(csierr.Busy, "%s still uses it: %w", user, err)
	}
	return &fault{kind: csierr.Uncertain, err: err}
}
