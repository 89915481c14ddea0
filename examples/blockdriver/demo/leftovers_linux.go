package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

const (
	dirPrefix = "csikit-demo-"
	lockName  = "lock" // its holder is the demo that owns the directory
)

func newDir() (dir string, lock *os.File, err error) {
	dir, err = os.MkdirTemp("", dirPrefix)
	if err != nil {
		return "", nil, err
	}
	lock, err = os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return dir, lock, err
}

// sweep removes what demos left that were killed before they could clean up.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, lockName))
		if err != nil {
			continue // not ours
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			fmt.Printf("removing what an earlier demo left in %s\n", dir)
			if err := removeDir(dir); err != nil {
				fmt.Println(err)
			}
		}
		lock.Close()
	}
}

// removeDir detaches the loop devices whose images lie in dir and deletes it. It
// runs outside of the demo's mount namespace, where nothing is mounted below dir;
// should something be, or a device be in use, nothing is deleted. The error lists what was left over.
func removeDir(dir string) error {
	loops, err := loopsBelow(dir)
	if err != nil {
		return err
	}
	var left []error
	for _, d := range loops {
		left = append(left, fmt.Errorf("loop device %s of %s was left", d.Path, d.Backing))
		if err := d.Detach(context.Background()); err != nil {
			return errors.Join(append(left, err, fmt.Errorf("%s was not deleted", dir))...)
		}
	}
	if mounts := mountsBelow(dir); len(mounts) > 0 {
		return errors.Join(append(left, fmt.Errorf("still mounted, so nothing was deleted: %s", strings.Join(mounts, ", ")))...)
	}
	return errors.Join(append(left, os.RemoveAll(dir))...)
}

func loopsBelow(dir string) ([]loopdev.Device, error) {
	all, err := loopdev.List()
	if err != nil {
		return nil, err
	}
	var below []loopdev.Device
	for _, d := range all {
		if strings.HasPrefix(d.Backing, dir+"/") {
			below = append(below, d)
		}
	}
	return below, nil
}

// mountsBelow lists the mount points below dir.
func mountsBelow(dir string) (points []string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	return points
}

func poolPath(dir string) string { return filepath.Join(dir, "pool") }
func logPath(dir string) string  { return filepath.Join(dir, "driver.log") }

// leftBehind looks for whatever should be gone when the driver has ended.
func leftBehind(dir string) (left []error) {
	for _, m := range mountsBelow(dir) {
		left = append(left, fmt.Errorf("left behind: mount %s", m))
	}
	loops, err := loopsBelow(dir)
	if err != nil {
		left = append(left, err)
	}
	for _, d := range loops {
		left = append(left, fmt.Errorf("left behind: loop device %s", d.Path))
	}
	pool := poolPath(dir)
	expected := []string{
		filepath.Join(dir, lockName), logPath(dir), filepath.Join(dir, "kubelet"),
		// The pool itself stays: it is the storage, and now an empty one.
		pool, filepath.Join(pool, ".csikit-pool"), filepath.Join(pool, ".csikit-pool.spare"), filepath.Join(pool, "volumes"), filepath.Join(pool, "snapshots"), filepath.Join(pool, "groups"),
		filepath.Join(pool, "nodes"), filepath.Join(pool, "nodes", "demo-node.json"), filepath.Join(pool, "nodes", "demo-node.lock"),
	}
	for _, f := range filesBelow(dir, expected...) {
		left = append(left, fmt.Errorf("left behind: file %s", f))
	}
	return left
}

// tearDown takes down whatever is still there, as far as it can: the demo failed
// or was interrupted. What it does outside of the mount namespace, the other
// process undoes.
func tearDown(dir string) {
	for _, m := range mountsBelow(dir) {
		unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	loops, _ := loopsBelow(dir)
	for _, d := range loops {
		if err := d.Detach(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
	}
}

// filesBelow lists what is in dir but for the names given.
func filesBelow(dir string, except ...string) []string {
	var names []string
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return nil
		}
		for _, e := range except {
			if path == e {
				return nil
			}
		}
		names = append(names, path)
		return nil
	})
	return names
}
