package main

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes the exclusive lock of f without waiting. The kernel drops it
// when f is closed or the process dies, so that a kill leaves no stale lock.
// errBusy: somebody else has it.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errBusy
	}
	return err
}

// statfs returns the size of the pool's file system and what of it an
// unprivileged process could still use.
func (p *pool) statfs() (total, free int64, err error) {
	f, err := p.root.Open(".")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	var s unix.Statfs_t
	for {
		if err = unix.Fstatfs(int(f.Fd()), &s); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("statfs: %w", err)
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

// holdsData reports whether anything was ever written to f. Where the file
// system cannot tell, the answer is yes.
func holdsData(f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	_, err = f.Seek(0, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return false, nil
	case errors.Is(err, unix.EINVAL):
		return true, nil
	}
	return err == nil, err
}
