package mountapi

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

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
	text, err := readAgreed(func() ([]byte, error) { return os.ReadFile(file) }, hasTableCursor())
	if err != nil {
		return nil, err
	}
	table, err := ParseMountInfo(text)
	setDevices(table, blockDevice)
	return table, err
}

// hasTableCursor reports that a mount table which changes between two read calls lacks nothing
// that has been there all the time: from Linux 5.8 on (commit 9f6c61f96f2d), which brought
// faccessat2 as well.
var hasTableCursor = sync.OnceValue(func() bool {
	return unix.Faccessat2(-1, "", 0, 0) != unix.ENOSYS
})

// maxReads is how often a table that changes is read: thousands of mounts change in that time.
const maxReads = 100

// readAgreed returns what read returns, or without a cursor what it returns twice in a row.
func readAgreed(read func() ([]byte, error), cursor bool) ([]byte, error) {
	last, err := read()
	if err != nil || cursor {
		return last, err
	}
	for range maxReads {
		text, err := read()
		if err != nil || bytes.Equal(text, last) {
			return text, err
		}
		last = text
	}
	return nil, fmt.Errorf("the mount table has changed during each of %d reads: %w", maxReads, unix.EAGAIN)
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
