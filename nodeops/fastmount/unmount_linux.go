package fastmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func unmount(target string, call func(string) (bool, error)) error {
	err := followed(target, call)
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EBUSY) {
		// The wording of umount(8), for which drivers search.
		err = fmt.Errorf("target is busy: end the processes that use it (fuser -vm %s) or unmount what is mounted below it: %w", target, err)
	}
	return &Error{Op: "unmount", Target: target, Err: err}
}

// followed makes the call for path and, when nothing is mounted there because it
// is a symlink, for the link's target, as umount(8) does. It calls lstat only
// after the kernel has reported that there is no mount, so a stale mount is never touched.
func followed(path string, call func(string) (bool, error)) error {
	done, err := call(path)
	if done || err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	_, err = call(path)
	return err
}

func withForce(timeout time.Duration, plain, force func() error) error {
	done := make(chan error, 1)
	go func() { done <- plain() }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return force()
	}
}
