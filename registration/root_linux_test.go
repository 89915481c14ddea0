package registration_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/registration"
	"golang.org/x/sys/unix"
)

// freezable mounts a file system at a short path. After freeze, a process that writes
// to it is in an uninterruptible sleep until thaw or the end of the test.
func freezable(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "mke2fs")
	dir = newDir(t)
	image := filepath.Join(filepath.Dir(dir), "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 16<<20)); err != nil {
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
		await(t, "an end to unmount", func() bool { // a process that hung closes its files a little later
			return !errors.Is(unix.Unmount(dir, 0), unix.EBUSY)
		})
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

// A process that is killed while a thread of it hangs in the kernel keeps its
// descriptors: its socket accepts connections, and no process answers.
func TestKilledWhileAThreadHangs(t *testing.T) {
	hanging, freeze, thaw := freezable(t)
	dir := newDir(t)
	k := startKubelet(t, dir)
	freeze()
	cmd := gate.RoleCommand(t.Context(), "driver", dir, filepath.Join(filepath.Dir(dir), "old.sock"), "old", hanging)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.await("old")
	await(t, "a thread that hangs", func() bool { return slices.Contains(threads(t, cmd.Process.Pid), "D") })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer thaw()
	await(t, "the end of the other threads", func() bool { // but for the first, which is a zombie until the last has ended
		return !slices.ContainsFunc(threads(t, cmd.Process.Pid), func(state string) bool { return state != "D" && state != "Z" })
	})
	c, err := net.Dial("unix", regSocket(dir))
	if err != nil {
		t.Fatalf("the socket of the killed process refuses connections (%v): no thread hangs", err)
	}
	c.Close()

	d := &driver{nodeID: "new"}
	i := newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir})
	i.SetIntervals(2*time.Millisecond, 50*time.Millisecond)
	i.start().await(registration.Registered)
	k.await("new")
}

// The file system of the registration directory hangs: Serve ends nevertheless, stops
// answering, and the socket is removed when the system call returns.
func TestServeEndsWithDirectoryStuckInTheKernel(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	i := serveDriver(t, dir, "node")
	i.await(registration.AwaitingKubelet)
	freeze()
	i.stop()
	err := <-i.done
	i.done <- nil
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Serve: %v", err)
	}
	thaw()
	await(t, "the end of the socket", func() bool {
		_, err := os.Lstat(regSocket(dir))
		return errors.Is(err, os.ErrNotExist)
	})
}
