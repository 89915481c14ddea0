//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const poolFile = "pool.xfs"

// cleanUp removes what a cluster has left when its processes were killed: loop devices,
// which belong to no namespace, cgroups, and the directory.
func cleanUp(dir string) error {
	return errors.Join(
		removeCgroup(filepath.Base(dir)),
		detachLoops(filepath.Join(dir, poolFile)),
		os.RemoveAll(dir),
	)
}

// detachLoops detaches the loop device of a file with a file system, and those of files in
// it.
func detachLoops(file string) error {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pool := info.Sys().(*syscall.Stat_t)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		left, err := detachOnce(pool)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("loop devices are in use: %v", left)
		}
	}
}

// A loopDevice is one that has a file.
type loopDevice struct {
	path string
	rdev uint64
	info *unix.LoopInfo64
}

func loopDevices() (all []loopDevice, err error) {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := "/dev/" + strings.Split(name, "/")[3]
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
		if err == nil && unix.Fstat(int(f.Fd()), &st) == nil {
			all = append(all, loopDevice{path, st.Rdev, info})
		}
		f.Close()
	}
	return all, nil
}

// detachOnce returns the devices that are still there.
func detachOnce(pool *syscall.Stat_t) (left []string, err error) {
	all, err := loopDevices()
	if err != nil {
		return nil, err
	}
	// A device is ours by its file: the pool, a file of the file system on a device of ours,
	// or a device of ours itself, which kubelet attaches for volumes in block mode.
	ours := map[uint64]bool{}
	for range 3 {
		for _, d := range all {
			if d.info.Device == pool.Dev && d.info.Inode == pool.Ino || ours[d.info.Device] || ours[d.info.Rdevice] {
				ours[d.rdev] = true
			}
		}
	}
	for _, d := range all {
		if !ours[d.rdev] {
			continue
		}
		left = append(left, d.path)
		if err := detach(d.path); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// detach detaches a loop device, now or when its last user ends.
func detach(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	if err != nil && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// saveLogs copies the logs of a cluster.
func saveLogs(dir, to string) {
	script := `mkdir -p "$2" && cd "$1" && { ls *.log */*.log */report.json; find */var/log -type f; } 2>/dev/null | tar -cf - -T - | tar -xf - -C "$2"`
	if out, err := exec.Command("sh", "-c", script, "sh", dir, to).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: logs: %v: %s\n", err, out)
	}
}
