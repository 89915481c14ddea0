package fastmount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/csikit/csikit/nodeops/fastmount/internal/mountapi"
	"golang.org/x/sys/unix"
)

// errMount8 is returned when nothing was done because the call needs mount(8).
var errMount8 = errors.New("needs mount(8)")

// nativeTypes need neither a helper nor what only mount(8) knows. Other types may work as
// well; they are left to mount(8) until a test covers them.
var nativeTypes = map[string]bool{"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "tmpfs": true}

func native(fsType string) bool {
	// An installed helper for the type takes precedence, as in mount(8).
	return nativeTypes[fsType] && unix.Access("/sbin/mount."+fsType, unix.X_OK) != nil
}

func mountByKernel(source, target, fsType string, opts, sensitive []string) error {
	o := parseOptions(opts, sensitive)
	var op string
	var err error
	switch {
	case o.foreign, target == "":
		return errMount8
	case o.remount && o.bind && (source == "" || mounted(target)):
		op, err = "remount", setAttr(target, o)
	case o.bind && source != "":
		op, err = "bind", bind(source, target, o)
	case o.remount:
		op, err = "remount", remount(target, fsType, o)
	case source != "" && native(fsType):
		op, err = "mount", mountFS(source, target, fsType, o)
	default:
		return errMount8
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errMount8), errors.Is(err, unix.ENOSYS):
		return errMount8
	case len(sensitive) > 0:
		err = redact(err)
	}
	return &Error{Op: op, Source: source, Target: target, FSType: fsType, Options: maskedOptions(opts, sensitive), Err: err}
}

// A tree is a detached mount.
type tree interface {
	Attach(target string) error
	Close() error
}

// attach mounts t on target, closes it, and then changes the propagation, not
// before: attaching to a shared mount makes the new mount shared.
func attach(t tree, target string, propagation []uintptr) error {
	target, err := follow(target)
	if err == nil {
		err = t.Attach(target)
	}
	t.Close() // here, because an open tree keeps its mount busy
	if err != nil {
		return err
	}
	if err := propagate(target, propagation); err != nil {
		_, undo := mountapi.Unmount(target)
		return errors.Join(err, undo)
	}
	return nil
}

func propagate(target string, flags []uintptr) error {
	for _, f := range flags {
		if err := unix.Mount("", target, "", f, ""); err != nil {
			return os.NewSyscallError("change the propagation", err)
		}
	}
	return nil
}

// follow resolves path if it is a symlink, as mount(8) does. Otherwise it returns path
// unchanged, readable or not: the next system call reports that.
func follow(path string) (string, error) {
	if _, err := os.Readlink(path); err != nil { // EINVAL: not a link
		return path, nil
	}
	return filepath.EvalSymlinks(path)
}

func bind(source, target string, o options) error {
	source, err := follow(source)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	t, err := cloneTree(source, o)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	return attach(t, target, o.propagation)
}

func cloneTree(source string, o options) (tree, error) {
	if o.recursive {
		return cloneRecursive(source, o.bindAttr())
	}
	// Words that are not attributes are for the file system, and have no effect on a bind.
	known, err := mountapi.ParseOptions(o.rest)
	if err != nil {
		return nil, err
	}
	return mountapi.CloneTree(source, known.Attr)
}

func mounted(target string) bool {
	is, _ := isMountPoint(target)
	return is
}

func mountFS(source, target, fsType string, o options) error {
	if fsType != "tmpfs" {
		var err error
		if source, err = blockDevice(source); err != nil {
			return err
		}
	}
	known, err := mountapi.ParseOptions(o.rest)
	if err != nil {
		return err
	}
	t, err := newTree(fsType, source, known)
	if errors.Is(err, unix.EINVAL) && !errors.Is(err, mountapi.ErrOption) {
		return fmt.Errorf("%w (no %s file system on the device, or a damaged one: see blkid and the kernel log)", err, fsType)
	}
	if err != nil {
		return err
	}
	// mount(2) refuses a second mount of the same file system on a target; move_mount(2) would stack it.
	if root, err := t.Root(); err == nil {
		st, err := statx(target, 0)
		if err == nil && mounted(target) && st.Dev_major == root.Major && st.Dev_minor == root.Minor {
			t.Close()
			return fmt.Errorf("this file system is already mounted there: %w", unix.EBUSY)
		}
	}
	return attach(t, target, o.propagation)
}

func newTree(fsType, source string, o mountapi.Options) (*mountapi.Tree, error) {
	t, err := mountapi.NewTree(fsType, source, o)
	writeProtected := errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES)
	if writeProtected && o.Attr&mountapi.ReadOnly == 0 {
		o.Attr |= mountapi.ReadOnly
		if t, err := mountapi.NewTree(fsType, source, o); err == nil {
			return t, nil
		}
	}
	return t, err
}

// blockDevice returns the name of source for the mount table: without symlinks, and
// /dev/mapper/NAME for a device-mapper device, as with mount(8), because callers search the
// table for it. What is not a block device (LABEL=, an image for a loop device) is left to
// mount(8).
func blockDevice(source string) (string, error) {
	if !filepath.IsAbs(source) {
		return "", errMount8
	}
	source, err := filepath.EvalSymlinks(source)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(source)
	if err != nil {
		return "", err
	}
	if info.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return "", errMount8
	}
	if dm, ok := strings.CutPrefix(source, "/dev/dm-"); ok {
		if name, err := os.ReadFile("/sys/block/dm-" + dm + "/dm/name"); err == nil {
			mapped := "/dev/mapper/" + strings.TrimSpace(string(name))
			if unix.Access(mapped, unix.F_OK) == nil {
				return mapped, nil
			}
		}
	}
	return source, nil
}
