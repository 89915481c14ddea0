package loopdev

import (
	"context"
	"errors"
)

// Causes that callers act on; an [Error] wraps them.
var (
	// ErrNotAttached says that no loop device serves the file.
	ErrNotAttached = errors.New("not attached to a loop device")
	// ErrBusy says that the device is mounted or open.
	ErrBusy = errors.New("loop device is in use")
	// ErrConflict says that a device serves the file, but not in the way that was
	// asked for, and cannot be changed while somebody may be using it.
	ErrConflict = errors.New("attached differently")
)

// An Error tells which operation failed on which image or device.
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

// A Device is a configured loop device, as it was when it was looked at.
type Device struct {
	Path   string // /dev/loopN
	Number int    // N
	Rdev   uint64 // device number, as in Stat_t.Rdev of the node

	// Backing is the path of the image as the kernel knows it: it follows renames,
	// and is relative to another root where the image was attached in a mount
	// namespace that cannot be seen from here. The identity of the image is
	// BackingDev and BackingInode, as in Stat_t.
	Backing      string
	BackingDev   uint64
	BackingInode uint64
	Deleted      bool // the image has no name any more

	// Detaching says that a Detach found the device open and the kernel releases it
	// at the last close. Such a device must not be handed out; Attach revokes it.
	Detaching bool

	ReadOnly bool  // the device refuses writes
	DirectIO bool  // reads and writes bypass the page cache of the image
	Size     int64 // bytes
}

// An Option changes how Attach attaches.
type Option interface{ apply(*config) }

type config struct{ readOnly bool }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithReadOnly attaches an image that is never written to: it is opened read-only, and
// the device refuses writes.
func WithReadOnly() Option { return optionFunc(func(c *config) { c.readOnly = true }) }

// Attach makes the regular file backing available as a loop device and returns
// the device. If one serves this very inode already, under whatever name, that
// one is returned: with its size brought up to date, a pending detach revoked,
// and a read-only flag that BLKROSET left on it cleared. A symbolic link as the last
// element of backing is refused.
//
// A device that serves the file with an offset or a size limit, read-only where
// writing was asked for, or the other way round is left alone: ErrConflict. ctx
// bounds the wait for another process that is attaching or detaching the same file.
// On failure nothing is left attached that was not before.
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
// A missing file is fs.ErrNotExist: an image that was deleted while attached is
// found with List.
func Find(backing string) (*Device, error) {
	d, err := findPath(backing)
	if err != nil {
		return nil, &Error{Op: "find", Path: backing, Err: err}
	}
	return d, nil
}

// List returns all configured loop devices in the order of their numbers.
// A device whose node is missing here is left out.
func List() ([]Device, error) {
	all, err := list()
	if err != nil {
		return nil, &Error{Op: "list", Err: err}
	}
	return all, nil
}

// Resize makes the device as large as its image is now, and returns that size in
// bytes. It is idempotent. If the device serves another image by now, or none, the
// error is ErrNotAttached.
func (d *Device) Resize() (int64, error) {
	size, err := d.resize()
	if err != nil {
		return 0, &Error{Op: "resize", Path: d.Path, Err: err}
	}
	return size, nil
}

// Detach releases the device. It is idempotent: a device that serves another
// image by now, or none, needs nothing. The image may have been deleted.
//
// A device that is mounted, or otherwise claimed, is left as it is: ErrBusy. One that
// is only open somewhere is ErrBusy too, but the kernel will release it at the
// last close; Detach waits half a second for that, because udev and blkid
// open devices for a moment. In both cases calling again later is right.
func (d *Device) Detach(ctx context.Context) error {
	if err := d.detach(ctx); err != nil {
		return &Error{Op: "detach", Path: d.Path, Err: err}
	}
	return nil
}
