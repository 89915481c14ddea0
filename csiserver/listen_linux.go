package csiserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// lockDir takes the lock of a directory, which the kernel releases when the
// process dies. Where the file system has no locks, it succeeds without one.
func lockDir(dir string, timeout time.Duration) (unlock func(), err error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the socket: %w", err)
	}
	for deadline := time.Now().Add(timeout); ; {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { d.Close() }, nil
		}
		if hasNoLocks(err) {
			d.Close()
			return func() {}, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			d.Close()
			return nil, fmt.Errorf("lock %s, which another process may hold: %w", dir, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hasNoLocks reports whether flock fails for what the file system is, as on some FUSE and
// network file systems.
func hasNoLocks(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) ||
		errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOLCK)
}

// socketMode sets the mode of a unix socket before bind creates its file: the
// kernel takes it from the socket's own inode, less the umask. So the file is never
// more permissive than configured, and the umask of the process need not change.
func socketMode(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode.Perm())) }); e != nil {
			return e
		}
		return err
	}
}

// checkListening rejects a wrong descriptor: a server on it would be unreachable.
func checkListening(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	listening := 0
	if e := raw.Control(func(fd uintptr) {
		listening, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	}); e != nil {
		return e
	}
	if err == nil && listening == 0 {
		err = errors.New("the socket is not listening")
	}
	return err
}
