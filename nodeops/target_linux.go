package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/blockdev"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// lockTarget opens and locks the file or directory at the path, on which something is to be
// mounted, against other processes: an old instance of the driver may hang in the kernel
// while its successor serves, and both would find nothing mounted, and mount. The lock is
// that of the inode, which the mount covers: a process that opens the path after that locks
// another inode, and finds the mount. It ends with the process.
func lockTarget(ctx context.Context, p *mountapi.Point) (fd int, unlock func(), err error) {
	fd, err = unix.Openat(p.Dir(), p.Name(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, &os.PathError{Op: "open", Path: p.Path(), Err: err}
	}
	switch err = blockdev.Lock(ctx, fd); {
	case errors.Is(err, unix.EBUSY):
		err = faultf(csierr.Busy, "another process mounts at %s", p.Path())
	case err != nil:
		err = fmt.Errorf("another process mounts at %s: %w", p.Path(), err)
	default:
		var on []mountapi.Mount
		if on, err = p.At(); err == nil && len(on) > 0 {
			err = faultf(csierr.Busy, "another process has just mounted at %s; retry", p.Path())
		}
	}
	// Not only closed: between fork and exec, a child has a copy of the descriptor.
	unlock = func() {
		_ = unix.Flock(fd, unix.LOCK_UN)
		_ = unix.Close(fd)
	}
	if err != nil {
		unlock()
		return -1, nil, err
	}
	return fd, unlock, nil
}

// attach mounts the tree on the target, if nothing is mounted there.
func attach(ctx context.Context, tree *mountapi.Tree, target *mountapi.Point) error {
	fd, unlock, err := lockTarget(ctx, target)
	if err != nil {
		return err
	}
	defer unlock()
	return tree.AttachTo(fd, target.Path())
}

// makeDirectory creates the target. If it exists, undo does nothing, and on is what is
// mounted there, without corrupted mounts, which are unmounted.
func (n *Node) makeDirectory(ctx context.Context, target *mountapi.Point) (on []mountapi.Mount, undo func(), err error) {
	if err = unix.Mkdirat(target.Dir(), target.Name(), 0o750); err == nil {
		return nil, func() { _ = unix.Unlinkat(target.Dir(), target.Name(), unix.AT_REMOVEDIR) }, nil
	}
	if on, e := n.healthyAt(ctx, target); e != nil || len(on) > 0 {
		return on, func() {}, e
	}
	if st, e := lstat(target); e != nil {
		return nil, nil, &os.PathError{Op: "mkdir", Path: target.Path(), Err: err}
	} else if !isType(st, unix.S_IFDIR) {
		return nil, nil, conflict("the target path exists and has the wrong type", []Difference{{"target", "a directory", describe(st)}})
	}
	return nil, func() {}, nil
}

// makeFile creates the file that a device node is mounted on; undo as in makeDirectory.
func makeFile(target *mountapi.Point) (undo func(), err error) {
	fd, err := unix.Openat(target.Dir(), target.Name(), unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(fd)
		return func() { _ = unix.Unlinkat(target.Dir(), target.Name(), 0) }, nil
	}
	if st, e := lstat(target); e != nil {
		return nil, &os.PathError{Op: "open", Path: target.Path(), Err: err}
	} else if !isType(st, unix.S_IFREG) || st.Size != 0 {
		return nil, conflict("the target path exists and has the wrong type", []Difference{{"target", "an empty file", describe(st)}})
	}
	return func() {}, nil
}

// remove deletes what a publish operation created at the path: an empty directory or an
// empty file, and nothing else. The kernel refuses it while something is mounted there
// (EBUSY).
func remove(target *mountapi.Point) error {
	err := unix.Unlinkat(target.Dir(), target.Name(), unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return faultf(csierr.Precondition, "nothing is mounted at the target path, but the directory is not empty and is not deleted: move the data away, then delete the path: %w", err)
	}
	st, e := lstat(target)
	switch {
	case notExist(e):
		return nil
	case e != nil:
		err = e
	case isType(st, unix.S_IFDIR):
	case isType(st, unix.S_IFREG) && st.Size > 0:
		return faultf(csierr.Precondition, "nothing is mounted at the target path, but %s is %s, which is not deleted: move the data away, then delete the path", target.Path(), describe(st))
	default:
		if err = unix.Unlinkat(target.Dir(), target.Name(), 0); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
	}
	return &fault{kind: csierr.Uncertain, err: &os.PathError{Op: "remove", Path: target.Path(), Err: err}}
}

// lstat is lstat(2) of a path on which nothing is mounted.
func lstat(p *mountapi.Point) (st unix.Stat_t, err error) {
	if err := unix.Fstatat(p.Dir(), p.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, &os.PathError{Op: "lstat", Path: p.Path(), Err: err}
	}
	return st, nil
}

func isType(st unix.Stat_t, want uint32) bool { return st.Mode&unix.S_IFMT == want }

func describe(st unix.Stat_t) string {
	switch {
	case isType(st, unix.S_IFDIR):
		return "a directory"
	case isType(st, unix.S_IFREG):
		return fmt.Sprintf("a file of %d bytes", st.Size)
	case isType(st, unix.S_IFLNK):
		return "a symlink"
	}
	return fmt.Sprintf("of mode %#o", st.Mode)
}
