package fastmount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/csikit/csikit/nodeops/fastmount/internal/mountapi"
	"golang.org/x/sys/unix"
)

// recursiveTree is a clone of a mount and of all mounts below it.
type recursiveTree struct{ fd int }

// cloneRecursive changes the attributes of the top mount only.
func cloneRecursive(source string, attr unix.MountAttr) (tree, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	t := recursiveTree{fd}
	if attr != (unix.MountAttr{}) {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			t.Close()
			return nil, os.NewSyscallError("mount_setattr", err)
		}
	}
	return t, nil
}

func (t recursiveTree) Close() error { return unix.Close(t.fd) }

func (t recursiveTree) Attach(target string) error {
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: target, Err: err}
	}
	return nil
}

// setAttr changes the attributes of the mount at target.
func setAttr(target string, o options) error {
	attr := o.attr()
	if err := unix.MountSetattr(unix.AT_FDCWD, target, 0, &attr); err != nil {
		return remountError("mount_setattr", err)
	}
	return propagate(target, o.propagation)
}

// remount changes the file system at target, which all its mounts share, and
// the attributes of the mount at target.
func remount(target, fsType string, o options) error {
	at, err := locate(target)
	if err != nil {
		return err
	}
	if !native(at.mount.FSType) || fsType != "" && !native(fsType) {
		return errMount8
	}
	known, err := mountapi.ParseOptions(o.rest)
	if err != nil {
		return err
	}
	attr := o.attr()
	switch {
	case attr.Attr_set&unix.MOUNT_ATTR_RDONLY != 0:
		err = reconfigure(target, "ro", known.Data)
	case attr.Attr_clr&unix.MOUNT_ATTR_RDONLY != 0:
		err = reconfigure(target, "rw", known.Data)
	case len(known.Data) > 0:
		// Repeated, because a file system may reset an option that is left out.
		now, _, _ := strings.Cut(at.mount.SuperOptions, ",")
		err = reconfigure(target, now, known.Data)
	}
	if err != nil {
		return err
	}
	return setAttr(target, o)
}

func reconfigure(target, access string, data []string) error {
	fs, err := unix.Fspick(unix.AT_FDCWD, target, unix.FSPICK_CLOEXEC)
	if err != nil {
		return remountError("fspick", err)
	}
	defer unix.Close(fs)
	for _, word := range append([]string{access}, data...) {
		key, value, ok := strings.Cut(word, "=")
		if ok {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, word)
		}
		if err != nil {
			return fmt.Errorf("option %s: %w", key, os.NewSyscallError("fsconfig", err))
		}
	}
	return remountError("fsconfig", unix.FsconfigReconfigure(fs))
}

func remountError(call string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("files are open for writing: %w", os.NewSyscallError(call, err))
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("nothing is mounted there, or an option is refused: %w", os.NewSyscallError(call, err))
	}
	return os.NewSyscallError(call, err)
}
