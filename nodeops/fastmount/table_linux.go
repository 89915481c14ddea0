package fastmount

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/csikit/csikit/nodeops/fastmount/internal/mountapi"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
)

// IsLikelyNotMountPoint is the negation of IsMountPoint, and as exact.
func (m *mounter) IsLikelyNotMountPoint(file string) (bool, error) {
	is, err := isMountPoint(file)
	return !is, err
}

// IsMountPoint reports whether file, or what it points to as a symlink, is the
// root of a mount. A missing file is fs.ErrNotExist. A stale mount at file
// is a mount point like any other, and its server is not contacted.
func (m *mounter) IsMountPoint(file string) (bool, error) { return isMountPoint(file) }

func isMountPoint(file string) (bool, error) {
	st, err := statx(file, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		st, err = statx(file, 0)
	}
	switch {
	case err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0: // Linux 5.8
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	case err == nil, errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOSYS):
		return inTable(file)
	}
	return false, err
}

// inTable is IsMountPoint for kernels whose statx does not report mount roots, and for
// directories without search permission.
func inTable(file string) (bool, error) {
	path, err := realPath(file)
	if err != nil {
		return false, err
	}
	table, err := mountapi.Table()
	if err != nil {
		return false, err
	}
	for _, m := range table {
		if m.MountPoint == path {
			return true, nil
		}
	}
	// A path that is in no table need not exist.
	_, err = os.Lstat(path)
	return false, err
}

// List returns the mount table. Unlike mount-utils, it decodes the kernel's
// escapes. Opts may hold secrets.
func (m *mounter) List() ([]mount.MountPoint, error) {
	// Not mountinfo: it costs the kernel twice as much, and lists the options of mount and
	// superblock separately.
	text, err := os.ReadFile("/proc/thread-self/mounts")
	if err != nil {
		return nil, err
	}
	points := make([]mount.MountPoint, 0, bytes.Count(text, []byte{'\n'}))
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(line, " ", 5) // device, path, type, options, and two zeros
		if len(f) < 5 {
			return nil, fmt.Errorf("a line of /proc/thread-self/mounts has %d fields, want 6", len(f))
		}
		points = append(points, mount.MountPoint{
			Device: unescape(f[0]), Path: unescape(f[1]), Type: unescape(f[2]), Opts: strings.Split(f[3], ","),
		})
	}
	return points, nil
}

// escapes are the characters that the kernel writes in octal.
var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

func unescape(s string) string {
	if !strings.Contains(s, `\`) { // nearly always, and a Replacer is slower
		return s
	}
	return escapes.Replace(s)
}

// GetMountRefs returns the other mount points of the file system directory at pathname:
// same device and same root, without pathname's own mount. For a path that does not exist,
// or on a corrupted mount, it returns none.
func (m *mounter) GetMountRefs(pathname string) ([]string, error) {
	at, err := locate(pathname)
	switch {
	case errors.Is(err, fs.ErrNotExist), mount.IsCorruptedMnt(err):
		return []string{}, nil
	case err != nil:
		return nil, err
	}
	below := strings.TrimPrefix(at.path, at.mount.MountPoint)
	root := filepath.Join(at.mount.Root, below)
	var refs []string
	for _, m := range at.table {
		if m.ID != at.mount.ID && m.SameDevice(at.mount) && m.Root == root {
			refs = append(refs, m.MountPoint)
		}
	}
	return refs, nil
}

// A location is where a path lies in the mount table.
type location struct {
	path  string         // as in the mount table
	mount mountapi.Mount // the mount that path is in
	table []mountapi.Mount
}

func locate(path string) (location, error) {
	path, err := realPath(path)
	if err != nil {
		return location{}, err
	}
	st, err := statx(path, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return location{}, err
	}
	table, err := mountapi.Table()
	if err != nil {
		return location{}, err
	}
	id := -1
	if st.Mask&unix.STATX_MNT_ID != 0 { // Linux 5.8
		id = int(st.Mnt_id)
	}
	m, ok := enclosing(table, path, id)
	if !ok {
		return location{}, fmt.Errorf("find the mount of %s: not in the mount table (unmounted concurrently, or outside of this root)", path)
	}
	return location{path, m, table}, nil
}

// enclosing returns the mount that contains path: the one with that id or, if it
// is negative, the last one whose mount point is a prefix of path, which covers those before.
func enclosing(table []mountapi.Mount, path string, id int) (mountapi.Mount, bool) {
	for _, m := range slices.Backward(table) {
		if id >= 0 {
			if m.ID == id {
				return m, true
			}
			continue
		}
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(m.MountPoint, "/"))
		if ok && (rest == "" || rest[0] == '/') {
			return m, true
		}
	}
	return mountapi.Mount{}, false
}

// realPath returns path as in the mount table. What is mounted on it
// is not touched, unless path is a symlink.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Readlink(path); err == nil {
		return filepath.EvalSymlinks(path)
	}
	return mountapi.Resolve(path)
}

// statx uses cached attributes: no server is contacted.
func statx(path string, flags int) (unix.Statx_t, error) {
	var st unix.Statx_t
	flags |= unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_TYPE|unix.STATX_MNT_ID, &st); err != nil {
		return st, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st, nil
}
