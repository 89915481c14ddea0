package csitest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A usage is what statfs returns.
type usage struct{ total, available, inodes, freeInodes int64 }

func statfs(path string) (usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	unit := st.Frsize
	return usage{
		total: int64(st.Blocks) * unit, available: int64(st.Bavail) * unit,
		inodes: int64(st.Files), freeInodes: int64(st.Ffree),
	}, nil
}

// deviceNumber is major:minor of the device that the path is, or lies on; empty for
// what is not there.
func deviceNumber(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	number := st.Dev
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		number = st.Rdev
	}
	return fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number))
}

// deviceOf is the device that a file lies on, or 0; symbolic links are not followed.
func deviceOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return uint64(st.Dev) //nolint:unconvert // not on every architecture
}

// bindFile makes a file at a path, and binds another one to it.
func bindFile(from, to string) (undo func(), err error) {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	f.Close()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return nil, errors.Join(&os.PathError{Op: "bind", Path: to, Err: err}, os.Remove(to))
	}
	return func() {
		if unix.Unmount(to, unix.UMOUNT_NOFOLLOW) == nil {
			_ = os.Remove(to) // if not, it is listed as left behind
		}
	}, nil
}

// owner is the group of the file at the path, and its mode.
func owner(path string) (gid uint32, mode uint32, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, 0, err
	}
	return st.Gid, st.Mode & 0o7777, nil
}

// mountID is a number that no other mount has or had, since Linux 6.8; before that,
// one that no other mount has.
func mountID(path string) uint64 {
	const unique = 0x4000 // STATX_MNT_ID_UNIQUE
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unique, &st); err == nil && st.Mask&unique != 0 {
		return st.Mnt_id
	}
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st) != nil {
		return 0
	}
	return st.Mnt_id
}

// peer is the process that serves a unix socket, or 0.
func peer(socket string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) != nil {
		return 0
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}
