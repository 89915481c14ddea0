package filepool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"strings"

	"github.com/csikit/csikit/csierr"
	"golang.org/x/sys/unix"
)

// lockFile takes the exclusive lock of f without waiting. The kernel drops it
// when f is closed or the process dies, so that a kill leaves no stale lock.
// csierr.Busy: another process has it.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return csierr.Busy
	}
	return err
}

// lockShared takes the shared lock on a file of the pool, which it creates if need be.
func lockShared(p *pool, name string) (unlock func() error, err error) {
	f, err := p.root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

// isWanted reports whether a process holds the shared lock on wantedName.
func isWanted(p *pool) bool {
	f, err := p.root.OpenFile(wantedName, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(lockFile(f), csierr.Busy)
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

// isReadOnly: the pool's file system refuses writes, as it does after errors.
func (p *pool) isReadOnly() (bool, error) {
	f, err := p.root.Open(".")
	if err != nil {
		return false, err
	}
	defer f.Close()
	return refusesWrites(f)
}

// refusesWrites: since Linux 6.14 an ext4 that became read-only by errors does not report
// that in its flags, and still refuses to sync. It has little to sync in a directory.
func refusesWrites(dir *os.File) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &s); err != nil {
		return false, fmt.Errorf("statfs: %w", err)
	}
	return s.Flags&unix.ST_RDONLY != 0 || errors.Is(unix.Fsync(int(dir.Fd())), unix.EROFS), nil
}

func bytesOf(blocks uint64, size int64) int64 {
	hi, lo := bits.Mul64(blocks, uint64(size))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// holdsData reports whether anything was ever written to f. Where the file
// system does not report that, the answer is yes.
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

// canReflink finds out whether files of the pool can share blocks. The pool's lock is
// held: what is there of earlier attempts was left by a kill.
func (p *pool) canReflink() (bool, error) {
	const prefix = markerName + ".try-"
	names, _ := readNames(p.root)
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			_ = p.root.Remove(name) // the next start tries again
		}
	}
	var files [2]*os.File
	for i := range files {
		name := prefix + rand.Text() + extTemp
		f, err := p.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return false, err
		}
		defer p.root.Remove(name)
		defer f.Close()
		files[i] = f
	}
	_, err := files[0].Write(make([]byte, 4096))
	if err == nil {
		err = cloneFile(files[1], files[0])
	}
	return err == nil, err
}

// allocate makes f size bytes large, with room for all of them.
func allocate(f *os.File, size int64) error { return unix.Fallocate(int(f.Fd()), 0, 0, size) }

// cloneFile makes all of src the content of dst, which then share their blocks. It
// excludes writers to src, and what they wrote before is flushed first.
func cloneFile(dst, src *os.File) error {
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		return fmt.Errorf("clone %s: %w", src.Name(), err)
	}
	return nil
}

// nextData returns where data begins and ends, from at on. io.EOF: there is no more.
func nextData(f *os.File, at int64) (start, end int64, err error) {
	start, err = f.Seek(at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return 0, 0, io.EOF
	case errors.Is(err, unix.EINVAL): // everything is data
		info, err := f.Stat()
		if err == nil && at >= info.Size() {
			err = io.EOF
		}
		return at, info.Size(), err
	case err != nil:
		return 0, 0, err
	}
	end, err = f.Seek(start, unix.SEEK_HOLE)
	return start, end, err
}

// allocated returns how many bytes of its file system f takes.
func allocated(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Blocks * 512, nil
}
