package exportdir

import (
	"errors"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/csikit/csikit/csierr"
	"golang.org/x/sys/unix"
)

// inodeOf returns the inode number, which identifies a directory that the driver created.
// It is stable across restarts of an NFS server.
func inodeOf(info fs.FileInfo) uint64 {
	return info.Sys().(*syscall.Stat_t).Ino
}

// changedAt returns the ctime of a file, by the server's clock.
func changedAt(info fs.FileInfo) time.Time {
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
}

// pathOnly opens a directory only for its attributes, regardless of its mode.
const pathOnly = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW

// sameMount returns errMounted if a directory and an entry of it are not in the same file
// system, or, since Linux 5.8 (STATX_MNT_ID), not in the same mount. It sends no request to a
// server.
func sameMount(dir, found *os.File) error {
	var have [2]unix.Statx_t
	for i, f := range []*os.File{dir, found} {
		if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_MNT_ID, &have[i]); err != nil {
			return os.NewSyscallError("statx", err)
		}
	}
	a, b := have[0], have[1]
	if a.Mnt_id != b.Mnt_id {
		return errMounted
	}
	// overlayfs shows some of its files with another device number.
	if b.Mode&unix.S_IFMT == unix.S_IFDIR && (a.Dev_major != b.Dev_major || a.Dev_minor != b.Dev_minor) {
		return errMounted
	}
	return nil
}

// move renames an entry of one directory into another directory.
func move(from *os.Root, name string, to *os.Root, as string) error {
	a, err := from.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := to.Open(".")
	if err != nil {
		return err
	}
	defer b.Close()
	if err := unix.Renameat(int(a.Fd()), path.Base(name), int(b.Fd()), as); err != nil {
		return &os.LinkError{Op: "rename", Old: name, New: as, Err: err}
	}
	return nil
}

// lockFile locks an open file for this process without waiting: errBusy if another process
// holds the lock. The lock is released when the process exits or its last descriptor is
// closed; on NFS 4 also when the machine's lease on the server expires.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return csierr.Busy
	}
	return os.NewSyscallError("flock", err)
}

// statfs returns the size of an open directory's file system, and the bytes available to
// an unprivileged process.
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
