package csiserver_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dir is a short directory: t.TempDir may leave no room for a socket's name.
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "csikit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

func listen(t *testing.T, endpoint string, opts ...csiserver.ListenOption) *csiserver.Listener {
	t.Helper()
	l, err := csiserver.Listen(endpoint, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestListenForms(t *testing.T) {
	for _, tt := range []struct{ name, prefix string }{
		{"unix with three slashes", "unix://"}, {"unix", "unix:"}, {"bare path", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(dir(t), "csi.sock")
			l := listen(t, tt.prefix+path)
			if got := l.Addr().String(); got != path {
				t.Errorf("address %s, want %s", got, path)
			}
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			for range 2 {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket file is still there: %v", err)
			}
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v", err)
			}
		})
	}
	t.Run("tcp", func(t *testing.T) {
		l := listen(t, "tcp://127.0.0.1:0")
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

// The way through a symbolic link and back up is the kernel's to find: by name it
// leads elsewhere, where no client looks.
func TestListenFollowsTheKernelsWay(t *testing.T) {
	d := dir(t)
	if err := errors.Join(os.MkdirAll(d+"/a/b", 0o700), os.Symlink(d+"/a/b", d+"/l")); err != nil {
		t.Fatal(err)
	}
	for endpoint, file := range map[string]string{"/l/../csi.sock": "/a/csi.sock", "/l/csi.sock": "/a/b/csi.sock", "//l/./x.sock": "/a/b/x.sock"} {
		l := listen(t, "unix://"+d+endpoint)
		start(t, newServer(t), l).probe()
		if !exists(d + file) {
			t.Errorf("%s is not at %s", endpoint, file)
		}
		if err := l.Close(); err != nil || exists(d+file) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	d := dir(t)
	for _, tt := range []struct{ name, endpoint, text string }{
		{"empty", "", "endpoint is empty"},
		{"relative", "csi.sock", "not an endpoint"},
		{"directory", "unix://" + d + "/", "names a directory"},
		{"parent", d + "/..", "names a directory"},
		{"relative unix", "unix:csi.sock", "not an endpoint"},
		{"two slashes", "unix://csi/csi.sock", "unix:///csi/csi.sock"},
		{"other scheme", "http://x", "not an endpoint"},
		{"abstract", "unix:@csi", "not an endpoint"},
		{"tcp for all", "tcp://0.0.0.0:0", "loopback"},
		{"tcp by name", "tcp://example.com:1", "loopback"},
		{"tcp without port", "tcp://127.0.0.1", "missing port"},
		{"zero byte", "/csi\x00.sock", "zero byte"},
		{"no directory", "unix://" + d + "/none/csi.sock", "no such file"},
		{"too long", "unix:///" + strings.Repeat("x", csiserver.SunPathMax), "use a shorter one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := csiserver.Listen(tt.endpoint)
			var e *csiserver.Error
			if !errors.As(err, &e) || e.Op != "listen" || e.Object != tt.endpoint || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %q", err, tt.text)
			}
		})
	}
	t.Run("longest path", func(t *testing.T) {
		path := filepath.Join(d, strings.Repeat("x", csiserver.SunPathMax-len(d)-1))
		listen(t, path)
	})
	t.Run("socket mode", func(t *testing.T) {
		if _, err := csiserver.Listen(d+"/x", csiserver.WithSocketMode(0o4600)); err == nil {
			t.Error("no error")
		}
	})
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	d := dir(t)
	file, link, sub := d+"/file", d+"/link", d+"/sub"
	if err := errors.Join(os.WriteFile(file, []byte("precious"), 0o600), os.Symlink(d+"/nowhere", link), os.Mkdir(sub, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, sub} {
		if _, err := csiserver.Listen(path); err == nil || !strings.Contains(err.Error(), "not a socket") {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file now holds %q", b)
	}
}

// abandon makes a socket and lets it lie, as a killed process does.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}

func TestListenReplacesStaleSocket(t *testing.T) {
	d := dir(t)
	abandon(t, d+"/csi.sock")
	l := listen(t, "unix://"+d+"/csi.sock")
	if c, err := net.Dial("unix", l.Addr().String()); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	// The specification allows nothing but the socket.
	if es, err := os.ReadDir(d); err != nil || len(es) != 1 {
		t.Errorf("the directory holds %v (%v)", es, err)
	}
}

func TestListenReplacesSilentSocket(t *testing.T) {
	path := dir(t) + "/csi.sock"
	// Connections succeed, as with a process that was killed while a thread of
	// it hangs in the kernel, but nothing answers.
	silent, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.(*net.UnixListener).SetUnlinkOnClose(false)
	listen(t, path, csiserver.WithAnswerTimeout(50*time.Millisecond))
}

// An owner that hangs up because it is about to end is no more than a stale
// socket once it is gone.
func TestListenReplacesSocketOfPluginThatEnds(t *testing.T) {
	path := dir(t) + "/csi.sock"
	ending, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ending.(*net.UnixListener).SetUnlinkOnClose(false)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ending.Close()
	wg.Go(func() {
		c, err := ending.Accept()
		if err != nil {
			return
		}
		c.Read(make([]byte, 1024))
		ending.Close()
		c.Close()
	})
	listen(t, path)
}

func TestListenRefusesLiveSocket(t *testing.T) {
	path := dir(t) + "/csi.sock"
	p := start(t, newServer(t), listen(t, path))
	_, err := csiserver.Listen(path)
	if err == nil || !strings.Contains(err.Error(), `already served by plugin "test.csikit.dev", version "v1"`) {
		t.Error(err)
	}
	// The refusal did no harm.
	p.probe()
}

// unavailable is the Identity service of a plugin that is still starting.
type unavailable struct {
	csi.UnimplementedIdentityServer
}

func (unavailable) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return nil, status.Error(codes.Unavailable, "still starting")
}

// hangUp accepts connections, reads at most n bytes of each and closes it.
func hangUp(l net.Listener, n int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Read(make([]byte, n))
		c.Close()
	}
}

// Whatever shows a sign of life keeps its socket.
func TestListenRefusesOtherServers(t *testing.T) {
	notCSI := grpc.NewServer()
	starting := grpc.NewServer()
	csi.RegisterIdentityServer(starting, unavailable{})
	web := &http.Server{}
	for _, tt := range []struct {
		name  string
		serve func(net.Listener)
		text  string
	}{
		{"gRPC without CSI", func(l net.Listener) { notCSI.Serve(l) }, "no CSI plugin, or does not return its name (GetPluginInfo: rpc error: code = Unimplemented"},
		{"plugin that is not ready", func(l net.Listener) { starting.Serve(l) }, "no CSI plugin, or does not return its name (GetPluginInfo: rpc error: code = Unavailable desc = still starting"},
		{"HTTP", func(l net.Listener) { web.Serve(l) }, "no CSI plugin, or does not return its name (GetPluginInfo: "},
		{"hangs up", func(l net.Listener) { hangUp(l, 1024) }, "a process that closes the connection"},
		// Unread bytes turn the close into a reset.
		{"hangs up unread", func(l net.Listener) { hangUp(l, 1) }, "a process that closes the connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := dir(t) + "/csi.sock"
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer l.Close()
			wg.Go(func() { tt.serve(l) })
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := csiserver.Listen(path); err == nil || !strings.Contains(err.Error(), "already served by ") || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %q", err, tt.text)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it lost its socket (%v)", err)
			}
		})
	}
	notCSI.Stop()
	starting.Stop()
	web.Close()
}

func TestListenAtOnce(t *testing.T) {
	path := dir(t) + "/csi.sock"
	abandon(t, path)
	const n = 8
	var wg sync.WaitGroup
	errs := make(chan error, n)
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	for range n {
		s := newServer(t)
		wg.Go(func() {
			l, err := csiserver.Listen(path)
			errs <- err
			if err != nil {
				return
			}
			served.Go(func() { s.Serve(ctx, l) })
		})
	}
	wg.Wait()
	won := 0
	for range n {
		if <-errs == nil {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d of %d have the socket", won, n)
	}
}

func TestSocketMode(t *testing.T) {
	for _, tt := range []struct {
		opts []csiserver.ListenOption
		want fs.FileMode
	}{
		{nil, 0o600},
		{[]csiserver.ListenOption{csiserver.WithSocketMode(0o666)}, 0o666}, // the umask does not matter
		{[]csiserver.ListenOption{csiserver.WithSocketMode(0o660)}, 0o660},
	} {
		path := dir(t) + "/csi.sock"
		listen(t, path, tt.opts...)
		if i, err := os.Lstat(path); err != nil || i.Mode() != fs.ModeSocket|tt.want {
			t.Errorf("mode %v (%v), want %v", i.Mode(), err, tt.want)
		}
	}
}

func TestCloseSparesSuccessor(t *testing.T) {
	path := dir(t) + "/csi.sock"
	old := listen(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	successor := listen(t, path)
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the successor lost its socket: %v", err)
	}
	c.Close()
	if err := successor.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseWithoutDirectory(t *testing.T) {
	d := dir(t)
	l := listen(t, d+"/csi.sock")
	if err := os.RemoveAll(d); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
