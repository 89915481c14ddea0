package registration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A directory is the registration directory, by its descriptor: a path through it stays
// in the same directory even if that is renamed or deleted, and is short enough for a
// socket address.
type directory struct {
	path string // for messages
	f    *os.File
	info fs.FileInfo
}

func openDirectory(path string) (*directory, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Sys().(*syscall.Stat_t).Nlink == 0 {
		err = fmt.Errorf("%s was deleted on the host: restart the pod, whose mount still shows the deleted directory, "+
			"and restart kubelet, which still watches it", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &directory{path, f, info}, nil
}

func (d *directory) close() { d.f.Close() }

func (d *directory) same(e *directory) bool { return os.SameFile(d.info, e.info) }

func (d *directory) at(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.f.Fd(), name)
}

// tryLock takes the flock of the directory, which the kernel releases when the
// process ends. It never waits.
func (d *directory) tryLock() (unlock func(), err error) {
	// flock(2) belongs to an open file description: a new one, so that it also excludes
	// a second Registrar of this process.
	f, err := os.OpenFile(d.at("."), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, d.known(err, "")
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errBusy
		}
		return nil, err
	}
	return func() { f.Close() }, nil
}

// listen creates a socket of mode 0600, to which only its owner may connect, without a
// race window: bind(2) takes the mode from the socket's own inode, less the umask. The
// umask belongs to the whole process and is not changed.
func (d *directory) listen(name string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", d.at(name))
	if err != nil {
		return nil, d.known(err, name)
	}
	return l.(*net.UnixListener), nil
}

// renameNew renames from to to, which must not exist.
func (d *directory) renameNew(from, to string) error {
	fd := int(d.f.Fd())
	err := unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return errChanged
	}
	return d.known(&os.LinkError{Op: "rename", Old: from, New: to, Err: err}, to)
}
