package main

import (
	"errors"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// inodeOf is the number by which a directory is known to be the one that the driver
// made. An NFS server keeps it over restarts.
func inodeOf(info fs.FileInfo) uint64 {
	return info.Sys().(*syscall.Stat_t).Ino
}

// pathOnly opens a directory for its attributes alone, whatever its mode.
const pathOnly = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW

// sameMount returns errMounted if two open directories are not in one file system, or
// are by two mounts of one. Only since Linux 5.8 the latter is known.
func sameMount(a, b *os.File) error {
	var have [2]struct {
		stat unix.Stat_t
		more unix.Statx_t
	}
	for i, f := range []*os.File{a, b} {
		if err := unix.Fstat(int(f.Fd()), &have[i].stat); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &have[i].more); err != nil && !errors.Is(err, unix.ENOSYS) {
			return os.NewSyscallError("statx", err)
		}
	}
	if have[0].stat.Dev != have[1].stat.Dev || have[0].more.Mnt_id != have[1].more.Mnt_id {
		return errMounted
	}
	return nil
}

// statfs returns the size of the file system behind an open directory, and what of it
// an unprivileged process could still use.
func statfs(dir *os.File) (total, free int64, err error) {
	var s unix.Statfs_t
	for {
		if err = unix.Fstatfs(int(dir.Fd()), &s); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("fstatfs", err)
	}
	return bytesOf(s.Blocks, s.Bsize), bytesOf(s.Bavail, s.Bsize), nil
}

func bytesOf(blocks uint64, size int64) int64 {
	hi, lo := bits.Mul64(blocks, uint64(size))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}
