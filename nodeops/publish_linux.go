package nodeops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

func (n *Node) publishFilesystem(r FilesystemPublish, attr mountapi.Attr) error {
	staging, err := mountapi.Resolve(r.StagingTargetPath)
	if err != nil && !gone(err) {
		return err
	}
	target, err := resolveTarget(r.TargetPath)
	if err != nil {
		return err
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	staged := table.at(staging)
	if len(staged) == 0 {
		return faultf(KindPrecondition, "nothing is mounted at the staging path %s: stage the volume first", r.StagingTargetPath)
	}
	source := staged[len(staged)-1]
	if r.Device.Path != "" {
		dev, err := openDevice(r.Device)
		if err != nil {
			return err
		}
		dev.close()
		if dev.major != source.Major || dev.minor != source.Minor {
			return faultf(KindPrecondition, "the staging path %s shows device %d:%d (%s), not %s: unstage and stage the volume again",
				r.StagingTargetPath, source.Major, source.Minor, source.Source, dev.path)
		}
	}
	if source.Root != "/" {
		return faultf(KindPrecondition, "the staging path %s shows %s of a file system, not its root: unstage and stage the volume again", r.StagingTargetPath, source.Root)
	}
	if source.ReadOnly() && attr&mountapi.ReadOnly == 0 {
		return faultf(KindPrecondition, "the volume is staged read-only and cannot be published read-write")
	}
	want := wanted{source.Major, source.Minor, source.Root, source.FSType, attr}
	if on := table.at(target); len(on) > 0 {
		if diff := want.compare(on); len(diff) > 0 {
			return conflict("something else is published there", diff)
		}
		return nil
	}
	if r.Exclusive {
		if others := table.elsewhere(source, "", staging, target); len(others) > 0 {
			return faultf(KindPrecondition, "the volume may be published once and is at %s already", paths(others))
		}
	}
	undo, err := makeDirectory(target)
	if err != nil {
		return err
	}
	if err := bind(staging, target, attr, func(root mountapi.Root) error {
		if root.Major != source.Major || root.Minor != source.Minor {
			return faultf(KindUncertain, "what is mounted at the staging path changed meanwhile")
		}
		return nil
	}); err != nil {
		undo()
		return err
	}
	return nil
}

func (n *Node) publishBlock(r BlockPublish) error {
	dev, err := openDevice(r.Device)
	if err != nil {
		return err
	}
	defer dev.close()
	target, err := resolveTarget(r.TargetPath)
	if err != nil {
		return err
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	node, err := table.file(dev.path)
	if err != nil {
		return err
	}
	var attr mountapi.Attr
	if r.ReadOnly {
		attr = mountapi.ReadOnly
	}
	want := wanted{node.Major, node.Minor, node.Root, node.FSType, attr}
	others := table.elsewhere(node, node.Root, target)
	if on := table.at(target); len(on) > 0 {
		if diff := want.compare(on); len(diff) > 0 {
			return conflict("something else is published there", diff)
		}
		// The device's own flag may have been lost since.
		return setAccess(dev, r.ReadOnly, others)
	}
	if r.Exclusive && len(others) > 0 {
		return faultf(KindPrecondition, "the volume may be published once and is at %s already", paths(others))
	}
	undo, err := makeFile(target)
	if err != nil {
		return err
	}
	err = setAccess(dev, r.ReadOnly, others)
	if err == nil {
		err = bind(dev.path, target, attr, func(root mountapi.Root) error {
			if !root.BlockDevice || root.RdevMajor != dev.major || root.RdevMinor != dev.minor {
				return faultf(KindUncertain, "%s became another device meanwhile", dev.path)
			}
			return nil
		})
	}
	if err != nil {
		undo()
		if r.ReadOnly && len(others) == 0 {
			err = errors.Join(err, dev.setReadOnly(false))
		}
		return err
	}
	return nil
}

// setAccess makes the device refuse or accept writes. All its publications have
// to agree, because the flag is the device's.
func setAccess(dev *device, readOnly bool, others []mountapi.Mount) error {
	for _, o := range others {
		if o.ReadOnly() != readOnly {
			return faultf(KindPrecondition, "the device is published %s at %s: a block device cannot be both read-only and read-write",
				access(o.ReadOnly()), o.MountPoint)
		}
	}
	now, err := dev.readOnly()
	if err != nil || now == readOnly {
		return err
	}
	return dev.setReadOnly(readOnly)
}

// file returns the mount that a bind of the file at p would add, its mount
// point aside.
func (t table) file(p string) (mountapi.Mount, error) {
	best := -1
	for i, m := range t {
		// The last of equals is on top.
		if below(p, m.MountPoint) && (best < 0 || len(m.MountPoint) >= len(t[best].MountPoint)) {
			best = i
		}
	}
	if best < 0 {
		return mountapi.Mount{}, fmt.Errorf("%s is below no mount", p)
	}
	m := t[best]
	m.Root = path.Join(m.Root, strings.TrimPrefix(p, m.MountPoint))
	return m, nil
}

func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// bind attaches a copy of source to target, once check has seen what it shows.
func bind(source, target string, attr mountapi.Attr, check func(mountapi.Root) error) error {
	tree, err := mountapi.CloneTree(source, attr)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	defer tree.Close()
	root, err := tree.Root()
	if err != nil {
		return err
	}
	if err := check(root); err != nil {
		return err
	}
	return tree.Attach(target)
}

// makeDirectory makes the target; undo removes it if this call made it.
func makeDirectory(target string) (undo func(), err error) {
	err = os.Mkdir(target, 0o750)
	if err == nil {
		return func() { remove(target) }, nil
	}
	if st, e := os.Lstat(target); e != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, conflict("the target path is taken", []Difference{{"target", "a directory", describe(st)}})
	}
	return func() {}, nil
}

// makeFile makes the file that a device node is bound to.
func makeFile(target string) (undo func(), err error) {
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err == nil {
		f.Close()
		return func() { remove(target) }, nil
	}
	if st, e := os.Lstat(target); e != nil {
		return nil, err
	} else if !st.Mode().IsRegular() || st.Size() != 0 {
		return nil, conflict("the target path is taken", []Difference{{"target", "an empty file", describe(st)}})
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

func (n *Node) unpublish(targetPath string) error {
	target, err := mountapi.Resolve(targetPath)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	on := table.at(target)
	if err := unmountAll(target); err != nil {
		return err
	}
	// Before the path goes: when this fails, the retry finds nothing mounted,
	// but the next publication sets the device's flag as it needs it.
	for _, m := range on {
		if err := writableAgain(m, target); err != nil {
			return err
		}
	}
	st, err := os.Lstat(target)
	if gone(err) {
		return nil
	}
	if err != nil {
		return &fault{kind: KindUncertain, err: err}
	}
	if st.Mode().IsRegular() && st.Size() > 0 {
		return faultf(KindPrecondition, "nothing is mounted there, but %s is %s and is not deleted", targetPath, describe(st))
	}
	err = remove(target)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return faultf(KindPrecondition, "nothing is mounted there, but the directory is not empty and is not deleted: %w", err)
	}
	if err != nil {
		return &fault{kind: KindUncertain, err: err}
	}
	return nil
}

// writableAgain clears the device's read-only flag when m was the last of its
// read-only raw block publications: the flag would outlive even the attachment of
// a loop device, and meet whoever gets that device next.
func writableAgain(m mountapi.Mount, target string) error {
	// A published device node shows as the mount of a file of the /dev file system.
	if !m.ReadOnly() || (m.FSType != "devtmpfs" && m.FSType != "tmpfs") {
		return nil
	}
	if _, err := os.Stat("/sys/class/block/" + path.Base(m.Root)); err != nil {
		return nil
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	if len(table.elsewhere(m, m.Root, target)) > 0 {
		return nil
	}
	dev, err := openDevice(Device{Path: "/dev/" + path.Base(m.Root)})
	if err != nil {
		return nil // detached meanwhile: nothing to clear
	}
	defer dev.close()
	if err := dev.setReadOnly(false); err != nil {
		return &fault{kind: KindUncertain, err: err}
	}
	return nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }
