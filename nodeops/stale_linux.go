package nodeops

import (
	"context"
	"errors"
	"os"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

// corruptedErrnos are the errors of a file system that does not recover without a new
// mount: the server or the FUSE process has ended, file handles are stale, or the file
// system has shut down.
var corruptedErrnos = []unix.Errno{
	unix.ENOTCONN, unix.ECONNABORTED, unix.ESTALE, unix.EIO, unix.ESHUTDOWN,
	unix.EHOSTDOWN, unix.ENODEV, unix.ENXIO, unix.EREMOTEIO,
}

// corrupted checks the file system mounted at the path and returns its error, if that is
// one of corruptedErrnos. It may hang, and is not called before an unmount, unless
// Config.Unmount needs it.
func corrupted(path string) error { return corruptedAt(unix.AT_FDCWD, path) }

// corruptedAt is corrupted for a name in an open directory.
func corruptedAt(dir int, name string) error {
	return corruption(probeMount(dir, name))
}

// corruption returns the error if it is one of corruptedErrnos.
func corruption(err error) error {
	for _, errno := range corruptedErrnos {
		if errors.Is(err, errno) {
			return err
		}
	}
	return nil // a server that denies access (EACCES, EPERM) is healthy
}

var (
	errFailedReadOnly = errors.New("the file system went read-only after an error")
	errShutDown       = errors.New("the file system was shut down after an error")
	errRecorded       = errors.New("the file system has recorded errors: unstage and stage the volume to check it")
)

// failure returns the error that the mounted file system has had, as the mount table and
// the superblock of an ext4 show it: such a file system still answers, and its root can be
// read.
func failure(m mountapi.Mount, dev *device) error {
	_, down := m.SuperOption("shutdown") // ext4, Linux 6.15
	switch {
	case down:
		return errShutDown
	case m.FailedReadOnly():
		return errFailedReadOnly
	case m.FSType == "ext4" && dev.recordsErrors():
		return errRecorded
	}
	return nil
}

// recordsErrors reports whether the superblock of an ext4 records an error. It is read
// through the page cache of the device, where a mounted ext4 keeps it.
func (d *device) recordsErrors() bool {
	head := make([]byte, 4096)
	_, err := d.file.ReadAt(head, 0)
	return err == nil && !probe.ExtClean(head)
}

func probeMount(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st); err != nil {
		return os.NewSyscallError("statx", err)
	}
	// A file system that has shut down may have the root cached, and ext4 its entries too.
	var entries [1024]byte
	if _, err := unix.Getdents(fd, entries[:]); err != nil {
		return os.NewSyscallError("getdents64", err)
	}
	_, err = unix.Fgetxattr(fd, "user.csikit", nil)
	return os.NewSyscallError("fgetxattr", err)
}

// healthyAt unmounts corrupted mounts from the path, down to the first healthy one, and
// returns what is mounted then, the top last.
func (n *Node) healthyAt(ctx context.Context, p *mountapi.Point) ([]mountapi.Mount, error) {
	for range 1000 { // as in unmountAll
		on, err := p.At()
		if err != nil || len(on) == 0 {
			return nil, err
		}
		why := corruptedAt(p.Dir(), p.Name())
		if why == nil {
			return on, nil
		}
		n.log.Warn("unmounting a corrupted mount, to mount the volume again", "path", p.Path(), "source", on[len(on)-1].Source, "error", why)
		_, done := n.telemetry.step(ctx, "unmount")
		_, err = unmount(p)
		done(err)
		if err != nil {
			return nil, unmountFault(p.Path(), err)
		}
	}
	return nil, faultf(csierr.Uncertain, "the mount is still corrupted after 1000 unmounts")
}
