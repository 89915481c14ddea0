package loopdev

import (
	"context"
	"errors"
)

// Causes that callers can test for; an [Error] wraps them.
var (
	// ErrNotAttached means that no loop device serves the file.
	ErrNotAttached = errors.New("not attached to a loop device")
	// ErrBusy means that the device is mounted or open.
	ErrBusy = errors.New("loop device is in use")
	// ErrConflict means that a device serves the file with other parameters than requested,
	// which cannot be changed while it may be in use.
	ErrConflict = errors.New("attached with other parameters")
)

// An Error is a failed operation on an image or a device.
type Error struct {
	Op   string // attach, find, list, resize, detach
	Path string // of the image for attach and find, else of the device
	Err  error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Op + " loop devices: " + e.Err.Error()
	}
	return e.Op + " " + e.Path + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// A Device is the state of a configured loop device at the time of the call.
type Device struct {
	Path   string // /dev/loopN
	Number int    // N
	Rdev   uint64 // device number, as in Stat_t.Rdev of the node

	// Backing is the path of the image in sysfs: it follows renames, and is relative to
	// another root if the image was attached in a mount namespace that is not visible here.
	// The identity of the image is BackingDev and BackingInode, as in Stat_t.
	Backing      string
	BackingDev   uint64
	BackingInode uint64
	Deleted      bool // the image was deleted

	// Detaching means that Detach found the device open and the kernel releases it at the
	// last close. Such a device must not be used; Attach revokes the detach.
	Detaching bool

	ReadOnly bool  // the device refuses writes
	DirectIO bool  // reads and writes bypass the page cache of the image
	Size     int64 // bytes
}

// An Option changes what Attach does.
type Option interface{ apply(*config) }

type config struct{ readOnly bool }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithReadOnly opens the image read-only, and makes the device refuse writes.
func WithReadOnly() Option { return optionFunc(func(c *config) { c.readOnly = true }) }

// Attach attaches the regular file backing to a loop device and returns the device. It is
// idempotent: if a device serves this inode already, under any name, that one is returned,
// with its size updated, a pending detach revoked, and a read-only flag that BLKROSET left
// on it cleared. A symbolic link as the last element of backing is refused.
//
// A device that serves the file with an offset or a size limit, or read-only if writable was
// requested or vice versa, is not changed: ErrConflict. ctx bounds the wait for another
// process that attaches or detaches the same file. On failure nothing is left attached that
// was not before.
func Attach(ctx context.Context, backing string, opts ...Option) (*Device, error) {
	var c config
	for _, o := range opts {
		o.apply(&c)
	}
	d, err := attach(ctx, backing, c)
	if err != nil {
		return nil, &Error{Op: "attach", Path: backing, Err: err}
	}
	return d, nil
}

// Find returns the device that serves the regular file backing, or ErrNotAttached.
// A missing file is fs.ErrNotExist; use List to find an image that was deleted while
// attached.
func Find(backing string) (*Device, error) {
	d, err := findPath(backing)
	if err != nil {
		return nil, &Error{Op: "find", Path: backing, Err: err}
	}
	return d, nil
}

// List returns all configured loop devices, ordered by number. Devices without a node in
// this /dev are omitted.
func List() ([]Device, error) {
	all, err := list()
	if err != nil {
		return nil, &Error{Op: "list", Err: err}
	}
	return all, nil
}

// Resize sets the size of the device to the current size of its image, and returns it in
// bytes. It is idempotent. If the device serves another image now, or none, the error is
// ErrNotAttached.
func (d *Device) Resize() (int64, error) {
	size, err := d.resize()
	if err != nil {
		return 0, &Error{Op: "resize", Path: d.Path, Err: err}
	}
	return size, nil
}

// Detach releases the device. It is idempotent: it is a no-op for a device that serves
// another image now, or none. The image may have been deleted.
//
// A device that is mounted, or otherwise opened exclusively, is not changed: ErrBusy. One
// that is only open in another process is ErrBusy too, but the kernel will release it at
// the last close; Detach waits half a second for that, because udev and blkid open devices
// briefly. In both cases, retry later.
func (d *Device) Detach(ctx context.Context) error {
	if err := d.detach(ctx); err != nil {
		return &Error{Op: "detach", Path: d.Path, Err: err}
	}
	return nil
}
