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
