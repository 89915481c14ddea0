package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// table is the mount table at one point in time.
type table []mountapi.Mount

func readTable() (table, error) {
	// A scratch of a process that was killed would look like another use of the device. What
	// cannot be removed is in the table.
	_ = mountapi.SweepScratches()
	t, err := mountapi.Table()
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return t, nil
}

// at returns what is mounted on the path, the top last. A mount that is covered by another
// one on a directory above is not at the path.
func (t table) at(p string) []mountapi.Mount { return mountapi.Stack(t, p) }

// location identifies a mount point by its path in the parent mount's file system. The
// propagated copies of a mount have the same location, whatever their paths are.
func (t table) location(m mountapi.Mount) string {
	for _, p := range t {
		if p.ID == m.ParentID {
			rel := strings.TrimPrefix(m.MountPoint, p.MountPoint)
			return fmt.Sprintf("%d:%d %s", p.Major, p.Minor, path.Join(p.Root, rel))
		}
	}
	return m.MountPoint
}

// locations returns the locations of the mounts at the paths.
func (t table) locations(paths []string) []string {
	var known []string
	for _, m := range t {
		if slices.Contains(paths, m.MountPoint) {
			known = append(known, t.location(m))
		}
	}
	return known
}

// elsewhere returns the mounts of the same file system as m, except those at the given
// paths and their propagated copies.
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

// refuseFilesystem returns an error if the device is mounted as a file system: concurrent
// writes through it and through the raw device corrupt the data.
func (t table) refuseFilesystem(dev *device) error {
	if mounted := t.elsewhere(mountapi.Mount{Major: dev.major, Minor: dev.minor}); len(mounted) > 0 {
		return faultf(csierr.Precondition, "the device is mounted as a file system at %s: unmount it first", paths(mounted))
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
	at, err := t.uses(dev)
	return mountPoints(at), err
}

// uses returns the mounts of the file system on the device and of its node, except those at
// the given paths and their propagated copies.
func (t table) uses(dev *device, except ...string) ([]mountapi.Mount, error) {
	asFilesystem := mountapi.Mount{Major: dev.major, Minor: dev.minor}
	nodes, err := t.nodes(dev, except...)
	return append(t.elsewhere(asFilesystem, except...), nodes...), err
}

// nodes returns the mounts of the device's node, except those at the given paths and their
// propagated copies. They are identified by the device number of the mounted node: after a
// restart in a container with a separate /dev, the node of the same device is in another
// file system. Reading it cannot hang, these file systems are in memory. A node that cannot
// be read may be that of the device: the error is csierr.Uncertain.
func (t table) nodes(dev *device, except ...string) ([]mountapi.Mount, error) {
	known := t.locations(except)
	var nodes []mountapi.Mount
	for _, m := range t {
		is, err := isNode(m, dev)
		if err != nil {
			is, err = t.isNodeElsewhere(m, dev, err)
		}
		if err != nil {
			return nil, err
		}
		if is && !slices.Contains(known, t.location(m)) {
			nodes = append(nodes, m)
		}
	}
	return nodes, nil
}

// isNode reports whether the mount is one of the device's node. One that was unmounted since
// the table was read is not.
func isNode(m mountapi.Mount, dev *device) (bool, error) {
	node, ok, err := nodeNumber(m)
	switch {
	case notExist(err):
		return false, nil
	case err != nil:
		return false, faultf(csierr.Uncertain, "a mount that may be one of the device's node cannot be read: %w", err)
	}
	return ok && node == dev.number(), nil
}

// isNodeElsewhere is isNode for a mount that cannot be read, because its path leads through a file
// system whose server has ended: it reads the same file in another mount of its file system, such
// as /dev. It returns unreadable if there is none, or the kernel does not show that it is the same.
func (t table) isNodeElsewhere(m mountapi.Mount, dev *device, unreadable error) (bool, error) {
	for _, o := range t {
		rest, below := strings.CutPrefix(m.Root, strings.TrimSuffix(o.Root, "/")+"/")
		if o.ID == m.ID || !o.SameDevice(m) || !below {
			continue
		}
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path.Join(o.MountPoint, rest), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
			unix.STATX_TYPE|unix.STATX_MNT_ID, &st)
		// Linux 5.8. Another mount may be on it.
		if err != nil || st.Mask&unix.STATX_MNT_ID == 0 || st.Mnt_id != uint64(o.ID) {
			continue
		}
		return st.Mode&unix.S_IFMT == unix.S_IFBLK && number{st.Rdev_major, st.Rdev_minor} == dev.number(), nil
	}
	return false, unreadable
}

// mayBeNode reports whether the mount may be one of a device node: of a single file of a
// file system in memory.
func mayBeNode(m mountapi.Mount) bool {
	return m.Root != "/" && (m.FSType == "devtmpfs" || m.FSType == "tmpfs")
}

// nodeNumber returns the number of the block device whose node is mounted, also if the node
// was removed since. The mount has to be the top one at its path.
func nodeNumber(m mountapi.Mount) (_ number, ok bool, err error) {
	if !mayBeNode(m) {
		return number{}, false, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(m.MountPoint, &st); err != nil {
		return number{}, false, &os.PathError{Op: "lstat", Path: m.MountPoint, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return number{}, false, nil
	}
	return number{unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))}, true, nil
}

// wanted is what should be mounted at a path.
type wanted struct {
	major, minor uint32
	root         string
	fsType       string
	attr         mountapi.Attr
}

// compare lists the differences between what is mounted and what is wanted.
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
	// Only flags that restrict a pod; another handling of access times is no conflict.
	const restricting = mountapi.NoSuid | mountapi.NoDev | mountapi.NoExec | mountapi.NoSymFollow
	if surplus := m.MountAttr() &^ w.attr & restricting; surplus != 0 {
		diff = append(diff, Difference{"mount flag " + surplus.String(), "not set", "set"})
	}
	return diff
}

// compareAttr lists the differences between what is mounted and one mount with at least these
// attributes.
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

// unmountTop unmounts only the top mount at the path.
func (n *Node) unmountTop(ctx context.Context, p *mountapi.Point) (err error) {
	_, done := n.telemetry.step(ctx, "unmount")
	defer func() { done(err) }()
	was, err := unmount(p)
	if err != nil {
		return unmountFault(p.Path(), err)
	}
	if !was {
		return faultf(csierr.Uncertain, "already unmounted by another process, or this process may not unmount it")
	}
	return nil
}

// unmountAll calls the function of that name in a span.
func (n *Node) unmountAll(ctx context.Context, p *mountapi.Point) error {
	_, done := n.telemetry.step(ctx, "unmount")
	err := unmountAll(p)
	done(err)
	return err
}

// unmountBounded is unmountAll, but if the policy allows it does not wait for the shutdown of
// a file system that is mounted nowhere any more: the kernel first removes it from its
// path, and then waits for the server, to write dirty pages and to end the session (NFSv4,
// also of an idle mount). That cannot be aborted.
func (n *Node) unmountBounded(ctx context.Context, p *mountapi.Point) error {
	if n.unmount == UnmountWait {
		return n.unmountAll(ctx, p)
	}
	// A key of its own: an earlier call that hangs on this path must not be joined.
	key := fmt.Sprintf("%s (unmount %d)", p.Path(), n.unmounts.Add(1))
	for {
		own, err := p.Dup() // the caller may return first, and close its own
		if err != nil {
			return &fault{kind: csierr.Uncertain, err: err}
		}
		done := sync.OnceFunc(own.Close)
		err = n.withUnmountTimeout(context.WithoutCancel(ctx), func(ctx context.Context) error {
			_, joined, err := n.teardown.Do(ctx, key, func() (any, error) {
				defer done()
				return nil, n.unmountAll(ctx, own)
			})
			if joined || !isPending(err) { // it was not started: there is another, or the time was over
				done()
			}
			return err
		})
		if !isPending(err) {
			return err
		}
		// The table, since a path lookup may block on the server.
		if table, e := readTable(); e == nil && len(table.at(p.Path())) == 0 {
			n.log.Warn("the unmount is still in flight in the kernel, as the server does not respond", "path", p.Path())
			return nil
		}
	}
}

// unmount is Point.Unmount, but retries while the mount is busy, for 127 ms: between fork
// and exec, any program that is being started has copies of all open files.
func unmount(p *mountapi.Point) (was bool, err error) {
	err = retryBusy(func() error {
		was, err = p.Unmount()
		return err
	})
	return was, err
}

func retryBusy(fn func() error) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := fn()
		if !errors.Is(err, unix.EBUSY) || wait > 64*time.Millisecond {
			return err
		}
		time.Sleep(wait)
	}
}

// unmountAll unmounts everything that is mounted on the path. The bound is for another
// process that mounts there as fast as this one unmounts.
func unmountAll(p *mountapi.Point) error {
	for range 1000 {
		more, err := unmount(p)
		if err != nil {
			return unmountFault(p.Path(), err)
		}
		if !more {
			return nil
		}
	}
	return faultf(csierr.Uncertain, "still mounted after 1000 unmounts")
}
