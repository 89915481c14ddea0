package registration

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// newAt returns a Registrar, prepared as by Serve, in a directory whose path is short
// enough for sockets.
func newAt(t *testing.T) *Registrar {
	t.Helper()
	dir, err := os.MkdirTemp("", "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r, err := New(Config{DriverName: "d", Endpoint: "/csi.sock", KubeletEndpoint: "/csi.sock", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r.server = r.newServer()
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// register calls GetInfo and reports success, as kubelet does.
func register(ctx context.Context, path string) error {
	client, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
	if err != nil {
		return err
	}
	defer client.Close()
	var info pluginInfo
	if err := client.Invoke(ctx, methodGetInfo, empty{}, &info); err != nil {
		return err
	}
	return client.Invoke(ctx, "/"+serviceName+"/NotifyRegistrationStatus", encoded("\x08\x01"), empty{})
}

type slowListener struct {
	net.Listener
	release chan struct{}
}

func (l slowListener) Close() error {
	<-l.release
	return l.Listener.Close()
}

// However long the Registrar takes between creating the socket and recording that: what
// kubelet reports meanwhile is not lost.
func TestKubeletCallsImmediately(t *testing.T) {
	r := newAt(t)
	if !r.reconcile(t.Context(), false) {
		t.Fatal(r.Status())
	}
	before, err := os.Lstat(r.path)
	if err != nil {
		t.Fatal(err)
	}
	// reconcile waits for the close of the previous socket, which is delayed until kubelet
	// has reported on the new one, or has had no response for a while.
	slow := *r.sock
	slow.lis = slowListener{r.sock.lis, make(chan struct{})}
	r.sock = &slow
	spoken := make(chan error, 1)
	go func() {
		defer close(slow.lis.(slowListener).release)
		for {
			if now, err := os.Lstat(r.path); err == nil && !os.SameFile(now, before) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		spoken <- register(ctx, r.path)
	}()
	if !r.reconcile(t.Context(), true) {
		t.Fatal(r.Status())
	}
	if err := <-spoken; err != nil {
		if err := register(t.Context(), r.path); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.Status(); s.State != Registered {
		t.Errorf("kubelet has registered the driver, and the status is %+v", s)
	}
}

// Between the probe and the replacement, the stale socket is removed and its inode number
// is reused by another socket: that is not the same file.
func TestReusedInodeNumber(t *testing.T) {
	r := newAt(t)
	live := func() *net.UnixListener {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	live().Close()
	if err := os.Chtimes(r.path, time.Time{}, time.Now().Add(-time.Hour)); err != nil { // of before the reboot
		t.Fatal(err)
	}
	d, err := openDirectory(filepath.Dir(r.path))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	found, err := r.replaceable(t.Context(), d, false)
	if err != nil || found == nil {
		t.Fatal(found, err)
	}
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	other := live()
	defer os.Remove(r.path)
	defer other.Close()
	if now, err := os.Lstat(r.path); err != nil || !os.SameFile(now, found) {
		t.Skip("the file system has not reused the inode number")
	}
	if s, err := r.placeSocket(d, found); !errors.Is(err, errChanged) {
		t.Errorf("put in place of a live socket: %v, %v", s, err)
	}
	if c, err := net.Dial("unix", r.path); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

type hookedContext struct {
	context.Context
	waiting func()
}

func (c hookedContext) Done() <-chan struct{} {
	c.waiting()
	return c.Context.Done()
}

// Drivers that start concurrently contend for the lock of the directory. That is not
// reported and does not cost half a second.
func TestDirectoryLockedByAnotherDriver(t *testing.T) {
	r := newAt(t)
	d, err := openDirectory(filepath.Dir(r.path))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	unlock, err := d.tryLock()
	if err != nil {
		t.Fatal(err)
	}
	if !r.reconcile(hookedContext{t.Context(), sync.OnceFunc(unlock)}, false) {
		t.Errorf("status %+v", r.Status())
	}
}
