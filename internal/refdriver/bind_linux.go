package refdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Bind mounts from at to.
func Bind(from, to string, readOnly bool, flags ...string) error {
	remount := uintptr(unix.MS_BIND | unix.MS_REMOUNT)
	if readOnly {
		remount |= unix.MS_RDONLY
	}
	for _, f := range flags {
		if f != "noatime" {
			return fmt.Errorf("mount flag %q is not known", f)
		}
		remount |= unix.MS_NOATIME
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil || remount == unix.MS_BIND|unix.MS_REMOUNT {
		return err
	}
	return unix.Mount("", to, "", remount, "")
}

// Unbind undoes one Bind.
func Unbind(path string) error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) }

// mountDisk mounts a file system of that size, in memory.
func mountDisk(path string, size int64) error {
	return unix.Mount("refdriver", path, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size))
}

// growDisk makes it larger.
func growDisk(path string, size int64) error {
	return unix.Mount("", path, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size))
}

// setGroup sets the group of the directory and of everything in it.
func setGroup(path string, gid int) error {
	return filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != 0 && !e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Mode() | 0o660
		if e.IsDir() {
			mode = info.Mode() | 0o770 | fs.ModeSetgid
		}
		return errors.Join(os.Lchown(name, -1, gid), os.Chmod(name, mode.Perm()|mode&fs.ModeSetgid))
	})
}

func usage(path string) (total, available int64, err error) {
	var st unix.Statfs_t
	err = unix.Statfs(path, &st)
	return int64(st.Blocks) * st.Frsize, int64(st.Bavail) * st.Frsize, err
}
