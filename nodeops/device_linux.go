package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/blockdev"
	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

// device is an open block device whose identity was checked on the descriptor.
type device struct {
	file         *os.File
	path         string // symlinks resolved
	major, minor uint32
	size         int64
}

// errNoDevice means that the device does not exist or has no medium, perhaps only not yet.
var errNoDevice = errors.New("check that the volume is attached to this node")

// awaitDevice is openDevice for a device that may appear later. It resolves the path at
// each attempt, since udev may have changed the link.
func (n *Node) awaitDevice(ctx context.Context, d Device) (_ *device, err error) {
	_, done := n.telemetry.step(ctx, "device")
	defer func() { done(err) }()
	deadline := time.Now().Add(n.deviceWait)
	for {
		dev, err := openDevice(d)
		if err == nil {
			if err = dev.refusePath(); err == nil {
				return dev, nil
			}
			dev.close()
		}
		if !errors.Is(err, errNoDevice) && !errors.Is(err, errPath) || !time.Now().Before(deadline) {
			return nil, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done(): // nothing was done yet
			return nil, err
		}
	}
}

func openDevice(d Device) (*device, error) {
	path, err := filepath.EvalSymlinks(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, faultf(csierr.Precondition, "device %s does not exist; %w", d.Path, errNoDevice)
	}
	if err != nil {
		return nil, fmt.Errorf("resolve device: %w", err)
	}
	// O_NONBLOCK: opening a path that is not a block device must not block.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return nil, faultf(csierr.Precondition, "device %s does not exist; %w", d.Path, errNoDevice)
	}
	if err != nil {
		return nil, fmt.Errorf("open device: %w", err)
	}
	dev := &device{file: f, path: path}
	if err := dev.check(d); err != nil {
		f.Close()
		return nil, err
	}
	return dev, nil
}

func (d *device) check(want Device) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.file.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: d.path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return faultf(csierr.Precondition, "%s is not a block device", d.path)
	}
	d.major, d.minor = unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))
	if err := d.measure(); err != nil {
		return err
	}
	if d.size == 0 { // a loop device without an image, or a disk that is being attached
		return faultf(csierr.Precondition, "device %s has size 0: it is not ready or has no medium; %w", d.path, errNoDevice)
	}
	if want.Size != 0 && want.Size != d.size {
		return faultf(csierr.Precondition, "%s has %d bytes, the volume has %d: it may be another disk", d.path, d.size, want.Size)
	}
	return d.checkIdentity(want)
}

func (d *device) measure() error {
	size, err := d.file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", d.path, err)
	}
	d.size = size
	return nil
}

func (d *device) number() number { return number{d.major, d.minor} }

// name is the device's number, which is the same for all its paths.
func (d *device) name() string { return d.number().String() }

func (d *device) close() { d.file.Close() }

func (d *device) probe() (probe.Result, error) { return probe.Probe(d.file, d.size) }

func (d *device) shared() blockdev.Device {
	return blockdev.Device{File: d.file, Path: d.path, Size: d.size}
}

// hold is blockdev's Hold, with csierr.Busy.
func (d *device) hold() (release func(), err error) {
	release, err = d.shared().Hold()
	if errors.Is(err, unix.EBUSY) {
		return nil, faultf(csierr.Busy, "%s is in use by a mount or a program, perhaps the mkfs of an earlier, interrupted call: %w", d.path, unix.EBUSY)
	}
	return release, err
}

// claim is blockdev's Claim, with csierr.Busy.
func (d *device) claim(ctx context.Context) (*os.File, error) {
	f, err := d.shared().Claim(ctx)
	if errors.Is(err, unix.EBUSY) {
		err = faultf(csierr.Busy, "%s is locked by another program", d.path)
	}
	return f, err
}

// readOnly reports whether the device refuses writes.
func (d *device) readOnly() (bool, error) {
	v, err := unix.IoctlGetInt(int(d.file.Fd()), unix.BLKROGET)
	return v != 0, os.NewSyscallError("ioctl BLKROGET", err)
}

// setReadOnly makes the device refuse writes, also through descriptors that are open for
// writing already, or accept them again.
func (d *device) setReadOnly(on bool) error {
	v := 0
	if on {
		v = 1
	}
	return os.NewSyscallError("ioctl BLKROSET", unix.IoctlSetPointerInt(int(d.file.Fd()), unix.BLKROSET, v))
}

// number identifies a block device, whatever its paths are.
type number struct{ major, minor uint32 }

func (n number) String() string { return fmt.Sprintf("%d:%d", n.major, n.minor) }

// deviceOf opens the block device of a mounted file system, or the one whose node is mounted.
// The node may have any path, such as /dev/longhorn/volume, or none any more.
func deviceOf(m mountapi.Mount) (*device, error) {
	want, isNode, err := nodeNumber(m)
	if err != nil {
		return nil, err
	}
	if !isNode {
		want = number{m.Major, m.Minor}
	}
	var at []string
	if path := kernelPath(want); path != "" {
		at = append(at, path)
	}
	if isNode {
		at = append(at, m.MountPoint)
	} else if strings.HasPrefix(m.Source, "/dev/") {
		at = append(at, m.Source)
	}
	failed := fmt.Errorf("device %v has no node", want)
	for _, path := range at {
		dev, err := openDevice(Device{Path: path})
		if err == nil && dev.number() == want {
			return dev, nil
		}
		if err == nil {
			dev.close()
		} else {
			failed = err
		}
	}
	return nil, failed
}

func (d *device) direct() (blockdev.Disk, error) { return d.shared().Direct() }

// readAhead starts reading into the page cache, without waiting.
func (d *device) readAhead(off, n int64) {
	_ = unix.Fadvise(int(d.file.Fd()), max(off, 0), n, unix.FADV_WILLNEED) // advice may fail
}
