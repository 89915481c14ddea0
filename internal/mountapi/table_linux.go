package mountapi

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Table reads the calling process's mount table.
//
// A mount of a btrfs shows the block device that its Source names in /dev, and where
// that names none an anonymous device, the same for all mounts of that btrfs. The
// kernel knows the name by which the device was last mounted or scanned, in any
// mount namespace; a caller that has to be sure of the device asks the file system.
func Table() ([]Mount, error) { return readTable("/proc/thread-self/mountinfo") }

// TableOf reads the mount table of another process. Its paths are relative to the root of
// that process.
func TableOf(pid int) ([]Mount, error) { return readTable(fmt.Sprintf("/proc/%d/mountinfo", pid)) }

func readTable(file string) ([]Mount, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	table, err := ParseMountInfo(text)
	setDevices(table, blockDevice)
	return table, err
}

// blockDevice returns the number of the block device at a path in /dev. Elsewhere a path
// may be on a stale mount, and is not touched.
func blockDevice(source string) (major, minor uint32, ok bool) {
	var st unix.Stat_t
	if !strings.HasPrefix(source, "/dev/") || unix.Stat(source, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, 0, false
	}
	return unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)), true
}

// Resolve returns path as the mount table shows it: symlinks of its parent are
// followed, path itself is neither followed nor touched, because the mount on it
// may be stale. A missing parent is fs.ErrNotExist.
func Resolve(path string) (string, error) {
	if path == "" { // as system calls return it; filepath.Abs returns the working directory
		return "", fs.ErrNotExist
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}
