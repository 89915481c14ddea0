package nodeops

import (
	"errors"
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
func lockTarget(path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = faultf(csierr.Busy, "another process mounts at %s", path)
	}
	if err == nil {
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
func attach(tree *mountapi.Tree, target string) error {
	unlock, err := lockTarget(target)
	if err != nil {
		return err
	}
	defer unlock()
	return tree.Attach(target)
}
