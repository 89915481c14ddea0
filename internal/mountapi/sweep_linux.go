package mountapi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	scratchPrefix = "csikit-mount-"
	maxScratches  = 100 // created and swept by another process before the lock, in a row
)

// makeScratch makes the directory of a scratch, with a lock that ends with the process.
func makeScratch() (dir string, lock *os.File, err error) {
	for range maxScratches {
		if dir, err = os.MkdirTemp("", scratchPrefix); err != nil {
			break
		}
		if lock, err = lockScratch(dir); err == nil {
			return dir, lock, nil
		}
		// What may have it is a sweep, which removes it.
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) {
			return "", nil, errors.Join(err, os.Remove(dir))
		}
	}
	return "", nil, fmt.Errorf("%w: this kernel has no detached mounts, so mounting needs a writable temporary directory (TMPDIR)", err)
}

// lockScratch locks the directory: EWOULDBLOCK if another process has it, fs.ErrNotExist if it
// was removed.
func lockScratch(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = os.NewSyscallError("flock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	var st unix.Stat_t
	if err == nil {
		err = os.NewSyscallError("fstat", unix.Fstat(int(f.Fd()), &st))
	}
	if err == nil && st.Nlink == 0 {
		err = fs.ErrNotExist
	}
	if err == nil && int(st.Uid) != os.Geteuid() {
		err = fs.ErrPermission
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// SweepScratches unmounts and removes what processes that were killed have left in
// os.TempDir(): see "Privileges and kernel". A mount there keeps its device in use. It does
// nothing on kernels that have detached mounts.
func SweepScratches() error { return Kernel{}.SweepScratches() }

// SweepScratches is the function [SweepScratches] on this kernel.
func (k Kernel) SweepScratches() error {
	if k.Without&(TreeCalls|ContextCalls) == 0 && hasTreeCalls() && hasContextCalls() {
		return nil
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*"))
	var errs []error
	for _, dir := range dirs {
		lock, err := lockScratch(dir)
		switch {
		case err == nil:
			s := scratch{dir: dir, point: filepath.Join(dir, "m"), lock: lock, bound: true}
			errs = append(errs, s.close())
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.ENOTDIR):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
