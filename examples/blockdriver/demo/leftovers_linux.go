package main

import (
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
// should something be, or a device be in use, nothing is deleted. The error tells what was left over.
func removeDir(dir string) error {
	loops, err := loopsBelow(dir)
	if err != nil {
		return err
	}
	var left []error
	for _, d := range loops {
		left = append(left, fmt.Errorf("loop device %s of %s was left", d.Path, d.Backing))
		if err := d.Detach(backgroundCtx); err != nil {
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
func mountsBelow(dir string) []string {
	var points []string
	for _, m := range mountTable() {
		if strings.HasPrefix(m.point, dir+"/") {
			points = append(points, m.point)
		}
	}
	return points
}

type mount struct{ device, root, point, options, fsType string }

func mountTable() []mount {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var table []mount
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if len(f) >= 6 && len(g) >= 1 {
			table = append(table, mount{device: f[2], root: f[3], point: f[4], options: f[5], fsType: g[0]})
		}
	}
	return table
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
