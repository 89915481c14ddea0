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
	switch err = blockdev.Lock(ctx, fd); {
	case errors.Is(err, unix.EBUSY):
		err = faultf(csierr.Busy, "another process mounts at %s", path)
	case err != nil:
		err = fmt.Errorf("another process mounts at %s: %w", path, err)
	default:
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

// attach mounts the tree on the target, if nothing is mounted there.
func attach(ctx context.Context, tree *mountapi.Tree, target string) error {
	unlock, err := lockTarget(ctx, target)
	if err != nil {
		return err
	}
	defer unlock()
	return tree.Attach(target)
}
