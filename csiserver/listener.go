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
// [Server.Serve] or for a grpc.Server. Make one with [Listen] or [ListenFile].
//
// While somebody waits in Accept, it sees within five seconds that its file is gone
// (an administrator cleans up, a directory is mounted over it) and makes it anew:
// nobody finds the plugin without it. When another process serves there by then, it
// gives way, and Accept fails with an [*Error] that names who it is.
type Listener struct {
	path   string // of the socket file, "" without one to look after
	config listenConfig
	close  func() error

	mu         sync.Mutex
	lis        net.Listener
	own        fs.FileInfo // the file of lis
	recreating bool        // own is gone, and Accept is making another one
	closed     bool
	reported   string // last
}

func newListener(l net.Listener) *Listener {
	return &Listener{lis: l, close: sync.OnceValue(l.Close)}
}

// newUnixListener makes a Listener of lis, whose file at path is own.
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
		// Connections prove that the file is there: it is looked after when none
		// come. If this fails, because lis is closed, so does Accept.
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
// longer the one that the Listener made. It waits for half a second at most for
// another process that is starting in the same directory, or for a file system that
// hangs; then it leaves the file in place, for the next Listen to replace, and says
// so. Calling it again changes nothing and returns the same. The error is an [*Error].
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

	// The file goes first: while the socket is open the kernel keeps its inode, so
	// its number cannot have been given to somebody else's file.
	var err error
	if !recreating { // then it has gone, and Accept removes the one it makes
		err = unlinkWithTimeout(l.path, own)
	}
	if err = errors.Join(err, lis.Close()); err != nil {
		return &Error{Op: "close", Object: "unix://" + l.path, Err: err}
	}
	return nil
}

// recreateIfMissing makes the socket anew if its file is gone. Its error is final.
func (l *Listener) recreateIfMissing() error {
	old, own := l.current()
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(own, now) {
		return nil
	}
	if !l.beginRecreate(old) {
		return nil // the next Accept tells why
	}
	// The old socket stays open meanwhile, so that its file is still known by its
	// number. mu is not held: Close must not wait for a file system or a peer.
	next, own, err := bindUnix(l.path, l.config)
	if closed := l.endRecreate(next, own); closed {
		if next != nil {
			err = errors.Join(unlinkOwn(l.path, own), next.Close())
		}
		return errors.Join(net.ErrClosed, err)
	}
	switch served := (*servedError)(nil); {
	case errors.As(err, &served):
		return fmt.Errorf("the socket file was replaced: now served by %s", served.who)
	case err != nil:
		l.report(slog.LevelError, "the socket file is gone and cannot be made anew yet: nobody can connect", err)
		return nil
	}
	l.report(slog.LevelWarn, "the socket file was gone and has been made anew", nil)
	_ = old.Close() // nobody could reach it any more
	return nil
}

// beginRecreate makes the file the business of one Accept instead of Close's.
func (l *Listener) beginRecreate(old net.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.recreating || l.lis != old {
		return false
	}
	l.recreating = true
	return true
}

// endRecreate takes the new socket, if there is one, unless the Listener is closed.
func (l *Listener) endRecreate(next net.Listener, own fs.FileInfo) (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recreating = false
	if next != nil && !l.closed {
		l.lis, l.own = next, own
	}
	return l.closed
}

// report logs a failure once, however often it is met.
func (l *Listener) report(level slog.Level, text string, err error) {
	l.mu.Lock()
	logger, news := l.config.logger, fmt.Sprint(text, err)
	known := err != nil && news == l.reported
	l.reported = news
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

// setDefaultLogger sets where trouble with the file is reported, unless that is set.
func (l *Listener) setDefaultLogger(logger *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config.logger == nil {
		l.config.logger = logger
	}
}

// unlinkWithTimeout is unlinkOwn, given up when the file system hangs: no signal ends
// that, and a process that is to stop has to stop listening all the same.
func unlinkWithTimeout(path string, own fs.FileInfo) error {
	done := make(chan error, 1)
	go func() { done <- unlinkOwn(path, own) }()
	hangs := time.NewTimer(unlinkTimeout)
	defer hangs.Stop()
	select {
	case err := <-done:
		return err
	case <-hangs.C:
		return errors.New("socket left in place: its file system does not answer")
	}
}

// unlinkOwn removes path if it is still the file own.
func unlinkOwn(path string, own fs.FileInfo) error {
	unlock, err := lockDir(socketDir(path), closeTimeout)
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
