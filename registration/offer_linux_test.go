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

// newAt returns a Registrar in a directory of its own that is short enough for
// sockets, as Serve would have it.
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
		if err := r.leave(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// register asks and says yes, as kubelet does.
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

// However long the Registrar's own step takes, between making the socket and noting
// that it did: what kubelet says meanwhile is not lost.
func TestKubeletIsFaster(t *testing.T) {
	r := newAt(t)
	if !r.hold(t.Context(), false) {
		t.Fatal(r.Status())
	}
	before, err := os.Lstat(r.path)
	if err != nil {
		t.Fatal(err)
	}
	// The step waits for the end of the socket before: until kubelet has spoken about
	// the new one, or has had no answer for a while.
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
	if !r.hold(t.Context(), true) {
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

// The dead socket goes, and another one gets the number of its inode, between the
// question and the answer: it is not the same file.
func TestNumberOfADeadSocket(t *testing.T) {
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
	found, err := r.inTheWay(t.Context(), d, false)
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
		t.Skip("the file system has not used the number again")
	}
	if s, err := r.put(d, found); !errors.Is(err, errChanged) {
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

// Drivers that start at once meet at the lock of the directory. That is no obstacle
// to tell of, nor worth half a second.
func TestLockOfAnotherDriver(t *testing.T) {
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
	if !r.hold(hookedContext{t.Context(), sync.OnceFunc(unlock)}, false) {
		t.Errorf("status %+v", r.Status())
	}
}
