package csiserver

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestListenTakesTheLock holds two starts on one socket apart. Every process that can read
// the directory can hold its lock: a start does not wait for ever.
func TestListenTakesTheLock(t *testing.T) {
	d := t.TempDir()
	unlock, err := lockDir(d, 0)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	l, err := Listen(d+"/s", WithLockTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(begin); waited < 100*time.Millisecond {
		t.Errorf("waited for the lock for %v", waited)
	}
	unlock()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if unlock, err = lockDir(d, 0); err != nil {
		t.Fatalf("the lock was kept: %v", err)
	}
	unlock()
}

// TestSocketModeFromTheFirstMoment looks at the file as bind leaves it, before
// anything could correct it. The umask is the process's, so this test must not
// run in parallel with others.
func TestSocketModeFromTheFirstMoment(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := t.TempDir() + "/s"
	for _, tt := range []struct {
		config listenConfig
		want   fs.FileMode
	}{
		{listenConfig{mode: 0o600, group: -1}, 0o600},
		{listenConfig{mode: 0o660, group: -1}, 0o660},
		{listenConfig{mode: 0o660, group: 0}, 0o600}, // the group comes first
	} {
		lc := net.ListenConfig{Control: socketMode(tt.config.initialMode())}
		l, err := lc.Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if i, err := os.Lstat(path); err != nil || i.Mode() != fs.ModeSocket|tt.want {
			t.Errorf("%+v: mode %v (%v)", tt.config, i.Mode(), err)
		}
		l.Close()
	}
}

// TestInodeIsNotReused holds the kernel to what unlinkOwn builds on: as long as
// a socket is open, no new file gets the inode number of its deleted file.
func TestInodeIsNotReused(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if now, err := os.Lstat(path); err != nil || os.SameFile(own, now) {
			t.Fatalf("the number was reused (%v)", err)
		}
	}
}

// TestListenLeavesOtherSocketTypesAlone is about /dev/log and its like.
func TestListenLeavesOtherSocketTypesAlone(t *testing.T) {
	for _, tt := range []struct {
		network string
		listen  func(path string) (io.Closer, error)
	}{
		{"unixgram", func(path string) (io.Closer, error) { return net.ListenPacket("unixgram", path) }},
		{"unixpacket", func(path string) (io.Closer, error) { return net.Listen("unixpacket", path) }},
	} {
		t.Run(tt.network, func(t *testing.T) {
			path := t.TempDir() + "/s"
			other, err := tt.listen(path)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "not of type stream") {
				t.Errorf("got %v", err)
			}
			c, err := net.Dial(tt.network, path)
			if err != nil {
				t.Fatalf("it lost its socket: %v", err)
			}
			c.Close()
		})
	}
}

func TestListenReplacesStaleDatagramSocket(t *testing.T) {
	path := t.TempDir() + "/s"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// A dead process with a thread in the kernel has no room left in its backlog
// once kubelet has probed it for a while.
func TestListenReplacesFullSocket(t *testing.T) {
	path := t.TempDir() + "/s"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	l, err := Listen(path, WithAnswerTimeout(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestListenReplacesDyingSocket lets the owner die with the question in its
// backlog, which resets the connection.
func TestListenReplacesDyingSocket(t *testing.T) {
	path := t.TempDir() + "/s"
	dying, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dying.SetUnlinkOnClose(false)
	raw, err := dying.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer dying.Close()
		// Waits for a connection without taking it.
		if err := raw.Control(func(fd uintptr) {
			pending := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(pending, 10_000)
			for err == unix.EINTR {
				n, err = unix.Poll(pending, 10_000)
			}
			if n != 1 {
				t.Errorf("%d connections (%v)", n, err)
			}
		}); err != nil {
			t.Error(err)
		}
	})
	l, err := Listen(path, WithAnswerTimeout(time.Minute))
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestRemoveStaleSocketRemovesNothingUnprobed uses up all descriptors: then a socket cannot
// be probed.
func TestRemoveStaleSocketRemovesNothingUnprobed(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err = removeStaleSocket(path, time.Minute)
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func TestCloseSaysThatItLeavesTheSocket(t *testing.T) {
	for closed := false; !closed; { // one that had no time to see the lock blames the file system
		closed = closeWhileLocked(t)
	}
}

func closeWhileLocked(t *testing.T) (sawLock bool) {
	d := t.TempDir()
	l, err := Listen(d + "/s")
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := lockDir(d, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for range 2 {
		var e *Error
		if err = l.Close(); !errors.As(err, &e) || e.Op != "close" || !strings.Contains(err.Error(), "socket left in place") {
			t.Fatalf("got %v", err)
		}
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("still listening: %v", err)
	}
	return errors.Is(err, syscall.EWOULDBLOCK)
}

// silentListener has a client that connects and stays silent, for which gRPC
// waits.
type silentListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *silentListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *silentListener) Close() error { close(l.done); return nil }

func (l *silentListener) Addr() net.Addr { return &net.UnixAddr{Name: "silent", Net: "unix"} }

// TestServeDoesNotWaitForTheLock has another process hold the directory while
// Serve stops.
func TestServeDoesNotWaitForTheLock(t *testing.T) {
	for _, drain := range []time.Duration{0, 3 * time.Second} {
		t.Run(drain.String(), func(t *testing.T) {
			d := t.TempDir()
			path := d + "/s"
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			own, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			unlock, err := lockDir(d, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unlock()
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Info{Name: "test.csikit.dev", VendorVersion: "v1"}, WithDrainTimeout(drain))
				if err != nil {
					t.Fatal(err)
				}
				silent := &silentListener{conns: make(chan net.Conn), done: make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan error)
				go func() { served <- s.Serve(ctx, newUnixListener(silent, path, own, listenConfig{})) }()
				client, server := net.Pipe()
				defer client.Close()
				silent.conns <- server
				synctest.Wait()
				cancel()
				stop := time.Now()
				err = <-served
				if took := time.Since(stop); took > drain+time.Second {
					t.Errorf("Serve took %v", took)
				}
				if !errors.Is(err, syscall.EWOULDBLOCK) || !strings.Contains(err.Error(), "socket left in place") {
					t.Errorf("got %v", err)
				}
			})
			if _, err := os.Lstat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSocketGroup(t *testing.T) {
	gid := 4711
	if os.Chown(t.TempDir(), -1, gid) != nil {
		gid = os.Getgid() // who is not root has no other
	}
	path := t.TempDir() + "/s"
	l, err := Listen(path, WithSocketGroup(gid), WithSocketMode(0o660))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if i, err := os.Lstat(path); err != nil || i.Mode() != fs.ModeSocket|0o660 || i.Sys().(*syscall.Stat_t).Gid != uint32(gid) {
		t.Errorf("the file is %v (%v)", i, err)
	}
}
