package refdriver

import "golang.org/x/sys/unix"

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil || !readOnly {
		return err
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func unbind(path string) error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) }
