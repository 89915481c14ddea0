package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// A Listener is the socket of a plugin. It is a [net.Listener] for
// [Server.Serve] or for a grpc.Server. Create one with [Listen] or [ListenFile].
//
// While Accept waits, it detects within five seconds that the socket file was deleted
// (an administrator cleans up, a directory is mounted over it) and recreates it: clients
// cannot reach the plugin without it. If another process serves at that path by then,
// Accept fails instead, with an [*Error] that names its plugin.
type Listener struct {
	path   string // of the socket file, "" if that is not ours
	config listenConfig
	close  func() error

	mu         sync.Mutex
	lis        net.Listener
	own        fs.FileInfo // the file of lis
	recreating bool        // own was deleted, and Accept is creating another one
	closed     bool
	reported   string // last
}

func newListener(l net.Listener) *Listener {
	return &Listener{lis: l, close: sync.OnceValue(l.Close)}
}

// newUnixListener returns a Listener for lis, whose file at path is own.
func newUnixListener(lis net.Listener, path string, own fs.FileInfo, c listenConfig) *Listener {
	l := &Listener{path: path, config: c, lis: lis, own: own}
	l.close = sync.OnceValue(l.closeUnix)
	return l
}

// Accept waits for the next connection. After Close it fails with
// [net.ErrClosed].
func (l *Listener) Accept() (net.Conn, error) {
	for {
		lis, _ := l.current()
		timed, ok := lis.(interface{ SetDeadline(time.Time) error })
		if !ok || l.path == "" {
			return lis.Accept()
		}
		// Connections prove that the file exists: it is checked when none arrive. If
		// this fails, because lis is closed, so does Accept.
		_ = timed.SetDeadline(time.Now().Add(l.config.fileCheckInterval))
		conn, err := lis.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if err := l.recreateIfMissing(); err != nil {
			return nil, &Error{Op: "accept", Object: "unix://" + l.path, Err: err}
		}
	}
}

// Addr returns the path of the socket, or the TCP address with its real port.
func (l *Listener) Addr() net.Addr {
	lis, _ := l.current()
	return lis.Addr()
}

// Close stops listening and removes the socket file, unless the file is no
// longer the one that the Listener created. It waits for half a second at most for
// another process that is starting in the same directory, or for a file system that
// hangs; then it leaves the file in place, for the next Listen to replace, and returns
// an error. Close is idempotent and returns the same error again, an [*Error].
func (l *Listener) Close() error { return l.close() }

func (l *Listener) current() (net.Listener, fs.FileInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lis, l.own
}

func (l *Listener) closeUnix() error {
	l.mu.Lock()
	l.closed = true
	lis, own, recreating := l.lis, l.own, l.recreating
	l.mu.Unlock()

	// The file is removed first: while the socket is open the kernel keeps its inode,
	// so its number cannot belong to another process's file.
	var err error
	if !recreating { // else it was deleted, and Accept removes the one it creates
		err = unlinkWithTimeout(l.path, own)
	}
	if err = errors.Join(err, lis.Close()); err != nil {
		return &Error{Op: "close", Object: "unix://" + l.path, Err: err}
	}
	return nil
}

// recreateIfMissing creates the socket again if its file was deleted or replaced. Its
// error is final.
func (l *Listener) recreateIfMissing() error {
	old, own := l.current()
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(own, now) {
		return nil
	}
	if !l.beginRecreate(old) {
		return nil // the next Accept returns the reason
	}
	// The old socket stays open meanwhile, so that its inode number is not reused. mu
	// is not held: Close must not wait for a file system or a peer.
	next, own, err := bindUnix(l.path, l.config)
	if closed := l.endRecreate(next, own); closed {
		if next != nil {
			err = errors.Join(unlinkOwn(l.path, own), next.Close())
		}
		return errors.Join(net.ErrClosed, err)
	}
	switch served := (*servedError)(nil); {
	case errors.As(err, &served):
		return fmt.Errorf("socket file was replaced: now served by %s", served.by)
	case err != nil:
		l.report(slog.LevelError, "socket file was deleted and cannot be recreated yet: clients cannot connect", err)
		return nil
	}
	l.report(slog.LevelWarn, "socket file was deleted; recreated", nil)
	_ = old.Close() // no client can reach it
	return nil
}

// beginRecreate transfers the file from Close to one Accept.
func (l *Listener) beginRecreate(old net.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.recreating || l.lis != old {
		return false
	}
	l.recreating = true
	return true
}

// endRecreate installs the new socket, if there is one, unless the Listener is closed.
func (l *Listener) endRecreate(next net.Listener, own fs.FileInfo) (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recreating = false
	if next != nil && !l.closed {
		l.lis, l.own = next, own
	}
	return l.closed
}

// report logs a repeated failure once.
func (l *Listener) report(level slog.Level, text string, err error) {
	l.mu.Lock()
	logger, current := l.config.logger, fmt.Sprint(text, err)
	known := err != nil && current == l.reported
	l.reported = current
	l.mu.Unlock()
	if known || logger == nil {
		return
	}
	attrs := []slog.Attr{slog.String("endpoint", "unix://"+l.path)}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	logger.LogAttrs(context.Background(), level, text, attrs...)
}

// setDefaultLogger sets the logger for problems with the file, unless one is set.
func (l *Listener) setDefaultLogger(logger *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config.logger == nil {
		l.config.logger = logger
	}
}

// unlinkWithTimeout is unlinkOwn with a timeout for a file system that hangs: no signal
// interrupts that, and a process that stops has to stop listening all the same.
func unlinkWithTimeout(path string, own fs.FileInfo) error {
	done := make(chan error, 1)
	go func() { done <- unlinkOwn(path, own) }()
	hangs := time.NewTimer(unlinkTimeout)
	defer hangs.Stop()
	select {
	case err := <-done:
		return err
	case <-hangs.C:
		return errors.New("socket left in place: its file system does not respond")
	}
}

// unlinkOwn removes path if it is still the file own.
func unlinkOwn(path string, own fs.FileInfo) error {
	unlock, err := lockDir(socketDir(path), closeTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		// The next Listen replaces a stale socket; a socket removed while another
		// process serves it would be lost.
		return fmt.Errorf("socket left in place: %w", err)
	}
	defer unlock()
	if now, err := os.Lstat(path); err != nil || !os.SameFile(own, now) {
		return nil
	}
	return os.Remove(path)
}
