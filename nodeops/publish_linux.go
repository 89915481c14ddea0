package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

func (n *Node) publishFilesystem(ctx context.Context, r PublishFilesystemRequest, path resolvedPath, attr mountapi.Attr) (err error) {
	target, err := path.target()
	if err != nil {
		return err
	}
	staging, err := mountapi.OpenSource(r.StagingTargetPath)
	if notExist(err) || errors.Is(err, unix.ELOOP) {
		return faultf(csierr.Precondition, "nothing is mounted at the staging path %s: stage the volume first", r.StagingTargetPath)
	}
	if why := corruption(err); why != nil {
		return stagingCorrupted(why)
	}
	if err != nil {
		return err
	}
	defer staging.Close()
	source, mounted, err := staging.Mount()
	if err != nil {
		return err
	}
	if !mounted {
		return faultf(csierr.Precondition, "nothing is mounted at the staging path %s: stage the volume first", r.StagingTargetPath)
	}
	if target.Path() == source.MountPoint { // the staging mount would be taken for an earlier publication
		return conflict("the target path is the staging path", nil)
	}
	if r.Device.Path != "" {
		dev, err := openDevice(r.Device)
		if err != nil {
			return err
		}
		dev.close()
		if dev.major != source.Major || dev.minor != source.Minor {
			return faultf(csierr.Precondition, "the staging path %s shows device %d:%d (%s), not %s: unstage and stage the volume again",
				r.StagingTargetPath, source.Major, source.Minor, source.Source, dev.path)
		}
	}
	if source.Root != "/" {
		return faultf(csierr.Precondition, "the staging path %s shows %s of a file system, not its root: unstage and stage the volume again", r.StagingTargetPath, source.Root)
	}
	if source.FailedReadOnly() && attr&mountapi.ReadOnly == 0 {
		return faultf(csierr.Precondition, "%w: unstage and stage the volume, or repair the device", errFailedReadOnly)
	}
	if source.ReadOnly() && attr&mountapi.ReadOnly == 0 {
		return faultf(csierr.Precondition, "the volume is staged read-only: unstage and stage it read-write, or publish it read-only")
	}
	on, undo, err := n.makeDirectory(ctx, target)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	if why := corruptedAt(staging.Fd(), "."); why != nil {
		return stagingCorrupted(why)
	}
	// A bind mount inherits the attributes of the staging mount.
	want := wanted{source.Major, source.Minor, source.Root, source.FSType, source.MountAttr().With(attr)}
	if len(on) > 0 {
		if diff := want.compare(on); len(diff) > 0 {
			return conflict("another volume or another configuration is published at the target path", diff)
		}
		return nil
	}
	if r.Exclusive {
		// Of two concurrent calls, one has to find the other.
		defer n.lock(fmt.Sprintf("%d:%d", source.Major, source.Minor))()
		table, err := readTable()
		if err != nil {
			return err
		}
		if others := table.elsewhere(source, source.MountPoint, target.Path()); len(others) > 0 {
			return faultf(csierr.Precondition, "the access mode allows one target path on this node, and the volume is already published at %s: unpublish it there first", paths(others))
		}
	}
	// The mount table has only a name of the device of a btrfs, and one of several.
	major, minor, err := deviceBehind(staging, source.FSType)
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	if major != source.Major || minor != source.Minor {
		return faultf(csierr.Uncertain, "the mount at the staging path is of device %d:%d, and the mount table has %d:%d; retry", major, minor, source.Major, source.Minor)
	}
	return n.bind(ctx, staging, target, attr)
}

func stagingCorrupted(why error) error {
	return faultf(csierr.Precondition, "the mount at the staging path is corrupted or stale: unstage and stage the volume again: %w", why)
}

func (n *Node) publishBlock(ctx context.Context, r PublishBlockRequest, path resolvedPath) error {
	dev, err := n.awaitDevice(ctx, r.Device)
	if err != nil {
		return err
	}
	defer dev.close()
	target, err := path.target()
	if err != nil {
		return err
	}
	// The read-only flag belongs to the device, so its publications are serialized, not
	// only those at one path.
	defer n.lock(dev.name())()
	table, err := readTable()
	if err != nil {
		return err
	}
	var attr mountapi.Attr
	if r.ReadOnly {
		attr = mountapi.ReadOnly
	}
	if err := table.refuseFilesystem(dev); err != nil {
		return err
	}
	others, err := table.nodes(dev, target.Path())
	if err != nil {
		return err
	}
	if on := table.at(target.Path()); len(on) > 0 {
		diff, err := compareNode(on, dev, r.ReadOnly)
		if err != nil {
			return err
		}
		if len(diff) > 0 {
			return conflict("another volume or another configuration is published at the target path", diff)
		}
		change, err := n.mustChangeAccess(dev, r.ReadOnly, others)
		if err != nil || !change {
			return err
		}
		return dev.setReadOnly(r.ReadOnly) // another process has changed it, or a call was interrupted
	}
	if r.Exclusive && len(others) > 0 {
		return faultf(csierr.Precondition, "the access mode allows one target path on this node, and the volume is already published at %s: unpublish it there first", paths(others))
	}
	change, err := n.mustChangeAccess(dev, r.ReadOnly, others)
	if err != nil {
		return err
	}
	source, err := mountapi.OpenSource(dev.path)
	if err != nil {
		return err
	}
	defer source.Close()
	if root, err := source.Root(); err != nil || !root.BlockDevice || root.RdevMajor != dev.major || root.RdevMinor != dev.minor {
		return faultf(csierr.Uncertain, "%s now refers to a different device; retry", dev.path)
	}
	undo, err := makeFile(target)
	if err != nil {
		return err
	}
	if err := n.bind(ctx, source, target, attr); err != nil {
		undo()
		return err
	}
	if !change {
		return nil
	}
	// Only now: the flag outlives this process, and the publication is what leads Unpublish to
	// it. No pod opens the device before this call has succeeded.
	if err := dev.setReadOnly(r.ReadOnly); err != nil {
		if left := n.unmountTop(ctx, target); left != nil {
			return &fault{kind: csierr.Uncertain, err: errors.Join(err, left)}
		}
		undo()
		return err
	}
	return nil
}

// compareNode lists the differences between what is mounted and the device's node.
func compareNode(on []mountapi.Mount, dev *device, readOnly bool) ([]Difference, error) {
	m := on[len(on)-1]
	is, err := isNode(m, dev)
	if err != nil {
		return nil, err
	}
	if !is {
		return []Difference{{"target", "block device " + dev.name(), fmt.Sprintf("%s of %s", m.Root, m.FSType)}}, nil
	}
	var diff []Difference
	if len(on) > 1 {
		diff = append(diff, Difference{"number of stacked mounts", "1", fmt.Sprint(len(on))})
	}
	if m.ReadOnly() != readOnly {
		diff = append(diff, Difference{"access", access(readOnly), access(m.ReadOnly())})
	}
	return diff, nil
}

// mustChangeAccess reports whether the device has to be made to refuse or accept writes; it
// is an error if another publication needs the contrary. Mount flags are not sufficient:
// kubelet bind-mounts a publication again, and its copy is read-write, which has no effect
// while the device refuses writes.
func (n *Node) mustChangeAccess(dev *device, readOnly bool, others []mountapi.Mount) (bool, error) {
	if n.deviceCgroup {
		if readOnly {
			return false, nil
		}
		others = nil // read-only ones do not depend on the device
	}
	now, err := dev.readOnly()
	if err != nil || now == readOnly {
		return false, err
	}
	for _, o := range others {
		if o.ReadOnly() != readOnly {
			return false, faultf(csierr.Precondition, "the device is published %s at %s: a block device cannot be both read-only and read-write",
				access(o.ReadOnly()), o.MountPoint)
		}
	}
	return true, nil
}

func (n *Node) unpublish(ctx context.Context, path resolvedPath) error {
	if notExist(path.err) {
		return nil
	}
	if path.err != nil {
		return path.err
	}
	target := path.point
	// With a slash at the end unlink removes nothing, and shows what the name is without
	// crossing the mount on it or reading the directory: EISDIR or ENOTDIR. rmdir shows it, too,
	// but the kernel compares all mounts for its EBUSY. Only of a file the mount table is needed.
	err := unix.Unlinkat(target.Dir(), target.Name()+"/", 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR):
		err = n.unmountBounded(ctx, target)
	default:
		err = n.unmountFile(ctx, target)
	}
	if err != nil {
		return err
	}
	return remove(target)
}

// unmountFile unmounts what is on a target that is, or may be, a file. With the last
// read-only publication of a block device, the device's read-only flag is cleared: it would
// persist even after a loop device is detached, and affect the next volume on that device.
func (n *Node) unmountFile(ctx context.Context, target *mountapi.Point) error {
	for range 1000 { // as in unmountAll
		table, err := readTable()
		if err != nil {
			return &fault{kind: csierr.Uncertain, err: err}
		}
		on := table.at(target.Path())
		if !slices.ContainsFunc(on, func(m mountapi.Mount) bool { return mayBeNode(m) && m.ReadOnly() }) {
			return n.unmountBounded(ctx, target)
		}
		if err := n.unmountNode(ctx, target, on[len(on)-1]); err != nil {
			return err
		}
	}
	return faultf(csierr.Uncertain, "still mounted after 1000 unmounts")
}

// unmountNode unmounts the top mount at the target, of a device node or of anything else.
func (n *Node) unmountNode(ctx context.Context, target *mountapi.Point, m mountapi.Mount) error {
	dev, err := readOnlyNode(m)
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	if dev == nil {
		return n.unmountTop(ctx, target)
	}
	defer dev.close()
	defer n.lock(dev.name())()
	table, err := readTable()
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	others, err := table.nodes(dev, m.MountPoint)
	if err != nil {
		return err
	}
	last := len(others) == 0
	// The flag is cleared first: once nothing is mounted, a retry could not find the device.
	var kept error
	if last {
		kept = dev.setReadOnly(false)
	}
	if err := n.unmountTop(ctx, target); err != nil {
		if last && mayBePublished(dev) {
			err = errors.Join(err, dev.setReadOnly(true))
		}
		return err
	}
	if kept != nil {
		kept = dev.setReadOnly(false)
	}
	if kept != nil {
		// A retry succeeds: a device that is always read-only, not because of our flag,
		// must not block the teardown indefinitely.
		return &fault{kind: csierr.Uncertain, err: kept}
	}
	return nil
}

// mayBePublished reports whether the device's node is still mounted; true if that is not known.
func mayBePublished(dev *device) bool {
	table, err := readTable()
	if err != nil {
		return true
	}
	nodes, err := table.nodes(dev)
	return err != nil || len(nodes) > 0
}

// readOnlyNode opens the block device whose node is mounted read-only; nil for another
// mount, and for a device that is detached or has failed, which has no flag to clear.
func readOnlyNode(m mountapi.Mount) (*device, error) {
	if _, ok, err := nodeNumber(m); notExist(err) || err == nil && !ok || !m.ReadOnly() {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	dev, err := deviceOf(m)
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	return dev, nil
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }
