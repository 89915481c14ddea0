package refdriver

import "golang.org/x/sys/unix"

// Bind mounts from at to.
func Bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil || !readOnly {
		return err
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// Unbind undoes one Bind.
func Unbind(path string) error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) }
