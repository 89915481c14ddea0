package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
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

// at returns what is mounted on the path, the top last. Where kubelet's directory
// is itself a shared bind mount, every mount below it is listed twice, on two
// parents, and one umount removes both: they count as one. In a stack, the lower
// mount is the parent of the upper one.
func (t table) at(p string) []mountapi.Mount {
	var on []mountapi.Mount
	for _, m := range t {
		if m.MountPoint != p {
			continue
		}
		if n := len(on); n > 0 && on[n-1].ID != m.ParentID && on[n-1].SameDevice(m) && on[n-1].Root == m.Root {
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

// locations are where the mounts at the paths lie.
func (t table) locations(paths []string) []string {
	var known []string
	for _, m := range t {
		if slices.Contains(paths, m.MountPoint) {
			known = append(known, t.location(m))
		}
	}
	return known
}

// elsewhere returns the other mounts of the file system that m shows, those at
// the given paths and their propagated copies excepted.
func (t table) elsewhere(m mountapi.Mount, except ...string) []mountapi.Mount {
	known := t.locations(except)
	var others []mountapi.Mount
	for _, o := range t {
		if o.SameDevice(m) && !slices.Contains(known, t.location(o)) {
			others = append(others, o)
		}
	}
	return others
}

// refuseFilesystem reports where the device is mounted as a file system: what that and
// a raw block user write at once is lost to both.
func (t table) refuseFilesystem(dev *device) error {
	if mounted := t.elsewhere(mountapi.Mount{Major: dev.major, Minor: dev.minor}); len(mounted) > 0 {
		return faultf(KindPrecondition, "the device is mounted as a file system at %s", paths(mounted))
	}
	return nil
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
	asFilesystem := mountapi.Mount{Major: dev.major, Minor: dev.minor}
	return mountPoints(append(t.elsewhere(asFilesystem), t.nodes(dev)...)), nil
}

// nodes returns the mounts that show the device's node, but for those at the
// given paths and their propagated copies. They are told by the device number of
// what is there: after a restart in a container with a /dev of its own, the same
// device's node lies in another file system. Looking there cannot hang, these are
// files in memory.
func (t table) nodes(dev *device, except ...string) []mountapi.Mount {
	known := t.locations(except)
	var nodes []mountapi.Mount
	for _, m := range t {
		if isNode(m, dev) && !slices.Contains(known, t.location(m)) {
			nodes = append(nodes, m)
		}
	}
	return nodes
}

func isNode(m mountapi.Mount, dev *device) bool {
	if m.Root == "/" || (m.FSType != "devtmpfs" && m.FSType != "tmpfs") {
		return false
	}
	var st unix.Stat_t
	if err := unix.Lstat(m.MountPoint, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return false
	}
	rdev := uint64(st.Rdev)
	return unix.Major(rdev) == dev.major && unix.Minor(rdev) == dev.minor
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
	m := on[len(on)-1]
	diff := compareAttr(w.attr, on)
	add := func(what string, want, have string) {
		if want != have {
			diff = append(diff, Difference{what, want, have})
		}
	}
	add("device", fmt.Sprintf("%d:%d", w.major, w.minor), fmt.Sprintf("%d:%d", m.Major, m.Minor))
	add("root in the file system", w.root, m.Root)
	add("file system type", w.fsType, m.FSType)
	// Those that keep a pod from something; how access times are kept is not worth a conflict.
	const restricting = mountapi.NoSuid | mountapi.NoDev | mountapi.NoExec | mountapi.NoSymFollow
	if surplus := m.MountAttr() &^ w.attr & restricting; surplus != 0 {
		diff = append(diff, Difference{"mount flag " + surplus.String(), "not set", "set"})
	}
	return diff
}

// compareAttr lists how what is mounted differs from one mount with at least these attributes.
func compareAttr(attr mountapi.Attr, on []mountapi.Mount) []Difference {
	var diff []Difference
	if len(on) != 1 {
		diff = append(diff, Difference{"number of stacked mounts", "1", fmt.Sprint(len(on))})
	}
	m := on[len(on)-1]
	if readOnly := attr&mountapi.ReadOnly != 0; readOnly != m.ReadOnly() {
		diff = append(diff, Difference{"access", access(readOnly), access(m.ReadOnly())})
	}
	if missing := attr &^ m.MountAttr() &^ mountapi.ReadOnly; missing != 0 {
		diff = append(diff, Difference{"mount flag " + missing.String(), "set", "not set"})
	}
	return diff
}

func (w wanted) sameDevice(m mountapi.Mount) bool { return w.major == m.Major && w.minor == m.Minor }

func access(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}

// unmountTop takes down the one mount that is on top at the path.
func (n *Node) unmountTop(ctx context.Context, p string) (err error) {
	_, done := n.telemetry.step(ctx, "unmount")
	defer func() { done(err) }()
	was, err := unmount(p)
	if err != nil {
		return unmountFault(p, err)
	}
	if !was {
		return faultf(KindUncertain, "it went away meanwhile, or the kernel does not let this process unmount it")
	}
	return nil
}

// unmountAll is the function of that name as a step of an operation.
func (n *Node) unmountAll(ctx context.Context, p string) error {
	_, done := n.telemetry.step(ctx, "unmount")
	err := unmountAll(p)
	done(err)
	return err
}

// unmountBounded is unmountAll, but where the policy allows it does not wait for a file
// system that is nowhere mounted any more: the kernel takes it off its path first, and
// then waits for the server, to write what is left, and to end the session (NFSv4, also
// of a mount that was idle). Nothing could make it give up any more.
func (n *Node) unmountBounded(ctx context.Context, p string) error {
	if n.unmount == UnmountWait {
		return n.unmountAll(ctx, p)
	}
	// A name of its own: what hung on this path before is not ours.
	key := fmt.Sprintf("%s (unmount %d)", p, n.unmounts.Add(1))
	for {
		err := n.withUnmountTimeout(context.WithoutCancel(ctx), func(ctx context.Context) error {
			_, _, err := n.blocking.Do(ctx, key, func() (any, error) { return nil, n.unmountAll(ctx, p) })
			return err
		})
		if !isPending(err) {
			return err
		}
		// The table, for a path that is looked up may ask the server.
		if table, e := readTable(); e == nil && len(table.at(p)) == 0 {
			n.log.Warn("the kernel goes on to take down what was unmounted; its server does not answer", "path", p)
			return nil
		}
	}
}

// unmount is mountapi.Unmount, but does not take a mount for busy at once: a program
// that is being started, by whomever, has copies of all open files between fork and exec.
func unmount(p string) (bool, error) {
	for wait := time.Millisecond; ; wait *= 2 {
		was, err := mountapi.Unmount(p)
		if !errors.Is(err, unix.EBUSY) || wait > 64*time.Millisecond {
			return was, err
		}
		time.Sleep(wait)
	}
}

// unmountAll takes down everything that is mounted on the path. The bound only
// guards against somebody who mounts as fast as we unmount.
func unmountAll(p string) error {
	for range 1000 {
		more, err := unmount(p)
		if err != nil {
			return unmountFault(p, err)
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
