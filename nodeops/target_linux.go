package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// lockTarget locks the file or directory at the path, on which something is to be mounted,
// against other processes: an old instance of the driver may hang in the kernel while its
// successor serves, and both would find nothing mounted, and mount. The lock is that of the
// inode, which the mount covers: a process that opens the path after that locks another
// inode, and finds the mount. It ends with the process.
func lockTarget(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err = lockFile(ctx, fd, fmt.Sprintf("another process mounts at %s", path)); err == nil {
		var on []mountapi.Mount
		if on, err = mountapi.At(path); err == nil && len(on) > 0 {
			err = faultf(csierr.Busy, "another process has just mounted at %s; retry", path)
		}
	}
	// Not only closed: between fork and exec, a child has a copy of the descriptor.
	unlock = func() {
		_ = unix.Flock(fd, unix.LOCK_UN)
		_ = unix.Close(fd)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// lockFile locks the open file exclusively. It waits for the lock until ctx ends, and for at
// most 5 seconds; busy describes the error then. A lock that is free is taken in any case.
func lockFile(ctx context.Context, fd int, busy string) error {
	timeout := time.After(5 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return os.NewSyscallError("flock", err)
		}
		select {
		case <-time.After(wait):
		case <-timeout:
			return faultf(csierr.Busy, "%s", busy)
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", busy, ctx.Err())
		}
	}
}

// attach mounts the tree on the target, if nothing is mounted there.
func attach(ctx context.Context, tree *mountapi.Tree, target string) error {
	unlock, err := lockTarget(ctx, target)
	if err != nil {
		return err
	}
	defer unlock()
	return tree.Attach(target)
}
