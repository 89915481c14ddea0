//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// A hierarchy is a mounted cgroup file system: one for each controller, or the single one
// of version 2.
type hierarchy struct {
	path    string
	options string
	unified bool
}

func cgroupHierarchies() (all []hierarchy, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		left, right, _ := strings.Cut(line, " - ")
		path, f := strings.Fields(left)[4], strings.Fields(right)
		if !strings.HasPrefix(path, cgroupRoot) || seen[path] {
			continue
		}
		switch {
		case f[0] == "cgroup":
			all = append(all, hierarchy{path: path, options: strings.TrimPrefix(f[2], "rw,")})
			seen[path] = true
		case f[0] == "cgroup2" && path == cgroupRoot:
			return []hierarchy{{path: path, unified: true}}, nil
		}
	}
	if all == nil {
		err = errors.New("no cgroup file system is mounted at " + cgroupRoot)
	}
	return all, err
}

// enterCgroup creates a cgroup in each hierarchy and moves this process to it.
func enterCgroup(hierarchies []hierarchy, name string) error {
	for _, h := range hierarchies {
		dir := filepath.Join(h.path, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if h.options == "cpuset" {
			// Those of a new one are empty.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				for at := h.path; at != dir; {
					value, err := os.ReadFile(filepath.Join(at, file))
					if err != nil {
						return err
					}
					rest, _ := filepath.Rel(at, dir)
					at = filepath.Join(at, strings.Split(rest, "/")[0])
					if err := os.WriteFile(filepath.Join(at, file), value, 0); err != nil {
						return err
					}
				}
			}
		}
		if h.unified {
			for at := h.path; at != dir; {
				for _, controller := range []string{"cpu", "cpuset", "memory", "pids", "io"} {
					err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+controller), 0)
					if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
						return err
					}
				}
				rest, _ := filepath.Rel(at, dir)
				at = filepath.Join(at, strings.Split(rest, "/")[0])
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// mountCgroups mounts the hierarchies in a new sysfs and cgroup namespace.
func mountCgroups(hierarchies []hierarchy) error {
	if hierarchies[0].unified {
		if err := mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
			return err
		}
		// A cgroup with controllers for its children has no processes of its own.
		if err := os.Mkdir(cgroupRoot+"/init", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return os.WriteFile(cgroupRoot+"/init/cgroup.procs", []byte("0"), 0)
	}
	if err := mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, h := range hierarchies {
		if err := os.Mkdir(h.path, 0o755); err != nil {
			return err
		}
		if err := mount("cgroup", h.path, "cgroup", 0, h.options); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a cgroup whose processes have been killed, and those in it.
func removeCgroup(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		top := filepath.Join(h.path, name)
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			var dirs []string
			filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			var failed error
			for i := len(dirs) - 1; i >= 0; i-- {
				if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
					failed = fmt.Errorf("rmdir %s: %w", dirs[i], err)
				}
			}
			if failed == nil {
				break
			}
			if time.Now().After(end) {
				return failed
			}
		}
	}
	return nil
}
