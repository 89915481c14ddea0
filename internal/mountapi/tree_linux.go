package mountapi

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Tree is a detached mount. Close removes it.
type Tree struct {
	fd      int
	scratch *scratch // where it is kept on a kernel without detached mounts
}

// Close removes the tree unless Attach succeeded; then it only closes the descriptor that
// keeps the mount busy. It must be called once.
func (t *Tree) Close() error {
	err := unix.Close(t.fd)
	if t.scratch != nil {
		err = errors.Join(err, t.scratch.close())
	}
	return err
}

// A kernel that has a call refuses flags that do not exist with EINVAL; one that
// lacks it answers ENOSYS, and a seccomp filter often EPERM.
var (
	hasTreeCalls = sync.OnceValue(func() bool {
		return unix.MountSetattr(-1, "", ^uint(0), &unix.MountAttr{}) == unix.EINVAL
	})
	hasContextCalls = sync.OnceValue(func() bool {
		fd, err := unix.Fsopen("", ^0)
		if err == nil { // not on any kernel known
			unix.Close(fd)
		}
		return err == unix.EINVAL
	})
	hasStatCalls = sync.OnceValue(func() bool {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, 0, 0, 0, ^uintptr(0), 0, 0)
		return errno == unix.EINVAL
	})
)

// CloneTree is the function [CloneTree] on this kernel.
func (k Kernel) CloneTree(source string, attr Attr) (*Tree, error) {
	if k.Without&TreeCalls != 0 || !hasTreeCalls() {
		from, err := openPath(source)
		if err != nil {
			return nil, err
		}
		defer unix.Close(from)
		return k.cloneByMount(from, attr)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, source,
		unix.OPEN_TREE_CLONE|unix.O_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	if err := refuseSymlink(fd, source); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return newTree(fd, attr)
}

// newTree takes over the detached mount, and adds the attributes.
func newTree(fd int, attr Attr) (*Tree, error) {
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
	return &Tree{fd: fd}, nil
}

// NewTree is the function [NewTree] on this kernel.
func (k Kernel) NewTree(fsType, source string, o Options) (*Tree, error) {
	if k.Without&ContextCalls != 0 || !hasContextCalls() {
		return k.newByMount(fsType, source, o)
	}
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
		// The superblock too, so that the file system does not write on its own account.
		if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
			return fail("fsconfig ro", err)
		}
	}
	for _, d := range o.Data {
		key, value, ok := strings.Cut(d, "=")
		if ok {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, d)
		}
		if err != nil {
			refused := errors.Is(err, unix.EINVAL) // another errno does not blame the option
			t, err := fail("fsconfig "+key, err)   // not the value, which may be secret (csi.proto on mount_flags)
			if refused {
				err = fmt.Errorf("%w: %w", ErrOption, err)
			}
			return t, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fail("fsconfig create", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(kernelAttr(o.Attr)))
	if err != nil {
		return fail("fsmount", err)
	}
	return &Tree{fd: fd}, nil
}

// kernelLog collects the messages of the file system about this mount, see "Message
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

// Root identifies the tree's root by statx, without asking a server.
func (t *Tree) Root() (Root, error) {
	st, err := statFD(t.fd)
	if err != nil {
		return Root{}, err
	}
	return rootOf(st), nil
}

func rootOf(st unix.Statx_t) Root {
	return Root{
		Major: st.Dev_major, Minor: st.Dev_minor,
		BlockDevice: st.Mode&unix.S_IFMT == unix.S_IFBLK,
		RdevMajor:   st.Rdev_major, RdevMinor: st.Rdev_minor,
	}
}

// Open opens the directory that is the tree's root, for queries to the file system that
// Root does not answer.
func (t *Tree) Open() (*os.File, error) { return openRoot(t.fd) }

func openRoot(dir int) (*os.File, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), "root of a mount"), nil
}

// Attach mounts the tree on target, which is not followed when it is a symlink
// (ELOOP). A directory can be mounted only on a directory (ENOTDIR).
func (t *Tree) Attach(target string) error {
	at, err := openPath(target)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return t.AttachTo(at, target)
}

// AttachTo is Attach to the directory or file that is open as at, whose path is only for errors.
func (t *Tree) AttachTo(at int, path string) (err error) {
	if t.scratch != nil {
		err = t.scratch.move(at)
	} else {
		err = unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	if errors.Is(err, unix.EINVAL) {
		root, err1 := statFD(t.fd)
		onto, err2 := statFD(at)
		if err1 == nil && err2 == nil && isDir(root) != isDir(onto) {
			err = unix.ENOTDIR
		}
	}
	if err != nil {
		return &os.PathError{Op: "mount on", Path: path, Err: err}
	}
	return nil
}

// openPath opens the path itself with O_PATH, which does not wait for a stale mount.
func openPath(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := refuseSymlink(fd, path); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// refuseSymlink is needed because O_PATH and open_tree with NOFOLLOW open a symlink
// itself, and the kernel would mount it, or on it.
func refuseSymlink(fd int, path string) error {
	st, err := statFD(fd)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
	}
	return nil
}

func statFD(fd int) (st unix.Statx_t, err error) {
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return st, os.NewSyscallError("statx", err)
}

func isDir(st unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// The attributes in the flags of mount_setattr(2) and fsmount(2), and of mount(2).
var attrBits = []struct {
	attr       Attr
	set, mount uint64
}{
	{ReadOnly, unix.MOUNT_ATTR_RDONLY, unix.MS_RDONLY},
	{NoSuid, unix.MOUNT_ATTR_NOSUID, unix.MS_NOSUID},
	{NoDev, unix.MOUNT_ATTR_NODEV, unix.MS_NODEV},
	{NoExec, unix.MOUNT_ATTR_NOEXEC, unix.MS_NOEXEC},
	{NoAtime, unix.MOUNT_ATTR_NOATIME, unix.MS_NOATIME},
	{StrictAtime, unix.MOUNT_ATTR_STRICTATIME, unix.MS_STRICTATIME},
	{NoDirAtime, unix.MOUNT_ATTR_NODIRATIME, unix.MS_NODIRATIME},
	{NoSymFollow, unix.MOUNT_ATTR_NOSYMFOLLOW, unix.MS_NOSYMFOLLOW},
}

func kernelAttr(a Attr) (bits uint64) {
	for _, b := range attrBits {
		if a&b.attr != 0 {
			bits |= b.set
		}
	}
	return bits
}

func mountFlags(a Attr) (bits uintptr) {
	for _, b := range attrBits {
		if a&b.attr != 0 {
			bits |= uintptr(b.mount)
		}
	}
	return bits
}
