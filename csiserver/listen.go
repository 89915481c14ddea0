package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"
)

const (
	// answerTimeout is how long whoever holds the socket has to let a connection
	// in, to send a first byte, and to give its name. A successful connect proves
	// nothing: the kernel accepts connections for a killed process as long as one
	// of its threads hangs in a system call.
	answerTimeout = 2 * time.Second
	// lockTimeout bounds the wait for another process that is starting or
	// stopping on the same socket. A start that finds the socket dead takes
	// answerTimeout, one that takes longer has found it alive.
	lockTimeout = 5 * time.Second
	// closeTimeout is lockTimeout for Close. Serve closes its listener before
	// anything else, and promises to return within unwindTimeout of the drain
	// timeout: if that is zero, the calls it cuts still get the other half.
	closeTimeout = unwindTimeout / 2
	// unlinkTimeout bounds all of the removal, which takes closeTimeout only when it
	// has to wait for the lock.
	unlinkTimeout = closeTimeout + 100*time.Millisecond
	// listenTimeout bounds Listen where the file system hangs. All else that it waits
	// for has bounds of its own, 23 seconds together.
	listenTimeout = 30 * time.Second
	// fileCheckInterval is how long a deleted socket file stays unnoticed at most. A
	// look costs a microsecond, and kubelet tries for minutes.
	fileCheckInterval = 5 * time.Second
)

// A ListenOption changes how [Listen] makes its socket.
type ListenOption interface{ applyListen(*listenConfig) }

type listenConfig struct {
	mode              fs.FileMode
	group             int // of the file; -1: as the system decides
	answerTimeout     time.Duration
	lockTimeout       time.Duration
	listenTimeout     time.Duration
	fileCheckInterval time.Duration
	logger            *slog.Logger // nil until Serve gives its own
}

type listenOption func(*listenConfig)

func (o listenOption) applyListen(c *listenConfig) { o(c) }

// WithSocketMode sets the permission bits of the socket file, 0600 unless given.
// Connecting takes write permission.
func WithSocketMode(mode fs.FileMode) ListenOption {
	return listenOption(func(c *listenConfig) { c.mode = mode })
}

// WithSocketGroup gives the socket file to a group, by number: the process has to
// belong to it or may chown. Until the file has its group, it is open to the owner
// alone.
func WithSocketGroup(gid int) ListenOption {
	return listenOption(func(c *listenConfig) { c.group = gid })
}

// WithListenLogger sets where trouble with the socket file is reported. The default
// is the logger of the [Server] that serves on the [Listener].
func WithListenLogger(l *slog.Logger) ListenOption {
	return listenOption(func(c *listenConfig) { c.logger = l })
}

// Listen makes the socket that endpoint names: unix:///path/csi.sock,
// unix:/path/csi.sock, an absolute path, or tcp://127.0.0.1:0 for tests.
//
// A socket in the way is replaced only if nobody is behind it: connecting is
// refused, or not a single byte comes within two seconds. Otherwise Listen
// fails, removes nothing and names who serves, as far as that can be told. A
// file that is no socket is never removed. Listen creates nothing else in the
// directory, which has to exist. It blocks for some seconds at most, for 30 if the file
// system hangs. Serve at once: whoever starts meanwhile takes the silence for that of
// a dead process.
//
// The error is an [*Error].
func Listen(endpoint string, opts ...ListenOption) (*Listener, error) {
	c := listenConfig{mode: 0o600, group: -1, answerTimeout: answerTimeout, lockTimeout: lockTimeout, listenTimeout: listenTimeout, fileCheckInterval: fileCheckInterval}
	for _, o := range opts {
		o.applyListen(&c)
	}
	l, err := listen(endpoint, c)
	if err != nil {
		return nil, &Error{Op: "listen", Object: endpoint, Err: err}
	}
	return l, nil
}

func listen(endpoint string, c listenConfig) (*Listener, error) {
	if c.mode&^fs.ModePerm != 0 {
		return nil, fmt.Errorf("the socket mode %v has more than permission bits", c.mode)
	}
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		l, own, err := bindWithTimeout(address, c)
		if err != nil {
			return nil, err
		}
		return newUnixListener(l, address, own, c), nil
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return newListener(l), nil
}

// ListenFile serves on a socket that listens already, such as one that systemd
// hands over: os.NewFile(3, "csi"). It may be a unix socket or one of the loopback,
// and its file is the business of whoever made it: Close does not remove it. Like
// [net.FileListener] it takes a duplicate of f, which the caller still has to
// close. The error is an [*Error].
func ListenFile(f *os.File) (*Listener, error) {
	if f == nil { // of os.NewFile, for what cannot be a descriptor
		return nil, &Error{Op: "listen", Object: "inherited socket", Err: os.ErrInvalid}
	}
	l, err := inherit(f)
	if err != nil {
		return nil, &Error{Op: "listen", Object: f.Name(), Err: err}
	}
	return newListener(l), nil
}

func inherit(f *os.File) (net.Listener, error) {
	if err := checkListening(f); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	switch a := l.Addr().(type) {
	case *net.UnixAddr:
		return l, nil
	case *net.TCPAddr:
		if a.IP.IsLoopback() {
			return l, nil
		}
	}
	l.Close()
	return nil, fmt.Errorf("the socket listens on %s %s: use a unix socket, or for tests the loopback", l.Addr().Network(), l.Addr())
}

// bindWithTimeout is bindUnix, given up when the file system hangs: no signal ends that, and
// a start that fails with a reason is worth more than one that says nothing. A socket
// that comes of it later is taken away again.
func bindWithTimeout(path string, c listenConfig) (net.Listener, fs.FileInfo, error) {
	type bound struct {
		l   net.Listener
		own fs.FileInfo
		err error
	}
	done, givenUp := make(chan bound), make(chan struct{})
	go func() {
		l, own, err := bindUnix(path, c)
		select {
		case done <- bound{l, own, err}:
		case <-givenUp:
			if err == nil {
				_ = unlinkOwn(path, own) // or the next Listen finds it dead
				l.Close()
			}
		}
	}()
	hangs := time.NewTimer(c.listenTimeout)
	defer hangs.Stop()
	select {
	case b := <-done:
		return b.l, b.own, b.err
	case <-hangs.C:
		close(givenUp)
		return nil, nil, fmt.Errorf("the file system of %s has not answered for %v", socketDir(path), c.listenTimeout)
	}
}

// bindUnix makes the socket at path and returns it with its file.
func bindUnix(path string, c listenConfig) (net.Listener, fs.FileInfo, error) {
	// Two processes that start at once would both find the old socket dead, and
	// the slower one would unlink the new socket of the faster one. The lock is
	// on the directory itself, because the specification lets a plugin create
	// nothing next to its socket.
	unlock, err := lockDir(socketDir(path), c.lockTimeout)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()

	if err := removeStaleSocket(path, c.answerTimeout); err != nil {
		return nil, nil, err
	}
	lc := net.ListenConfig{Control: socketMode(c.initialMode())}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, nil, err
	}
	// net would unlink by name, whosever file that is by then.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	own, err := setGroupAndMode(path, c)
	if err != nil {
		return nil, nil, errors.Join(err, os.Remove(path), l.Close())
	}
	return l, own, nil
}

// initialMode is the mode that bind creates the file with. Its group is another one
// then: the kernel does not take it from the socket.
func (c listenConfig) initialMode() fs.FileMode {
	if c.group >= 0 {
		return c.mode & 0o700
	}
	return c.mode
}

// finish gives a new socket file its group and then its mode.
func setGroupAndMode(path string, c listenConfig) (fs.FileInfo, error) {
	if c.group >= 0 {
		if err := os.Lchown(path, -1, c.group); err != nil {
			return nil, err
		}
	}
	own, err := os.Lstat(path)
	if err == nil && own.Mode().Perm() != c.mode {
		// Only ever adds: the umask took bits away, they waited for the group, or
		// the system does not let the mode be set in advance.
		err = os.Chmod(path, c.mode)
	}
	return own, err
}
