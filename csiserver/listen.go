package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// answerTimeout bounds, one by one, how long the process behind a socket may take
	// to accept a connection, to send a first byte, and to return its name. A successful
	// connect proves nothing: the kernel accepts connections for a killed process as
	// long as one of its threads hangs in a system call.
	answerTimeout = 2 * time.Second
	// lockTimeout bounds the wait for another process that is starting or
	// stopping on the same socket. A start that finds the socket stale takes
	// answerTimeout, one that takes longer has found it served.
	lockTimeout = 5 * time.Second
	// closeTimeout is lockTimeout for Close. Serve closes its listener before
	// anything else, and promises to return within unwindTimeout of the drain
	// timeout: if that is zero, aborted calls still get the other half.
	closeTimeout = unwindTimeout / 2
	// unlinkTimeout bounds all of the removal, which takes closeTimeout only when it
	// has to wait for the lock.
	unlinkTimeout = closeTimeout + 100*time.Millisecond
	// listenTimeout bounds Listen if the file system hangs. Everything else that it
	// waits for has timeouts of its own, 23 seconds in total.
	listenTimeout = 30 * time.Second
	// fileCheckInterval is how long a deleted socket file stays unnoticed at most. A
	// check costs a microsecond, and kubelet retries for minutes.
	fileCheckInterval = 5 * time.Second
)

// A ListenOption changes how [Listen] creates its socket.
type ListenOption interface{ applyListen(*listenConfig) }

type listenConfig struct {
	mode              fs.FileMode
	group             int // of the file; -1: the default of the system
	answerTimeout     time.Duration
	lockTimeout       time.Duration
	listenTimeout     time.Duration
	fileCheckInterval time.Duration
	logger            *slog.Logger // nil until Serve sets its own
}

type listenOption func(*listenConfig)

func (o listenOption) applyListen(c *listenConfig) { o(c) }

// WithSocketMode sets the permission bits of the socket file; the default is 0600.
// Connecting requires write permission.
func WithSocketMode(mode fs.FileMode) ListenOption {
	return listenOption(func(c *listenConfig) { c.mode = mode })
}

// WithSocketGroup sets the group of the socket file, by number: the process has to
// be a member of it or have CAP_CHOWN. Until the file has its group, only the owner can
// connect.
func WithSocketGroup(gid int) ListenOption {
	return listenOption(func(c *listenConfig) { c.group = gid })
}

// WithListenLogger sets the logger for problems with the socket file. The default
// is the logger of the [Server] that serves on the [Listener].
func WithListenLogger(l *slog.Logger) ListenOption {
	return listenOption(func(c *listenConfig) { c.logger = l })
}

// Listen creates the socket of endpoint: unix:///path/csi.sock,
// unix:/path/csi.sock, an absolute path, or tcp://127.0.0.1:0 for tests.
//
// An existing socket is replaced only if it is stale: the connection is refused, or
// not a single byte arrives within two seconds. Otherwise Listen fails, removes nothing
// and names the plugin that serves it, if that says its name. A file that is not a
// socket is never removed. Listen creates nothing else in the directory, which has to
// exist. Concurrent starts exclude each other by a lock (flock) on the directory; another
// process that holds it delays Listen by five seconds. It blocks for some seconds at most, for 30 if the file system hangs. Call
// [Server.Serve] immediately: until then another process that starts finds the socket
// silent, and replaces it as stale.
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

// ListenFile returns a Listener for a socket that listens already, such as one that
// systemd passes: os.NewFile(3, "csi"). It may be a unix socket or one of the loopback.
// Its file belongs to the process that created it: Close does not remove it. Like
// [net.FileListener] it duplicates f, which the caller still has to close. The error
// is an [*Error].
func ListenFile(f *os.File) (*Listener, error) {
	if f == nil { // os.NewFile returns that for an invalid descriptor
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

// bindWithTimeout is bindUnix with a timeout for a file system that hangs: no signal
// interrupts that, and a start that fails with a reason is better than one that is
// silent. A socket that is created after the timeout is removed again.
func bindWithTimeout(path string, c listenConfig) (net.Listener, fs.FileInfo, error) {
	type bound struct {
		l   net.Listener
		own fs.FileInfo
		err error
	}
	done, expired := make(chan bound), make(chan struct{})
	go func() {
		l, own, err := bindUnix(path, c)
		select {
		case done <- bound{l, own, err}:
		case <-expired:
			if err == nil {
				_ = unlinkOwn(path, own) // or the next Listen would find it silent
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
		close(expired)
		return nil, nil, fmt.Errorf("the file system of %s has not responded for %v", socketDir(path), c.listenTimeout)
	}
}

// bindUnix creates the socket at path and returns it with its file.
func bindUnix(path string, c listenConfig) (net.Listener, fs.FileInfo, error) {
	// Two processes that start concurrently would both find the old socket stale, and
	// the slower one would unlink the new socket of the faster one. The lock is
	// on the directory itself, because the specification does not allow a plugin to
	// create anything else next to its socket.
	//
	// Every process that can read the directory can hold the lock. After lockTimeout that is no other
	// start which may still replace the socket, and this one continues.
	unlock, err := lockDir(socketDir(path), c.lockTimeout)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		unlock, err = func() {}, nil
	}
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
	// net would unlink by name, even another process's file.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	own, err := setGroupAndMode(path, c)
	if err != nil {
		return nil, nil, errors.Join(err, os.Remove(path), l.Close())
	}
	return l, own, nil
}

// initialMode is the mode that bind creates the file with. The file does not have its
// group yet: the kernel does not take it from the socket.
func (c listenConfig) initialMode() fs.FileMode {
	if c.group >= 0 {
		return c.mode & 0o700
	}
	return c.mode
}

// setGroupAndMode sets the group of a new socket file and then its mode.
func setGroupAndMode(path string, c listenConfig) (fs.FileInfo, error) {
	if c.group >= 0 {
		if err := os.Lchown(path, -1, c.group); err != nil {
			return nil, err
		}
	}
	own, err := os.Lstat(path)
	if err == nil && own.Mode().Perm() != c.mode {
		// This only adds bits: those removed by the umask, those withheld until the
		// group was set, or all where the system cannot set the mode in advance.
		err = os.Chmod(path, c.mode)
	}
	return own, err
}
