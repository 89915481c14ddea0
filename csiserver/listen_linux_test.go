package csiserver

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestListenTakesTheLock holds two starts on one socket apart.
func TestListenTakesTheLock(t *testing.T) {
	d := t.TempDir()
	unlock, err := lockDir(d, 0)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(d+"/s", WithLockTimeout(time.Millisecond)); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("got %v, %v", l, err)
	}
	unlock()
	l, err := Listen(d + "/s")
	if err != nil {
		t.Fatal(err)
	}
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
	lc := net.ListenConfig{Control: socketMode(0o600)}
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if i, err := os.Lstat(path); err != nil || i.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v (%v)", i.Mode(), err)
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
