package csitest

import (
	"fmt"
	"os"
	"path/filepath"
)

// Everything that csitest creates, writes and removes lies below the run's directory. The
// functions of this file do not follow a symbolic link out of it, such as one that a driver
// left at a target path or in a volume, and do not remove anything through a mount.

// confined calls do with the run's directory and the path relative to it.
func (r *run) confined(path string, do func(root *os.Root, rel string) error) error {
	rel, err := filepath.Rel(r.dir, path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root, rel)
}

// openFile is os.OpenFile for a path below the run's directory.
func (r *run) openFile(path string, flag int, perm os.FileMode) (f *os.File, err error) {
	err = r.confined(path, func(root *os.Root, rel string) (err error) {
		f, err = root.OpenFile(rel, flag, perm)
		return err
	})
	return f, err
}

// rmdir removes an empty directory below the run's directory.
func (r *run) rmdir(path string) error {
	return r.confined(path, (*os.Root).Remove)
}

// mkdir creates a directory of kubelet, with its parents.
func (c *ruleRun) mkdir(path string) string {
	if err := c.run.confined(path, func(root *os.Root, rel string) error { return root.MkdirAll(rel, 0o750) }); err != nil {
		panic(fmt.Sprintf("kubelet's directory: %v", err))
	}
	return path
}

// mountBelow describes the mount that begins at a path below the run's directory; it is
// empty if there is none. The mount table is not enough: it may be that of another root.
func (r *run) mountBelow(path string) string {
	if path == r.dir {
		return ""
	}
	if on := mountsAt(path); len(on) > 0 {
		return on[len(on)-1].fsType + " is mounted at " + path
	}
	parent := filepath.Dir(path)
	if mountID(path) != mountID(parent) || deviceOf(path) != deviceOf(parent) {
		return "a file system is mounted at " + path
	}
	return ""
}
