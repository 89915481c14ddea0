package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// answerTimeout is how long whoever holds the socket has to answer. A
	// successful connect proves nothing: the kernel accepts connections for a
	// killed process as long as one of its threads hangs in a system call.
	answerTimeout = 2 * time.Second
	// lockTimeout bounds the wait for another process that is starting or
	// stopping on the same socket; that one waits for answerTimeout at most.
	lockTimeout = 5 * time.Second
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
// longer the one that Listen made. Calling it again changes nothing.
func (l *Listener) Close() error { return l.close() }

// Listen makes the socket that endpoint names: unix:///path/csi.sock,
// unix:/path/csi.sock, an absolute path, or tcp://127.0.0.1:0 for tests.
//
// A socket in the way is replaced if nobody answers GetPluginInfo on it within
// two seconds; otherwise Listen fails and names who does. A file that is no
// socket is never removed. Listen creates nothing else in the directory, which
// has to exist. It blocks for some seconds at most.
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
	return &Listener{lis: l, close: sync.OnceValue(func() error {
		// The file goes first: while the socket is open the kernel keeps its
		// inode, so its number cannot have been given to somebody else's file.
		err := unlinkOwn(path, own)
		if err = errors.Join(err, l.Close()); err != nil {
			return &Error{Op: "close", Object: "unix://" + path, Err: err}
		}
		return nil
	})}, nil
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

// whoServes asks the socket at path for its plugin. It returns an empty string
// if nobody answers, and an error if that cannot be told.
func whoServes(path string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := dialPatiently(ctx, path)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission):
		return "", err
	default: // refused, vanished, not a stream, or full until the end
		return "", nil
	}
	first := make(chan net.Conn, 1)
	first <- conn
	client, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			select {
			case c := <-first:
				return c, nil
			default:
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}
		}))
	if err != nil {
		return "", errors.Join(err, conn.Close())
	}
	defer client.Close()
	info, err := csi.NewIdentityClient(client).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	switch code := status.Code(err); code {
	case codes.OK:
		return fmt.Sprintf("plugin %q, version %q", info.GetName(), info.GetVendorVersion()), nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return "", nil
	default:
		return fmt.Sprintf("a gRPC server (GetPluginInfo answers %s)", code), nil
	}
}

// dialPatiently connects to path. A server under load has a full backlog, which
// is not the same as being dead.
func dialPatiently(ctx context.Context, path string) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil || !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unlinkOwn removes path if it is still the file own.
func unlinkOwn(path string, own fs.FileInfo) error {
	unlock, err := lockDir(filepath.Dir(path), lockTimeout)
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
