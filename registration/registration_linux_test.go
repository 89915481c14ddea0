package registration_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/registration"
	"golang.org/x/sys/unix"
)

// regSocket is the registration socket of the driver in dir.
func regSocket(dir string) string { return filepath.Join(dir, name+"-reg.sock") }

func TestRegisters(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	i := serveDriver(t, dir, "node")
	i.await(registration.Registered)
	if got := k.registered(name); got != "node" {
		t.Errorf("node ID %q", got)
	}
	if err := i.Check(t.Context()); err != nil {
		t.Error(err)
	}
	s := i.Status()
	if s.Socket != regSocket(dir) || s.Err != nil || s.GetInfoCalls != 1 || s.LastGetInfo.IsZero() || s.SocketsCreated != 1 || s.Since.IsZero() {
		t.Errorf("status %+v", s)
	}
	if f, err := os.Lstat(s.Socket); err != nil || f.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v (%v)", f.Mode(), err)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
		t.Errorf("the directory holds %v (%v)", es, err)
	}
	i.end()
	k.await("")
	if s := i.Status(); s.State != registration.Stopped || s.Err == nil {
		t.Errorf("status %+v", s)
	}
	events, _ := k.past()
	if want := []string{"create " + name + "-reg.sock", "remove " + name + "-reg.sock"}; !slices.Equal(events, want) {
		t.Errorf("kubelet saw %q, want %q", events, want)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 0 {
		t.Errorf("left behind: %v (%v)", es, err)
	}
	if err := i.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), "served already") {
		t.Errorf("second Serve: %v", err)
	}
}

// kubernetes-csi/csi-lib-utils#162: the sidecar waits thirty seconds for the driver and
// exits. A driver that is not ready must not be registered either: kubelet calls it
// immediately, and backs off after each failure.
func TestWaitsForTheDriver(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	d := &driver{nodeID: "node"}
	d.notReady.Store(true)
	d.name.Store("other.csikit.dev")
	var ready atomic.Bool
	i := newInstance(t, registration.Config{
		Endpoint: filepath.Join(filepath.Dir(dir), "node.sock"), Dir: dir,
		Ready: func(context.Context) (bool, error) { return ready.Load(), nil },
	}).start()
	waits := func(text string) {
		t.Helper()
		await(t, text, func() bool {
			s := i.Status()
			return s.State == registration.AwaitingDriver && strings.Contains(s.Err.Error(), text)
		})
		if es, err := os.ReadDir(dir); err != nil || len(es) != 0 {
			t.Errorf("too early: %v (%v)", es, err)
		}
	}
	waits("no such file")
	d.serve(t, dir)
	waits(`returns the name "other.csikit.dev"`)
	d.name.Store(name)
	waits("not ready according to Probe")
	d.notReady.Store(false)
	waits("waiting for the driver: not ready")
	ready.Store(true)
	i.await(registration.Registered)
	// Checked only once: kubelet calls the driver from now on.
	ready.Store(false)
	d.notReady.Store(true)
	os.Remove(regSocket(dir))
	await(t, "a new socket", func() bool { return i.Status().SocketsCreated == 2 })
	i.await(registration.Registered)
	if events, _ := k.past(); len(events) != 3 {
		t.Errorf("kubelet saw %q", events)
	}
}

// A Ready that hangs, as on a stale mount, is called once, is reported, and does not
// delay the end of Serve.
func TestReadyHangs(t *testing.T) {
	dir := newDir(t)
	d := &driver{nodeID: "node"}
	release := make(chan struct{})
	var calls atomic.Int64
	i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir, Ready: func(context.Context) (bool, error) {
		calls.Add(1)
		<-release
		return true, nil
	}}).start()
	await(t, "a status about Ready", func() bool {
		s := i.Status()
		return s.State == registration.AwaitingDriver && strings.Contains(s.Err.Error(), "still waiting for Ready to return")
	})
	i.end()
	if n := calls.Load(); n != 1 {
		t.Errorf("called %d times", n)
	}
	close(release)
}

// Serve runs while the driver accepts connections and does not answer.
func TestWaitsForASilentDriver(t *testing.T) {
	dir := newDir(t)
	path := filepath.Join(filepath.Dir(dir), "silent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	i := newInstance(t, registration.Config{Endpoint: path, Dir: dir}).start()
	c, err := l.Accept() // the Registrar calls, and gets no response
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s := i.Status(); s.State != registration.AwaitingDriver || !strings.Contains(s.Err.Error(), path) {
		t.Errorf("status %+v", s)
	}
}

// kubernetes/kubernetes#71378: a rejection ended the registrar, and kubelet retried the
// stale socket that it left behind.
func TestRejection(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	k.setRefuse("detected topology value collision")
	var log bytes.Buffer
	d := &driver{nodeID: "node"}
	i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))}).start()
	i.await(registration.Rejected)
	if s := i.Status(); s.Err == nil || s.Err.Error() != "kubelet reports: detected topology value collision" {
		t.Errorf("status %+v", s)
	}
	if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "collision") {
		t.Errorf("Check: %v", err)
	}
	await(t, "more attempts", func() bool { return i.Status().GetInfoCalls > 3 })
	k.setRefuse("")
	i.await(registration.Registered)
	k.await("node")
	if i.Status().SocketsCreated != 1 {
		t.Error("the socket was recreated, although kubelet retries automatically")
	}
	i.end()
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "detected topology value collision") {
		t.Errorf("%d errors in the log:\n%s", n, &log)
	}
}

// kubernetes-csi/node-driver-registrar#57: a deleted socket was not recreated.
func TestDeletedSocket(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	i := serveDriver(t, dir, "node")
	i.await(registration.Registered)
	for n := range 5 {
		if err := os.Remove(regSocket(dir)); err != nil {
			t.Fatal(err)
		}
		await(t, "a new socket", func() bool { return i.Status().SocketsCreated == n+2 })
		i.await(registration.Registered)
		k.await("node")
	}
}

// A file that is not a socket has the name of the socket: it is not touched.
func TestNotASocket(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	for _, file := range []string{regSocket(dir), filepath.Join(dir, "."+name+"-reg.sock")} {
		if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		d := &driver{nodeID: "node"}
		i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir}).start()
		i.await(registration.SocketError)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("Check: %v", err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
			t.Errorf("the file holds %q (%v)", b, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		i.await(registration.Registered)
		i.end()
		k.await("")
		os.Remove(filepath.Join(filepath.Dir(dir), "node.sock"))
	}
}

func TestDirectoryRecreated(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	i := serveDriver(t, dir, "node")
	i.await(registration.Registered)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	k.await("")
	i.await(registration.SocketError)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	i.await(registration.AwaitingKubelet)
	if s := i.Status(); s.Err == nil || !strings.Contains(s.Err.Error(), "restart kubelet") {
		t.Errorf("status %+v", s)
	}
	k.restart()
	i.await(registration.Registered)
	k.await("node")
}

// The directory is the mount of a container, which never sees another one.
func TestDirectoryDeletedBehindAMount(t *testing.T) {
	dir := newDir(t)
	i := serveDriver(t, dir, "node")
	i.await(registration.AwaitingKubelet)
	if err := os.Rename(dir, dir+".deleted"); err != nil {
		t.Fatal(err)
	}
	i.await(registration.SocketError)
	// /proc leads to a directory without a name, as a mount does.
	f, err := os.Open(dir + ".deleted")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(os.RemoveAll(dir+".deleted"), os.Symlink("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), dir)); err != nil {
		t.Fatal(err)
	}
	await(t, "a status that says what to do", func() bool {
		s := i.Status()
		return s.State == registration.SocketError && strings.Contains(s.Err.Error(), "restart the pod")
	})
}

// kubernetes/kubernetes#72500: kubelet, restarted, finds the driver immediately.
func TestKubeletRestarts(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	i := serveDriver(t, dir, "node")
	for n := range 5 {
		i.await(registration.Registered)
		k.await("node")
		k.restart()
		await(t, "a call of GetInfo", func() bool { return i.Status().GetInfoCalls == n+2 })
	}
	if i.Status().SocketsCreated != 1 {
		t.Error("the socket was recreated")
	}
}

func TestReregister(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	d := &driver{nodeID: "node"}
	i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir})
	i.Reregister() // has nothing to do yet
	i.start()
	for n := range int64(5) {
		await(t, "NodeGetInfo", func() bool { return d.asked.Load() == n+1 })
		i.await(registration.Registered)
		k.await("node")
		i.Reregister()
		await(t, "a new socket", func() bool { return i.Status().SocketsCreated == int(n)+2 })
	}
	i.await(registration.Registered)
	events, _ := k.past()
	for _, e := range events {
		if e != "create "+name+"-reg.sock" {
			t.Errorf("kubelet saw %q", e)
		}
	}
	i.end()
	i.Reregister()
}

// A driver that restarts with KeepRegistered is not deregistered meanwhile.
func TestKeepRegistered(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	d := &driver{nodeID: "old"}
	old := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir, OnShutdown: registration.KeepRegistered}).start()
	old.await(registration.Registered)
	old.end()
	if _, err := os.Lstat(regSocket(dir)); err != nil {
		t.Error(err)
	}
	if _, history := k.past(); !slices.Equal(history, []string{"old"}) {
		t.Errorf("history %q", history)
	}
	serveDriver(t, dir, "new").await(registration.Registered)
	k.await("new")
}

// The path of the directory as this process sees it may be longer than a socket
// address.
func TestLongDirectory(t *testing.T) {
	dir := newDir(t)
	long := filepath.Join(dir, strings.Repeat("x", 200))
	if err := os.Mkdir(long, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(long, dir+"/short"); err != nil { // as the host sees it
		t.Fatal(err)
	}
	k := startKubelet(t, dir+"/short")
	d := &driver{nodeID: "node"}
	newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: long}).start().await(registration.Registered)
	k.await("node")
}

// abandon leaves a socket as a killed process does.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// kubernetes-csi/node-driver-registrar#206: the stale socket of before a reboot blocked the new one.
func TestReplacesStaleSockets(t *testing.T) {
	t.Run("refuses connections", func(t *testing.T) {
		dir := newDir(t)
		abandon(t, regSocket(dir))
		abandon(t, filepath.Join(dir, "."+name+"-reg.sock")) // killed between bind and rename
		k := startKubelet(t, dir)
		serveDriver(t, dir, "node").await(registration.Registered)
		k.await("node")
		if events, _ := k.past(); !slices.Equal(events, []string{"create " + name + "-reg.sock"}) {
			t.Errorf("kubelet saw %q", events)
		}
	})
	t.Run("silent", func(t *testing.T) {
		dir := newDir(t)
		// Connections succeed, as with a killed process one of whose threads hangs in
		// the kernel.
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: regSocket(dir), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		defer l.Close()
		d := &driver{nodeID: "node"}
		i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir})
		i.SetIntervals(2*time.Millisecond, 50*time.Millisecond)
		i.start().await(registration.AwaitingKubelet)
	})
	t.Run("full", func(t *testing.T) {
		dir := newDir(t)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: regSocket(dir)}), unix.Listen(fd, 0)); err != nil {
			t.Fatal(err)
		}
		for {
			c, err := net.Dial("unix", regSocket(dir))
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		d := &driver{nodeID: "node"}
		i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir})
		i.SetIntervals(2*time.Millisecond, 50*time.Millisecond)
		i.start().await(registration.AwaitingKubelet)
	})
}

// A process that accepts and closes connections is not stale.
func TestClosesConnections(t *testing.T) {
	dir := newDir(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: regSocket(dir), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	i := serveDriver(t, dir, "node")
	i.await(registration.SocketError)
	if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be determined") {
		t.Errorf("Check: %v", err)
	}
	l.Close()
	<-done
	i.await(registration.AwaitingKubelet)
}

// kubernetes/kubernetes#71424: the new registrar deleted the socket of the old one, and
// kubelet deregistered the driver when the old one ended. Here the new one stands by while
// the old one runs, and the old one does not remove the socket of the new one.
func TestRollingUpdate(t *testing.T) {
	const runs = 25
	t.Run("new before the old is gone", func(t *testing.T) {
		dir := newDir(t)
		k := startKubelet(t, dir)
		old := serveDriver(t, dir, "0")
		old.await(registration.Registered)
		k.await("0")
		for n := range runs {
			id := strconv.Itoa(n + 1)
			next := serveDriver(t, dir, id)
			next.await(registration.Standby)
			if s := old.Status(); s.State != registration.Registered {
				t.Errorf("the old one is %v: %v", s.State, s.Err)
			}
			old.end()
			next.await(registration.Registered)
			k.await(id)
			old = next
		}
	})
	// A DaemonSet with maxSurge ends the old pod once the new one is ready.
	t.Run("old goes once the new is ready", func(t *testing.T) {
		dir := newDir(t)
		k := startKubelet(t, dir)
		old := serveDriver(t, dir, "0")
		k.await("0")
		for n := range runs {
			id := strconv.Itoa(n + 1)
			next := serveDriver(t, dir, id)
			await(t, "readiness", func() bool { return next.Check(t.Context()) == nil })
			old.end()
			k.await(id)
			old = next
		}
	})
	t.Run("old before new", func(t *testing.T) {
		dir := newDir(t)
		k := startKubelet(t, dir)
		for n := range runs {
			id := strconv.Itoa(n)
			i := serveDriver(t, dir, id)
			i.await(registration.Registered)
			k.await(id)
			i.end()
		}
	})
	t.Run("at the same time", func(t *testing.T) {
		dir := newDir(t)
		k := startKubelet(t, dir)
		old := serveDriver(t, dir, "0")
		old.await(registration.Registered)
		k.await("0")
		for n := range runs {
			id := strconv.Itoa(n + 1)
			d := &driver{nodeID: id}
			next := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir})
			old.stop()
			next.start()
			old.end()
			next.await(registration.Registered)
			k.await(id)
			old = next
		}
	})
}

// Many instances find one stale socket concurrently: one replaces it, the others stand by.
func TestOneOfMany(t *testing.T) {
	dir := newDir(t)
	abandon(t, regSocket(dir))
	var all []*instance
	for n := range 8 {
		d := &driver{nodeID: strconv.Itoa(n)}
		all = append(all, newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir}))
	}
	for _, i := range all {
		i.start()
	}
	for len(all) > 0 {
		var holder int
		await(t, "one that serves the socket, and the others on standby", func() bool {
			count := map[registration.State]int{}
			for n, i := range all {
				s := i.Status().State
				count[s]++
				if s == registration.AwaitingKubelet {
					holder = n
				}
			}
			return count[registration.AwaitingKubelet] == 1 && count[registration.Standby] == len(all)-1
		})
		all[holder].end()
		all = slices.Delete(all, holder, holder+1)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 0 {
		t.Errorf("left behind: %v (%v)", es, err)
	}
}

// node-driver-registrar removes any socket and puts its own in place.
func TestBesideTheSidecar(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	i := serveDriver(t, dir, "node")
	k.await("node")

	other := t.TempDir()
	sidecar := newInstance(t, registration.Config{Endpoint: (&driver{nodeID: "sidecar"}).serve(t, dir), Dir: other}).start()
	sidecar.await(registration.AwaitingKubelet)
	if err := errors.Join(os.Link(regSocket(other), dir+"/.new"), os.Rename(dir+"/.new", regSocket(dir))); err != nil {
		t.Fatal(err)
	}
	i.await(registration.Standby)
	k.await("sidecar")
	i.end()
	if _, err := os.Lstat(regSocket(dir)); err != nil {
		t.Errorf("the sidecar lost its socket: %v", err)
	}
	if got := k.registered(name); got != "sidecar" {
		t.Errorf("node ID %q", got)
	}
}

func TestKilled(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	var kill func()
	for n := range 5 {
		id := "k" + strconv.Itoa(n)
		kill = startProcess(t, dir, id)
		k.await(id)
		if n%2 == 0 {
			kill()
			continue
		}
		// The next one stands by already.
		next := serveDriver(t, dir, id+"s")
		next.await(registration.Standby)
		kill()
		k.await(id + "s")
		next.end()
		k.await("")
	}
}

func TestNothingIsLeftRunning(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := newDir(t)
	t.Run("", func(t *testing.T) {
		k := startKubelet(t, dir)
		i := serveDriver(t, dir, "node")
		i.await(registration.Registered)
		for n := range 10 {
			i.Reregister()
			await(t, "a new socket", func() bool { return i.Status().SocketsCreated == n+2 })
		}
		// A silent client does not delay the end of Serve.
		c, err := net.Dial("unix", regSocket(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		i.end()
		k.await("")
	})
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// Errors of the directory do not end Serve, are reported with the configured path, and
// are recovered from. When Serve ends the socket is removed, or Serve returns an error.
func TestDirectoryErrors(t *testing.T) {
	gate.UserNS(t)
	dir := newDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=2"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	i := serveDriver(t, dir, "node")
	blocked := func(text string) {
		t.Helper()
		await(t, text, func() bool {
			s := i.Status()
			if s.State == registration.SocketError && !strings.Contains(s.Err.Error(), dir) {
				t.Fatalf("the configured path is missing: %v", s.Err)
			}
			return s.State == registration.SocketError && strings.Contains(s.Err.Error(), text)
		})
	}
	blocked("no space left")
	remount(unix.MS_RDONLY)
	blocked("read-only")
	remount(0)
	blocked("no space left")
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	i.await(registration.AwaitingKubelet)

	remount(unix.MS_RDONLY)
	i.stop()
	err := <-i.done
	i.done <- nil
	var e *registration.Error
	if !errors.As(err, &e) || e.Op != "stop" || !strings.Contains(err.Error(), "remove "+regSocket(dir)+": read-only file system") {
		t.Errorf("Serve: %v", err)
	}
	remount(0)
}

// A process that has run out of file descriptors reports it, and recovers when some are free.
func TestNoDescriptors(t *testing.T) {
	dir := newDir(t)
	k := startKubelet(t, dir)
	i := serveDriver(t, dir, "node")
	i.await(registration.Registered)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	var files []*os.File
	await(t, "a status about descriptors", func() bool {
		// Each time: while the last descriptor is taken, the instance may hold one that it closes.
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				break
			}
			files = append(files, f)
		}
		s := i.Status()
		return s.State == registration.SocketError && strings.Contains(s.Err.Error(), "too many open files")
	})
	if err := os.Remove(regSocket(dir)); err != nil {
		t.Error(err)
	}
	for _, f := range files {
		f.Close()
	}
	await(t, "a new socket", func() bool { return i.Status().SocketsCreated == 2 })
	i.await(registration.Registered)
	k.await("node")
}

// Serve may end at any point and leaves nothing behind.
func TestStopsAtAnyPoint(t *testing.T) {
	dir := newDir(t)
	d := &driver{nodeID: "node"}
	endpoint := d.serve(t, dir)
	for n := range 200 {
		i := newInstance(t, registration.Config{Endpoint: endpoint, Dir: dir})
		i.start()
		for begin := time.Now(); time.Since(begin) < time.Duration(n)*20*time.Microsecond; {
			runtime.Gosched()
		}
		i.end()
		if es, err := os.ReadDir(dir); err != nil || len(es) != 0 {
			t.Fatalf("run %d left %v behind (%v)", n, es, err)
		}
	}
}
