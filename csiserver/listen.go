package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
)

// A ListenOption changes how [Listen] makes its socket.
type ListenOption interface{ applyListen(*listenConfig) }

type listenConfig struct {
	mode          fs.FileMode
	answerTimeout time.Duration
	lockTimeout   time.Duration
}

type listenOption func(*listenConfig)

func (o listenOption) applyListen(c *listenConfig) { o(c) }

// WithSocketMode sets the permission bits of the socket file, 0600 unless given.
// Connecting takes write permission.
func WithSocketMode(mode fs.FileMode) ListenOption {
	return listenOption(func(c *listenConfig) { c.mode = mode })
}

// A Listener is the socket of a plugin. It is a [net.Listener] for
// [Server.Serve] or for a grpc.Server.
type Listener struct {
	lis   net.Listener
	close func() error
}

// Accept waits for the next connection. After Close it fails with
// [net.ErrClosed].
func (l *Listener) Accept() (net.Conn, error) { return l.lis.Accept() }

// Addr returns the path of the socket, or the TCP address with its real port.
func (l *Listener) Addr() net.Addr { return l.lis.Addr() }

// Close stops listening and removes the socket file, unless the file is no
// longer the one that Listen made. It waits for half a second at most for
// another process that is starting in the same directory; then it leaves the
// file in place, for the next Listen to replace, and says so. Calling it again
// changes nothing and returns the same. The error is an [*Error].
func (l *Listener) Close() error { return l.close() }

// Listen makes the socket that endpoint names: unix:///path/csi.sock,
// unix:/path/csi.sock, an absolute path, or tcp://127.0.0.1:0 for tests.
//
// A socket in the way is replaced only if nobody is behind it: connecting is
// refused, or not a single byte comes within two seconds. Otherwise Listen
// fails, removes nothing and names who serves, as far as that can be told. A
// file that is no socket is never removed. Listen creates nothing else in the
// directory, which has to exist. It blocks for some seconds at most.
//
// The error is an [*Error].
func Listen(endpoint string, opts ...ListenOption) (*Listener, error) {
	c := listenConfig{mode: 0o600, answerTimeout: answerTimeout, lockTimeout: lockTimeout}
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
		return listenUnix(address, c)
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return &Listener{lis: l, close: sync.OnceValue(l.Close)}, nil
}

func listenUnix(path string, c listenConfig) (*Listener, error) {
	// Two processes that start at once would both find the old socket dead, and
	// the slower one would unlink the new socket of the faster one. The lock is
	// on the directory itself, because the specification lets a plugin create
	// nothing next to its socket.
	unlock, err := lockDir(filepath.Dir(path), c.lockTimeout)
	if err != nil {
		return nil, err
	}
	defer unlock()

	if err := clearWay(path, c.answerTimeout); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: socketMode(c.mode)}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	// net would unlink by name, whosever file that is by then.
	l.(*net.UnixListener).SetUnlinkOnClose(false)

	own, err := os.Lstat(path)
	if err == nil && own.Mode().Perm() != c.mode {
		// Only ever adds: the umask took bits away, or the system does not let
		// the mode be set in advance.
		err = os.Chmod(path, c.mode)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return newUnixListener(l, path, own), nil
}

// newUnixListener makes a Listener of l, whose file at path is own.
func newUnixListener(l net.Listener, path string, own fs.FileInfo) *Listener {
	return &Listener{lis: l, close: sync.OnceValue(func() error {
		// The file goes first: while the socket is open the kernel keeps its
		// inode, so its number cannot have been given to somebody else's file.
		err := unlinkOwn(path, own)
		if err = errors.Join(err, l.Close()); err != nil {
			return &Error{Op: "close", Object: "unix://" + path, Err: err}
		}
		return nil
	})}
}

// clearWay makes room for a socket at path, if nothing of value is there.
func clearWay(path string, timeout time.Duration) error {
	// The file may be exchanged while its owner is asked, by a process that
	// knows nothing of the lock.
	for range 3 {
		found, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if found.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("a file that is no socket (%v) is in the way: move it elsewhere, or choose another path", found.Mode())
		}
		who, err := whoServes(path, timeout)
		if err != nil {
			return fmt.Errorf("a socket is in the way and cannot be asked who serves it: %w", err)
		}
		if who != "" {
			return fmt.Errorf("already served by %s: stop that process, or choose another path", who)
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(found, now) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return errors.New("the socket in the way changes all the time: another process keeps making it")
}

// whoServes tells who serves the socket at path. It returns an empty string if
// nobody does, and an error if that cannot be told.
func whoServes(path string, timeout time.Duration) (string, error) {
	err := awaitByte(path, timeout)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		// Either somebody accepted the connection and hung up, or the listener went
		// away with the connection in its backlog. Only then is the next one
		// refused. EOF and reset do not tell: closing with bytes unread resets, and
		// the kernel reports a reset once, perhaps to the write.
		var c net.Conn
		if c, err = net.Dial("unix", path); err == nil {
			c.Close()
			err = io.EOF
		}
	}
	const windowsRefused = syscall.Errno(10061) // WSAECONNREFUSED, for which package syscall has no name
	switch {
	case err == nil:
		return pluginAt(path, timeout), nil
	case errors.Is(err, io.EOF):
		return "something that hangs up: no CSI plugin, or one that is stopping", nil
	case errors.Is(err, syscall.EPROTOTYPE):
		return "something that is no CSI plugin (its socket is not of type stream)", nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, windowsRefused), // nobody listens
		errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.EAGAIN),         // nobody makes room in a full backlog
		errors.Is(err, os.ErrDeadlineExceeded): // nobody says anything
		return "", nil
	default:
		return "", err
	}
}

// http2Preface is what a client of HTTP/2 sends first: the connection preface
// and an empty SETTINGS frame. A server of HTTP/2 answers with its own settings,
// one of HTTP/1 with an error.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// awaitByte connects to path and returns nil once a byte has come back. timeout
// bounds the connect and the wait each, because a connect that had to wait for
// room in the backlog met somebody who accepts.
func awaitByte(path string, timeout time.Duration) error {
	conn, err := dialPatiently(path, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	// If this fails, because the peer has hung up, so does Read.
	_, _ = io.WriteString(conn, http2Preface)
	_, err = conn.Read(make([]byte, 1))
	return err
}

// dialPatiently connects to path. A server under load has a full backlog, which
// is not the same as being dead.
func dialPatiently(path string, timeout time.Duration) (net.Conn, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(deadline) {
			return conn, err
		}
	}
}

// pluginAt names the plugin that serves path, as far as it does so itself.
func pluginAt(path string, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return fmt.Sprintf("something that cannot be asked for its name (%v)", err)
	}
	defer client.Close()
	info, err := csi.NewIdentityClient(client).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Sprintf("something that is no CSI plugin, or does not say which (GetPluginInfo: %v)", err)
	}
	return fmt.Sprintf("plugin %q, version %q", info.GetName(), info.GetVendorVersion())
}

// unlinkOwn removes path if it is still the file own.
func unlinkOwn(path string, own fs.FileInfo) error {
	unlock, err := lockDir(filepath.Dir(path), closeTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		// A socket left behind is replaced by the next Listen; one that is
		// removed from under its server is lost.
		return fmt.Errorf("socket left in place: %w", err)
	}
	defer unlock()
	if now, err := os.Lstat(path); err != nil || !os.SameFile(own, now) {
		return nil
	}
	return os.Remove(path)
}
