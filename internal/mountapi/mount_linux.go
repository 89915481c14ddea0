package mountapi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Table reads the calling process's mount table.
func Table() ([]Mount, error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	return ParseMountInfo(text)
}

// Resolve returns path as the mount table shows it: symlinks of its parent are
// followed, path itself is neither followed nor touched, because what is
// mounted on it may be dead. A missing parent is fs.ErrNotExist.
func Resolve(path string) (string, error) {
	path = filepath.Clean(path)
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// Tree is a mount that is not attached anywhere yet. It vanishes with Close.
type Tree struct{ fd int }

// Close drops the tree unless Attach succeeded; then it only closes the
// descriptor.
func (t *Tree) Close() error { return unix.Close(t.fd) }

// CloneTree makes a detached copy of the mount (or of the file) at source, with attr added to
// what it inherits. The tree never appears anywhere without them: a read-only
// bind mount has no moment at which it can be written.
func CloneTree(source string, attr Attr) (*Tree, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source,
		unix.OPEN_TREE_CLONE|unix.O_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	if attr != 0 {
		set := unix.MountAttr{Attr_set: kernelAttr(attr)}
		if attr&(NoAtime|StrictAtime) != 0 {
			set.Attr_clr = unix.MOUNT_ATTR__ATIME
		}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &set); err != nil {
			unix.Close(fd)
			return nil, os.NewSyscallError("mount_setattr", err)
		}
	}
	return &Tree{fd}, nil
}

// NewTree creates a detached mount of the file system of type fsType on the
// block device at source. What the kernel logs about a refusal is in the error.
func NewTree(fsType, source string, o Options) (*Tree, error) {
	fs, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen %s: %w", fsType, err)
	}
	defer unix.Close(fs)
	fail := func(op string, err error) (*Tree, error) {
		err = os.NewSyscallError(op, err)
		if log := kernelLog(fs); log != "" {
			err = fmt.Errorf("%w (kernel: %s)", err, log)
		}
		return nil, err
	}
	if err := unix.FsconfigSetString(fs, "source", source); err != nil {
		return fail("fsconfig source", err)
	}
	if o.Attr&ReadOnly != 0 {
		// The superblock too, so that the file system does not write by itself.
		if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
			return fail("fsconfig ro", err)
		}
	}
	for _, d := range o.Data {
		if key, value, ok := strings.Cut(d, "="); ok {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, d)
		}
		if err != nil {
			t, err := fail("fsconfig "+d, err)
			return t, fmt.Errorf("%w: %w", ErrOption, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fail("fsconfig create", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(kernelAttr(o.Attr)))
	if err != nil {
		return fail("fsmount", err)
	}
	return &Tree{fd}, nil
}

// kernelLog collects what the file system said about this mount, see "Message
// Retrieval Interface" in the kernel's mount_api documentation.
func kernelLog(fs int) string {
	var lines []string
	buf := make([]byte, 4096)
	for len(lines) < 16 {
		n, err := unix.Read(fs, buf)
		if err != nil || n <= 0 {
			break
		}
		line := string(buf[:n])
		if len(line) > 2 && line[1] == ' ' { // "e ", "w " or "i " for the severity
			line = line[2:]
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "; ")
}

// Root says what the tree would show where it is attached.
type Root struct {
	Major, Minor         uint32 // device of the file system
	BlockDevice          bool   // the root is a block device node, of this number:
	RdevMajor, RdevMinor uint32
}

// Root looks at the tree's root without asking the file system for data.
func (t *Tree) Root() (Root, error) {
	var st unix.Statx_t
	err := unix.Statx(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil {
		return Root{}, os.NewSyscallError("statx", err)
	}
	return Root{
		Major: st.Dev_major, Minor: st.Dev_minor,
		BlockDevice: st.Mode&unix.S_IFMT == unix.S_IFBLK,
		RdevMajor:   st.Rdev_major, RdevMinor: st.Rdev_minor,
	}, nil
}

// Attach mounts the tree on target, which is not followed when it is a symlink
// (ELOOP).
func (t *Tree) Attach(target string) error {
	at, err := unix.Open(target, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: target, Err: err}
	}
	defer unix.Close(at)
	// O_PATH|O_NOFOLLOW opens a symlink itself; mounting on one is not what anybody wants.
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return &os.PathError{Op: "fstat", Path: target, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return &os.PathError{Op: "mount on", Path: target, Err: unix.ELOOP}
	}
	if err := unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: target, Err: err}
	}
	return nil
}

// Unmount detaches the top mount at path; it reports false when there was
// none, also when path does not exist. A symlink is not followed.
func Unmount(path string) (bool, error) {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, nil
	}
	return false, &os.PathError{Op: "umount2", Path: path, Err: err}
}

func kernelAttr(a Attr) uint64 {
	var k uint64
	for _, p := range []struct {
		attr Attr
		bit  uint64
	}{
		{ReadOnly, unix.MOUNT_ATTR_RDONLY},
		{NoSuid, unix.MOUNT_ATTR_NOSUID},
		{NoDev, unix.MOUNT_ATTR_NODEV},
		{NoExec, unix.MOUNT_ATTR_NOEXEC},
		{NoAtime, unix.MOUNT_ATTR_NOATIME},
		{StrictAtime, unix.MOUNT_ATTR_STRICTATIME},
		{NoDirAtime, unix.MOUNT_ATTR_NODIRATIME},
		{NoSymFollow, unix.MOUNT_ATTR_NOSYMFOLLOW},
	} {
		if a&p.attr != 0 {
			k |= p.bit
		}
	}
	return k
}
