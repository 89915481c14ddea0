package mountapi

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Unmount unmounts the top mount at path; it returns false when nothing was mounted
// there, also when path does not exist. A symlink is not followed.
func Unmount(path string) (bool, error) { return unmount(path, path, 0) }

// UnmountForce is Unmount with MNT_FORCE: the file system first aborts requests that wait
// for its server, through any mount of the same superblock. File systems without a server
// ignore it.
func UnmountForce(path string) (bool, error) { return unmount(path, path, unix.MNT_FORCE) }

// Detach is Unmount for a mount that is busy (MNT_DETACH, a lazy unmount): the path is free
// immediately, but the file system stays mounted, and may write, until its last user is gone.
func Detach(path string) (bool, error) { return unmount(path, path, unix.MNT_DETACH) }

// unmount calls umount2 for the path by that name of it.
func unmount(call, path string, flags int) (bool, error) {
	err := unix.Unmount(call, flags|unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, nil
	}
	return false, &os.PathError{Op: "umount2", Path: path, Err: err}
}
