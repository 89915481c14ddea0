package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

func (n *Node) publishFilesystem(ctx context.Context, r PublishFilesystemRequest, path resolvedPath, attr mountapi.Attr) error {
	staging, err := mountapi.Resolve(r.StagingTargetPath)
	if err != nil && !notExist(err) {
		return err
	}
	target, err := path.target()
	if err != nil {
		return err
	}
	if target == staging { // the staging mount would be taken for an earlier publication
		return conflict("the target path is the staging path", nil)
	}
	// One lookup per path, not a search in a table of thousands.
	staged, err := mountapi.At(staging)
	if err != nil {
		return err
	}
	if len(staged) == 0 {
		return faultf(csierr.Precondition, "nothing is mounted at the staging path %s: stage the volume first", r.StagingTargetPath)
	}
	source := staged[len(staged)-1]
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
	on, err := n.healthyAt(ctx, target)
	if err != nil {
		return err
	}
	if why := corrupted(staging); why != nil {
		return faultf(csierr.Precondition, "the mount at the staging path is corrupted or stale: unstage and stage the volume again: %w", why)
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
		if others := table.elsewhere(source, staging, target); len(others) > 0 {
			return faultf(csierr.Precondition, "the access mode allows one target path on this node, and the volume is already published at %s: unpublish it there first", paths(others))
		}
	}
	undo, err := makeDirectory(target)
	if err != nil {
		return err
	}
	if err := n.bind(ctx, staging, target, attr, func(tree *mountapi.Tree) error {
		major, minor, err := treeDevice(tree, source.FSType)
		if err != nil {
			return &fault{kind: csierr.Uncertain, err: err}
		}
		if major != source.Major || minor != source.Minor {
			return faultf(csierr.Uncertain, "the mount at the staging path was replaced by another process; retry")
		}
		return nil
	}); err != nil {
		undo()
		return err
	}
	return nil
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
	others, err := table.nodes(dev, target)
	if err != nil {
		return err
	}
	if on := table.at(target); len(on) > 0 {
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
	undo, err := makeFile(target)
	if err != nil {
		return err
	}
	if err := n.bind(ctx, dev.path, target, attr, func(tree *mountapi.Tree) error {
		root, err := tree.Root()
		if err != nil {
			return err
		}
		if !root.BlockDevice || root.RdevMajor != dev.major || root.RdevMinor != dev.minor {
			return faultf(csierr.Uncertain, "%s now refers to a different device; retry", dev.path)
		}
		return nil
	}); err != nil {
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

// makeDirectory creates the target; undo removes it if this call created it.
func makeDirectory(target string) (undo func(), err error) {
	err = os.Mkdir(target, 0o750)
	if err == nil {
		return func() { remove(target) }, nil
	}
	if st, e := os.Lstat(target); e != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, conflict("the target path exists and has the wrong type", []Difference{{"target", "a directory", describe(st)}})
	}
	return func() {}, nil
}

// makeFile creates the file that a device node is mounted on; undo as in makeDirectory.
func makeFile(target string) (undo func(), err error) {
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err == nil {
		f.Close()
		return func() { remove(target) }, nil
	}
	if st, e := os.Lstat(target); e != nil {
		return nil, err
	} else if !st.Mode().IsRegular() || st.Size() != 0 {
		return nil, conflict("the target path exists and has the wrong type", []Difference{{"target", "an empty file", describe(st)}})
	}
	return func() {}, nil
}

func describe(st fs.FileInfo) string {
	switch {
	case st.IsDir():
		return "a directory"
	case st.Mode().IsRegular():
		return fmt.Sprintf("a file of %d bytes", st.Size())
	}
	return fmt.Sprintf("of mode %v", st.Mode())
}

func (n *Node) unpublish(ctx context.Context, path resolvedPath) error {
	if notExist(path.err) {
		return nil
	}
	if path.err != nil {
		return path.err
	}
	target := path.path
	if err := n.unmountTarget(ctx, target); err != nil {
		return err
	}
	st, err := os.Lstat(target)
	if notExist(err) {
		return nil
	}
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	if st.Mode().IsRegular() && st.Size() > 0 {
		return faultf(csierr.Precondition, "nothing is mounted at the target path, but %s is %s, which is not deleted: move the data away, then delete the path", target, describe(st))
	}
	err = remove(target)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return faultf(csierr.Precondition, "nothing is mounted at the target path, but the directory is not empty and is not deleted: move the data away, then delete the path: %w", err)
	}
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	return nil
}

// unmountTarget unmounts what is on the target. With the last read-only publication of a
// block device, the device's read-only flag is cleared: it would persist even after a loop
// device is detached, and affect the next volume on that device.
//
// The table is read only if the target is a file, which the directory entry shows without
// crossing the mount.
func (n *Node) unmountTarget(ctx context.Context, target string) error {
	if !mayBeFile(target) {
		return n.unmountBounded(ctx, target)
	}
	for range 1000 { // as in unmountAll
		table, err := readTable()
		if err != nil {
			return &fault{kind: csierr.Uncertain, err: err}
		}
		on := table.at(target)
		if !slices.ContainsFunc(on, func(m mountapi.Mount) bool { return mayBeNode(m) && m.ReadOnly() }) {
			return n.unmountBounded(ctx, target)
		}
		if err := n.unmountNode(ctx, on[len(on)-1]); err != nil {
			return err
		}
	}
	return faultf(csierr.Uncertain, "still mounted after 1000 unmounts")
}

// unmountNode unmounts the top mount at a path, of a device node or of anything else.
func (n *Node) unmountNode(ctx context.Context, m mountapi.Mount) error {
	dev, err := readOnlyNode(m)
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	if dev == nil {
		return n.unmountTop(ctx, m.MountPoint)
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
	if err := n.unmountTop(ctx, m.MountPoint); err != nil {
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

// mayBeFile reads the type of the path from its parent directory, without crossing the
// mount on it. True means a file, or not known.
func mayBeFile(p string) bool {
	dir, err := os.Open(path.Dir(p))
	if err != nil {
		return true
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if e.Name() == path.Base(p) {
				return !e.IsDir()
			}
		}
		if err != nil {
			return !errors.Is(err, io.EOF) // at the end: no such entry, so no mount on it
		}
	}
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }
