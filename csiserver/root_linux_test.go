package csiserver_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// freezable mounts a file system. After freeze, a process that writes to it waits in the
// kernel, where no signal reaches, until thaw or the end of the test.
func freezable(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "mke2fs")
	image, dir := t.TempDir()+"/image", t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mke2fs", "-q", "-t", "ext4", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dev, err := loopdev.Attach(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Detach(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount(dev.Path, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		until(func() bool { // what hung closes its directory a little later
			err = unix.Unmount(dir, 0)
			return !errors.Is(err, unix.EBUSY)
		})
		if err != nil {
			t.Error(err)
		}
	})
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878
	freeze = func() {
		t.Helper()
		if err := unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0); err != nil {
			t.Fatal(err)
		}
	}
	thaw = func() { _ = unix.IoctlSetInt(int(f.Fd()), fiThaw, 0) }
	t.Cleanup(func() {
		thaw()
		f.Close()
	})
	return dir, freeze, thaw
}

// A call that is stuck in the kernel does not hold up the stop: the socket goes
// away at once, Serve returns and names the call, and a successor can start while
// it is still stuck.
func TestServeEndsWithCallStuckInTheKernel(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	freeze()
	entered, returned := make(chan struct{}), make(chan error, 1)
	const drain = 50 * time.Millisecond
	p := serve(t, csiserver.WithDrainTimeout(drain), csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
		close(entered)
		returned <- os.Mkdir(dir+"/pod", 0o700)
		return nil
	}}))
	path := strings.TrimPrefix(p.conn.Target(), "unix://")
	answer := make(chan error, 1)
	go func() {
		_, err := p.node().NodeUnpublishVolume(context.Background(), unpublishRequest)
		answer <- err
	}()
	<-entered
	p.probe() // the others do not notice
	err := p.wait()
	if err == nil || !strings.Contains(err.Error(), "calls aborted after the drain timeout of 50ms: NodeUnpublishVolume (request_id ") {
		t.Errorf("Serve: %v", err)
	}
	if exists(path) {
		t.Error("the socket is still there")
	}
	// The outcome is not known, and kubelet has to see that.
	if code := status.Code(<-answer); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the client got %v", code)
	}
	successor := start(t, newServer(t), listen(t, path))
	successor.probe()
	select {
	case err := <-returned:
		t.Errorf("mkdir has returned (%v): it was not stuck", err)
	default:
	}
	thaw()
	if err := <-returned; err != nil {
		t.Error(err)
	}
}

// A start on a file system that hangs fails with a reason, and leaves no socket
// behind that no process serves.
func TestListenOnAFileSystemThatHangs(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	path := dir + "/csi.sock"
	freeze()
	if l, err := csiserver.Listen("unix://"+path, csiserver.WithListenTimeout(50*time.Millisecond)); err == nil {
		l.Close()
		t.Fatal("listens on a frozen file system")
	} else if !strings.Contains(err.Error(), "has not responded for 50ms") {
		t.Error(err)
	}
	thaw()
	// Whether what hung is before its end or after it: a successor gets the place.
	p := start(t, newServer(t), listen(t, path))
	p.probe()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if exists(path) {
		t.Error("a socket is left")
	}
}

// The socket itself may be on a file system that hangs. It is no longer served
// then, although its file stays.
func TestServeEndsWithSocketStuckInTheKernel(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	path := dir + "/csi.sock"
	p := start(t, newServer(t), listen(t, path))
	p.probe()
	freeze()
	if err := p.wait(); err == nil || !strings.Contains(err.Error(), "socket left in place: its file system does not respond") {
		t.Errorf("Serve: %v", err)
	}
	if c, err := net.Dial("unix", path); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connect: %v, %v", c, err)
	}
	thaw()
	until(func() bool { return !exists(path) }) // what was blocked continues
}
