package nodeops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/csikit/csikit/internal/mountapi"
)

// table is the mount table at one moment.
type table []mountapi.Mount

func readTable() (table, error) {
	t, err := mountapi.Table()
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return t, nil
}

// at returns what is mounted on the path, the top last. Neighbours that show the
// same count as one: where kubelet's directory is itself a shared bind mount,
// every mount below it is listed twice and one umount removes both.
func (t table) at(p string) []mountapi.Mount {
	var on []mountapi.Mount
	for _, m := range t {
		if m.MountPoint != p {
			continue
		}
		if len(on) > 0 && on[len(on)-1].SameDevice(m) && on[len(on)-1].Root == m.Root {
			continue
		}
		on = append(on, m)
	}
	return on
}

// location is where a mount point lies in the file system below it. The copies
// that propagation makes of one mount have one location, whatever their paths are.
func (t table) location(m mountapi.Mount) string {
	for _, p := range t {
		if p.ID == m.ParentID {
			rel := strings.TrimPrefix(m.MountPoint, p.MountPoint)
			return fmt.Sprintf("%d:%d %s", p.Major, p.Minor, path.Join(p.Root, rel))
		}
	}
	return m.MountPoint
}

// elsewhere returns the other mounts that show what m shows (the same device,
// and where root is not empty the same root), those at the given paths and their
// propagated copies excepted.
func (t table) elsewhere(m mountapi.Mount, root string, except ...string) []mountapi.Mount {
	var known []string
	for _, o := range t {
		if slices.Contains(except, o.MountPoint) {
			known = append(known, t.location(o))
		}
	}
	var others []mountapi.Mount
	for _, o := range t {
		if o.SameDevice(m) && (root == "" || o.Root == root) && !slices.Contains(known, t.location(o)) {
			others = append(others, o)
		}
	}
	return others
}

func mountPoints(mounts []mountapi.Mount) []string {
	var p []string
	for _, m := range mounts {
		p = append(p, m.MountPoint)
	}
	return slices.Compact(slices.Sorted(slices.Values(p)))
}

func paths(mounts []mountapi.Mount) string { return strings.Join(mountPoints(mounts), ", ") }

func (n *Node) mountedDevice(d Device) ([]string, error) {
	dev, err := openDevice(d)
	if err != nil {
		return nil, err
	}
	defer dev.close()
	t, err := readTable()
	if err != nil {
		return nil, err
	}
	node, err := t.file(dev.path)
	if err != nil {
		return nil, err
	}
	asFilesystem := mountapi.Mount{Major: dev.major, Minor: dev.minor}
	return mountPoints(append(t.elsewhere(asFilesystem, ""), t.elsewhere(node, node.Root)...)), nil
}

// wanted is what ought to be mounted at a path.
type wanted struct {
	major, minor uint32
	root         string
	fsType       string
	attr         mountapi.Attr
}

// compare lists how what is mounted differs from what is wanted.
func (w wanted) compare(on []mountapi.Mount) []Difference {
	var diff []Difference
	add := func(what string, want, have any) {
		if want != have {
			diff = append(diff, Difference{what, fmt.Sprint(want), fmt.Sprint(have)})
		}
	}
	add("number of stacked mounts", 1, len(on))
	m := on[len(on)-1]
	add("device", fmt.Sprintf("%d:%d", w.major, w.minor), fmt.Sprintf("%d:%d", m.Major, m.Minor))
	add("root in the file system", w.root, m.Root)
	add("file system type", w.fsType, m.FSType)
	add("access", access(w.attr&mountapi.ReadOnly != 0), access(m.ReadOnly()))
	if missing := w.attr &^ m.MountAttr() &^ mountapi.ReadOnly; missing != 0 {
		diff = append(diff, Difference{"mount flag " + missing.String(), "set", "not set"})
	}
	return diff
}

func access(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}

// resolveTarget returns the path as the mount table shows it.
func resolveTarget(p string) (string, error) {
	r, err := mountapi.Resolve(p)
	if errors.Is(err, fs.ErrNotExist) {
		return "", faultf(KindPrecondition, "the parent directory of %s is not there; the CO makes it: %w", p, err)
	}
	return r, err
}

// unmountAll takes down everything that is mounted on the path. The bound only
// guards against somebody who mounts as fast as we unmount.
func unmountAll(p string) error {
	for range 1000 {
		more, err := mountapi.Unmount(p)
		if err != nil {
			return unmountFault(err)
		}
		if !more {
			return nil
		}
	}
	return faultf(KindUncertain, "still mounted after 1000 unmounts")
}

// remove deletes what Publish made at the path, an empty directory or an empty
// file, and nothing else.
func remove(p string) error {
	err := os.Remove(p) // unlink or rmdir, never recursive
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
