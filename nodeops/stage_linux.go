package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/csikit/csikit/internal/btrfs"
	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

func (n *Node) stageFilesystem(ctx context.Context, r StageFilesystemRequest, path resolvedPath, opts mountapi.Options) (err error) {
	dev, err := n.awaitDevice(ctx, r.Device)
	if err != nil {
		return err
	}
	defer dev.close()
	if r.FSType == "btrfs" && !strings.HasPrefix(dev.path, "/dev/") {
		return faultf(KindInvalid, "device %s is not in /dev: the mount table shows a btrfs by that name alone, and would not be understood", dev.path)
	}
	target, err := path.target()
	if err != nil {
		return err
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	readOnly := opts.Attr&mountapi.ReadOnly != 0
	want := wanted{dev.major, dev.minor, "/", r.FSType, opts.Attr}
	if on := table.at(target); len(on) > 0 {
		if why := corrupted(target); why != nil {
			return n.restage(ctx, r, path, opts, table, why)
		}
		if m := on[len(on)-1]; !readOnly && want.sameDevice(m) && m.SuperReadOnly() && !m.MountReadOnly() {
			return faultf(KindUncertain, "the file system went read-only after an error: unstage the volume, or repair the device")
		}
		if diff := want.compare(on); len(diff) > 0 {
			return conflict("something else is staged there", diff)
		}
		// An earlier call may have ended before it. A final code would make the CO
		// forget the mount, which stays.
		if err := n.finishStage(ctx, r, target, dev, readOnly); err != nil {
			return &fault{kind: KindUncertain, err: err}
		}
		return nil
	}
	if err := table.unused(dev, target); err != nil {
		return err
	}
	// Nothing is written for a mount that has no place to go.
	if st, err := os.Lstat(target); err != nil {
		return faultf(KindPrecondition, "the CO makes the staging directory: %w", err)
	} else if !st.IsDir() {
		return conflict("the staging path is taken", []Difference{{"staging path", "a directory", describe(st)}})
	}
	if err := n.prepare(ctx, r, dev, readOnly); err != nil {
		return err
	}
	if err := n.mountDevice(ctx, dev, target, r.FSType, opts); err != nil {
		return err
	}
	if err := n.finishStage(ctx, r, target, dev, readOnly); err != nil {
		if undo := n.unmountAll(ctx, target); undo != nil {
			return faultf(KindUncertain, "%w; and the mount stays: %w", err, undo)
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

// restage makes a mount anew that is dead. It takes the top one alone: what lies below
// it may live, and is for the next look.
func (n *Node) restage(ctx context.Context, r StageFilesystemRequest, path resolvedPath, opts mountapi.Options, table table, why error) error {
	target := path.path
	// The dead superblock lives as long as one of its mounts, and is what a new one
	// would show. No final code: the CO would forget what is mounted.
	on := table.at(target)
	err := n.notPublished(ctx, table, on[len(on)-1:], target)
	if err == nil {
		err = n.unmountTop(ctx, target)
	}
	if err != nil {
		return &fault{kind: KindUncertain, err: fmt.Errorf("what is mounted there is dead (%w), and cannot be mounted anew: %w", why, err)}
	}
	n.log.Warn("unmounted a dead mount, to make it anew", "volume_id", r.VolumeID, "path", target, "error", why)
	return n.stageFilesystem(ctx, r, path, opts)
}

// unused makes sure that the device is not in use but at the target.
func (t table) unused(dev *device, target string) error {
	// After a reboot, a stale /dev/disk/by-id link has given one device to two
	// volumes (hetznercloud/csi-driver#1455).
	if others := t.elsewhere(mountapi.Mount{Major: dev.major, Minor: dev.minor}, target); len(others) > 0 {
		return faultf(KindPrecondition, "%s is mounted at %s already: it is another volume's device, or this volume was unmounted by hand while it was in use", dev.path, paths(others))
	}
	if others := t.nodes(dev); len(others) > 0 {
		return faultf(KindPrecondition, "%s is published as a raw block device at %s", dev.path, paths(others))
	}
	return nil
}

// mountDevice mounts the device's file system on target, or nothing.
func (n *Node) mountDevice(ctx context.Context, dev *device, target, fsType string, opts mountapi.Options) (err error) {
	_, done := n.telemetry.step(ctx, "mount")
	defer func() { done(err) }()
	// Two volumes that are staged at once may both have found the device unused.
	defer n.lock(dev.name())()
	table, err := readTable()
	if err != nil {
		return err
	}
	if err := table.unused(dev, target); err != nil {
		return err
	}
	opts.Data = append(slices.Clone(filesystems[fsType].data), opts.Data...)
	tree, err := mountapi.NewTree(fsType, dev.path, opts)
	if err != nil {
		return mountFault(err)
	}
	defer tree.Close() // before anything is undone: it keeps the mount busy
	// The path was resolved to a device twice, by us and by the kernel.
	major, minor, err := treeDevice(tree, fsType)
	if err != nil {
		return err
	}
	if major != dev.major || minor != dev.minor {
		return faultf(KindPrecondition, "%s became another device while it was mounted", dev.path)
	}
	return tree.Attach(target)
}

// treeDevice returns the number of the block device that a tree of that file
// system type shows.
func treeDevice(tree *mountapi.Tree, fsType string) (major, minor uint32, err error) {
	if fsType != "btrfs" {
		root, err := tree.Root()
		return root.Major, root.Minor, err
	}
	dir, err := tree.Open()
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

// finishStage does what can be done only to a mounted file system. ext4 was
// grown before, if it could be: a volume that is in use must not fail to stage
// because it could not, nor a small btrfs.
func (n *Node) finishStage(ctx context.Context, r StageFilesystemRequest, target string, dev *device, readOnly bool) error {
	if readOnly {
		return nil
	}
	if r.FSType == "xfs" || r.FSType == "btrfs" && dev.size >= btrfs.LeastGrown {
		err := n.growMounted(ctx, r.FSType, target, dev)
		if errors.Is(err, btrfs.ErrBusy) { // as by a balance that mounting resumes, and unmounting only interrupts
			n.log.Warn("the file system is smaller than its device and cannot be grown now", "volume_id", r.VolumeID, "device", dev.path, "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return applyMountGroup(target, r.MountGroup)
}

// applyMountGroup lets the group write to the root of the file system. What is so
// already is left alone: a chmod or chown would make kubelet walk the whole volume
// again (its policy OnRootMismatch looks at the root).
func applyMountGroup(target, group string) error {
	gid, err := parseGroup(group)
	if err != nil || gid < 0 {
		return err
	}
	root, err := os.OpenFile(target, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	fd := int(root.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "fstat", Path: target, Err: err}
	}
	if int(st.Gid) != gid {
		if err := unix.Fchown(fd, -1, gid); err != nil {
			return &os.PathError{Op: "fchown", Path: target, Err: err}
		}
		st.Mode &^= unix.S_ISGID // chown may have taken it
	}
	const groupWrites = unix.S_ISGID | unix.S_IRWXG
	if st.Mode&groupWrites != groupWrites {
		if err := unix.Fchmod(fd, st.Mode&0o7777|groupWrites); err != nil {
			return &os.PathError{Op: "fchmod", Path: target, Err: err}
		}
	}
	return nil
}

// prepare makes the device hold a file system that can be mounted. Who holds the
// device while we look is either a mount, then it can be mounted once more, or a
// program, then the kernel refuses the mount.
func (n *Node) prepare(ctx context.Context, r StageFilesystemRequest, dev *device, readOnly bool) error {
	release, busy := dev.hold()
	if busy == nil {
		defer release()
	} else if f := (*fault)(nil); !errors.As(busy, &f) { // whether somebody holds it is not known
		return busy
	}
	found, err := n.probeDevice(ctx, dev, r.VolumeID, busy == nil)
	if err != nil {
		return err
	}
	// A mark says that its mkfs runs, and has not been seen to end.
	if busy != nil && (found.Kind != probe.Filesystem || found.Type != r.FSType || !found.Clean || len(found.mark.ours) > 0) {
		return busy
	}
	if found.Kind == probe.Blank || found.interrupted(r.FSType) {
		switch {
		case r.MustHoldData:
			return faultf(KindPrecondition, "%s is blank or was not formatted to the end, but the volume was made from data: it may be the wrong device, or its copy failed", dev.path)
		case readOnly:
			return faultf(KindPrecondition, "%s is blank or was not formatted to the end, and is to be mounted read-only: stage the volume read-write once", dev.path)
		}
		return n.format(ctx, r, dev, found, release)
	}
	if found.Kind != probe.Filesystem {
		return faultf(KindPrecondition, "%s holds %v; it is formatted only when it is blank: "+zeroing, dev.path, found, dev.path)
	}
	if found.Type != r.FSType {
		return faultf(KindPrecondition, "%s holds a %v, the volume is to have %s: use that type; "+zeroing, dev.path, found, r.FSType, dev.path)
	}
	if found.Devices > 1 {
		return faultf(KindPrecondition, "%s holds one of the %d devices of a %v: a volume is one device", dev.path, found.Devices, found)
	}
	if found.Size > dev.size {
		return faultf(KindPrecondition, "%s has %d bytes but holds a %v: the device is too small for it", dev.path, dev.size, found)
	}
	if found.Incomplete {
		return faultf(KindPrecondition, "%s holds a file system of type %s whose mkfs did not come to its end, and nothing shows that it was blank before: "+zeroing, dev.path, found.Type, dev.path)
	}
	if len(found.mark.ours) > 0 && !readOnly {
		if err := n.finishFormat(ctx, dev, found); err != nil {
			return err
		}
	}
	if r.FSType != "ext4" || readOnly || busy != nil {
		return nil
	}
	check := r.Fsck == FsckAlways || r.Fsck == FsckIfNeeded && !found.Clean
	if !check && found.Full {
		return nil
	}
	return n.checkAndGrowExt(ctx, dev, found.Full, r.Fsck, release)
}

// checkAndGrowExt checks an ext4 that records errors, and grows one that is
// smaller than its device: offline, where it needs no CAP_SYS_RESOURCE.
//
// e2fsck on a mounted file system would destroy it. That the device could be held
// says that no namespace has it mounted; e2fsck then takes it exclusively itself.
func (n *Node) checkAndGrowExt(ctx context.Context, dev *device, full bool, policy Fsck, release func()) error {
	release()
	args := []string{"-p", dev.path}
	if !full || policy == FsckAlways { // resize2fs insists on a full check
		args = []string{"-f", "-p", dev.path}
	}
	status, output, err := n.command(ctx, 0, "e2fsck", args...)
	if err != nil {
		return err
	}
	// e2fsck(8): a bit mask; 1 and 2 say that errors were corrected.
	if status&^3 != 0 {
		return faultf(KindPrecondition, "e2fsck -p cannot repair %s (exit status %d); run e2fsck by hand: %s", dev.path, status, output)
	}
	if full {
		return nil
	}
	status, output, err = n.command(ctx, 0, "resize2fs", dev.path)
	if err != nil {
		return err
	}
	if status != 0 {
		return faultf(KindUncertain, "resize2fs %s exited with status %d: %s", dev.path, status, output)
	}
	return nil
}

func (n *Node) unstage(ctx context.Context, path resolvedPath) error {
	if gone(path.err) {
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
	if err := n.unmountAll(ctx, target); err != nil {
		return err
	}
	// EINVAL, which ends unmountAll, is also the answer for a mount that this
	// namespace may not take down.
	if table, err = readTable(); err != nil {
		return err
	}
	if on := table.at(target); len(on) > 0 {
		return faultf(KindUncertain, "still mounted: %s", on[len(on)-1].Source)
	}
	return nil
}

// notPublished makes sure that what is staged at the target shows nowhere else.
func (n *Node) notPublished(ctx context.Context, table table, on []mountapi.Mount, target string) error {
	for _, m := range on {
		others, err := n.unpublishOrphaned(ctx, table.elsewhere(m, target))
		if err != nil {
			return err
		}
		if len(others) > 0 {
			return faultf(KindPrecondition, "the volume is still published at %s: unpublish it first", paths(others))
		}
	}
	return nil
}

// unpublishOrphaned unpublishes what the caller gives up, and returns the rest.
func (n *Node) unpublishOrphaned(ctx context.Context, published []mountapi.Mount) (rest []mountapi.Mount, err error) {
	for _, m := range published {
		if n.isOrphaned == nil || !n.isOrphaned(m.MountPoint) {
			rest = append(rest, m)
			continue
		}
		n.log.Warn("unpublishing a volume that no pod uses any more", "path", m.MountPoint)
		// As the only work there, as if the CO had asked for it.
		target, err := n.resolve(ctx, m.MountPoint)
		if err == nil {
			err = n.serialized(ctx, target, func(ctx context.Context, target resolvedPath) error {
				defer n.dropStats(target)
				return n.unpublish(ctx, target)
			})
		}
		if err != nil {
			return nil, fmt.Errorf("unpublish it at %s, where no pod uses it: %w", m.MountPoint, err)
		}
	}
	return rest, nil
}

func mountFault(err error) error {
	switch {
	case errors.Is(err, mountapi.ErrOption):
		return &fault{kind: KindInvalid, err: fmt.Errorf("mount: %w", err)}
	case errors.Is(err, unix.EBUSY):
		return &fault{kind: KindBusy, err: fmt.Errorf("mount: %w", err)}
	case errors.Is(err, unix.EEXIST):
		return faultf(KindPrecondition, "mount: a copy of this btrfs is mounted on this node, and only Linux 6.7 and later mount both: %w", err)
	case errors.Is(err, unix.EINVAL):
		return &fault{kind: KindPrecondition, err: fmt.Errorf("mount: %w", err)}
	}
	return fmt.Errorf("mount: %w", err)
}

func unmountFault(target string, err error) error {
	if errors.Is(err, unix.EBUSY) {
		who := "a process, perhaps in another mount namespace,"
		if pids := users(target); len(pids) > 0 {
			who = "process " + strings.Join(pids, ", ")
		}
		return faultf(KindBusy, "%s still uses it: %w", who, err)
	}
	return &fault{kind: KindUncertain, err: err}
}
