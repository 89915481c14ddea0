package csiserver_test

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// until waits for something that happens soon; if it does not, the test times out.
func until(happened func() bool) {
	for !happened() {
		runtime.Gosched()
	}
}

// probes opens a connection to path, as kubelet does, and calls Probe.
func probes(t *testing.T, path string) error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{})
	return err
}

// The plugin is there again after its file, or the whole directory, was deleted.
func TestListenerRecreatesDeletedSocket(t *testing.T) {
	d := dir(t) + "/plugin"
	path := d + "/csi.sock"
	for _, tt := range []struct {
		name    string
		destroy func() error
	}{
		{"file", func() error { return os.Remove(path) }},
		{"stale socket in its place", func() error {
			if err := os.Remove(path); err != nil {
				return err
			}
			abandon(t, path)
			return nil
		}},
		{"directory moved away and back", func() error {
			if err := os.Rename(d, d+"2"); err != nil {
				return err
			}
			return os.Mkdir(d, 0o700)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := errors.Join(os.RemoveAll(d), os.RemoveAll(d+"2"), os.Mkdir(d, 0o700)); err != nil {
				t.Fatal(err)
			}
			book := &logBook{}
			p := start(t, newServer(t, csiserver.WithLogger(book.logger(slog.LevelInfo))),
				listen(t, path, csiserver.WithFileInterval(time.Millisecond), csiserver.WithSocketMode(0o640)))
			p.probe()
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.destroy(); err != nil {
				t.Fatal(err)
			}
			until(func() bool { return probes(t, path) == nil })
			after, err := os.Lstat(path)
			if err != nil || os.SameFile(before, after) || after.Mode().Perm() != 0o640 {
				t.Errorf("the file is %v, %v", after, err)
			}
			p.probe() // who was connected still is
			if err := p.wait(); err != nil {
				t.Error(err)
			}
			if exists(path) {
				t.Error("the new file was left behind")
			}
			if n := len(book.lines(t, "socket file was deleted; recreated")); n != 1 {
				t.Errorf("reported %d times: %s", n, book)
			}
		})
	}
}

// What is in the way and no socket stays there, is reported once, and the plugin
// comes back when it is gone.
func TestListenerWaitsForItsPlace(t *testing.T) {
	path := dir(t) + "/csi.sock"
	book := &logBook{}
	p := start(t, newServer(t, csiserver.WithLogger(book.logger(slog.LevelInfo))), listen(t, path, csiserver.WithFileInterval(time.Millisecond)))
	if err := errors.Join(os.WriteFile(path+"2", []byte("precious"), 0o600), os.Rename(path+"2", path)); err != nil {
		t.Fatal(err)
	}
	const gone = "socket file was deleted and cannot be recreated yet: clients cannot connect"
	until(func() bool { return strings.Contains(book.String(), gone) })
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file holds %q (%v)", b, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	until(func() bool { return probes(t, path) == nil })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if lines := book.lines(t, gone); len(lines) != 1 || lines[0]["level"] != "ERROR" {
		t.Errorf("%s", book)
	}
}

// A live successor keeps the socket, and Serve says who it is.
func TestListenerYields(t *testing.T) {
	path := dir(t) + "/csi.sock"
	old := start(t, newServer(t), listen(t, path, csiserver.WithFileInterval(time.Hour)))
	old.probe()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	successor := start(t, newServer(t), listen(t, path))
	successor.probe()

	third := dir(t) + "/csi.sock"
	yielding := start(t, newServer(t), listen(t, third, csiserver.WithFileInterval(time.Millisecond)))
	yielding.probe()
	if err := os.Rename(path, third); err != nil {
		t.Fatal(err)
	}
	err := <-yielding.done
	yielding.done <- err
	var e *csiserver.Error
	if !errors.As(err, &e) || e.Op != "serve" || !strings.Contains(err.Error(), `replaced: now served by plugin "test.csikit.dev", version "v1"`) {
		t.Errorf("got %v", err)
	}
	if err := probes(t, third); err != nil {
		t.Errorf("the successor lost its socket: %v", err)
	}
}

// Close may be called while the socket is being recreated.
func TestListenerCloseRacesRenewal(t *testing.T) {
	for range 50 {
		path := dir(t) + "/csi.sock"
		l := listen(t, path, csiserver.WithFileInterval(time.Microsecond))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept: %v", err)
			}
		})
		os.Remove(path)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if exists(path) {
			t.Fatal("a socket file was left behind")
		}
	}
}

func TestListenFile(t *testing.T) {
	path := dir(t) + "/csi.sock"
	systemd, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	f, err := systemd.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := csiserver.ListenFile(f)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("address %q", got)
	}
	p := start(t, newServer(t), l)
	p.probe()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if !exists(path) {
		t.Error("another process's file was removed")
	}
}

func TestListenFileRefuses(t *testing.T) {
	plain, err := os.Create(dir(t) + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	open, err := net.ListenTCP("tcp", &net.TCPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	forAll, err := open.File()
	if err != nil {
		t.Fatal(err)
	}
	defer forAll.Close()
	loopback, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer loopback.Close()
	conn, err := net.Dial("tcp", loopback.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	connected, err := conn.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer connected.Close()
	for i, f := range []*os.File{plain, forAll, connected, nil} {
		_, err := csiserver.ListenFile(f)
		var e *csiserver.Error
		if !errors.As(err, &e) || e.Op != "listen" {
			t.Errorf("%d: %v", i, err)
		}
	}
	f, err := loopback.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := csiserver.ListenFile(f)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
