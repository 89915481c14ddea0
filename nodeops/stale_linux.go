package nodeops

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// corruptedErrnos are the answers of a file system that does not come back by itself: the
// server or the FUSE process is gone, its handles are stale, or it shut itself down.
var corruptedErrnos = []unix.Errno{
	unix.ENOTCONN, unix.ECONNABORTED, unix.ESTALE, unix.EIO, unix.ESHUTDOWN,
	unix.EHOSTDOWN, unix.ENODEV, unix.ENXIO, unix.EREMOTEIO,
}

// dead asks the file system mounted at the path and returns what it answers, if that is
// one of corruptedErrnos. It may hang, and is never asked on the way to take a mount down,
// unless Config.Unmount wants to know.
func corrupted(path string) error {
	err := probeMount(path)
	for _, errno := range corruptedErrnos {
		if errors.Is(err, errno) {
			return err
		}
	}
	return nil // a server that does not let us look (EACCES, EPERM) is alive
}

func probeMount(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st); err != nil {
		return &os.PathError{Op: "statx", Path: path, Err: err}
	}
	// One that shut itself down knows its root by heart, and ext4 what is in it too.
	if _, err := dir.Readdirnames(1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = unix.Fgetxattr(fd, "user.csikit", nil)
	return os.NewSyscallError("fgetxattr", err)
}

// healthyAt returns what is mounted on the path, the top last, once everything dead
// on top of it is taken away: a living mount is never unmounted.
func (n *Node) healthyAt(ctx context.Context, path string) ([]mountapi.Mount, error) {
	for range 1000 { // as in unmountAll
		on, err := mountapi.At(path)
		if err != nil || len(on) == 0 {
			return nil, err
		}
		why := corrupted(path)
		if why == nil {
			return on, nil
		}
		n.log.Warn("unmounting a dead mount, to make it anew", "path", path, "source", on[len(on)-1].Source, "error", why)
		_, done := n.telemetry.step(ctx, "unmount")
		_, err = unmount(path)
		done(err)
		if err != nil {
			return nil, unmountFault(path, err)
		}
	}
	return nil, faultf(KindUncertain, "still dead after 1000 unmounts")
}
