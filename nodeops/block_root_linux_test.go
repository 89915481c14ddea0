package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// bindDeep mounts a node of the device below a path that is longer than PATH_MAX, where the
// table shows it and lstat(2) fails. No other mount shows that node.
func (f *fixture) bindDeep() (unmount func()) {
	f.t.Helper()
	dir, err := os.Open(f.t.TempDir())
	ok(f.t, err)
	for range 20 {
		name := strings.Repeat("d", 250)
		ok(f.t, unix.Mkdirat(int(dir.Fd()), name, 0o755))
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		ok(f.t, err)
		ok(f.t, dir.Close())
		dir = os.NewFile(uintptr(fd), name)
	}
	target := fmt.Sprintf("/proc/self/fd/%d/node", dir.Fd())
	f.write(target, "")
	dev := f.t.TempDir()
	ok(f.t, unix.Mount("tmpfs", dev, "tmpfs", 0, ""))
	err = unix.Mknod(dev+"/disk", unix.S_IFBLK|0o600, int(f.dev.Rdev))
	if err == nil {
		err = unix.Mount(dev+"/disk", target, "", unix.MS_BIND, "")
	}
	ok(f.t, errors.Join(err, unix.Unmount(dev, unix.MNT_DETACH)))
	unmount = func() {
		if dir == nil {
			return
		}
		if err := errors.Join(unix.Unmount(target, 0), dir.Close()); err != nil {
			f.t.Error(err)
		}
		dir = nil
	}
	f.t.Cleanup(unmount)
	return unmount
}

// A mount that cannot be read may be that of the device's node. It does not count as one of
// another device.
func TestBlockNodeThatCannotBeRead(t *testing.T) {
	f := newFixture(t, 64*mib)
	readOnly := func(r *PublishBlockRequest) { r.ReadOnly = true }
	ok(t, f.publishBlock("p", readOnly))
	unmount := f.bindDeep()
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, unix.ENAMETOOLONG) {
			t.Errorf("%s: %v, want the error of lstat", what, err)
			return
		}
		wantKind(t, err, csierr.Uncertain, "cannot be read", filepath.Join("d", "node"))
	}
	check("the last readable publication is unpublished", f.unpublish("p"))
	if !f.refusesWrites() {
		t.Error("the device accepts writes, though it may be published read-only")
	}
	check("published once more", f.publishBlock("q", readOnly))
	unmount()
	ok(t, f.unpublish("p"))
	if f.refusesWrites() {
		t.Error("the device keeps refusing writes")
	}

	unmount = f.bindDeep()
	check("staged", f.stage(f.stageRequest("ext4")))
	check("unstaged", f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging, Device: Device{Path: f.dev.Path}}))
	check("released", f.node.Released(t.Context(), Device{Path: f.dev.Path}))
	_, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path})
	check("mounted", err)
	unmount()
	ok(t, f.node.Released(t.Context(), Device{Path: f.dev.Path}))
	ok(t, f.stage(f.stageRequest("ext4")))
}

func init() { roles = append(roles, gate.WithRole("publish block", publishBlockRole)) }

// publishBlockRole is a driver that publishes one device read-only: device, target.
func publishBlockRole() {
	n, err := New(Config{DeviceWait: -1})
	if err == nil {
		err = n.PublishBlock(context.Background(), PublishBlockRequest{
			VolumeID: "v", Device: Device{Path: os.Args[1]}, TargetPath: os.Args[2], ReadOnly: true,
		})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// A driver that is killed while it publishes a device read-only leaves no flag that the next
// unpublish does not clear: the next volume on a loop device could not be written.
func TestBlockKilledAtEveryCall(t *testing.T) {
	f := newFixture(t, 8*mib)
	last := 1
	for n := 0; n <= last; n++ {
		p, err := crash.Start(gate.RoleCommand(t.Context(), "publish block", f.dev.Path, f.target("p")))
		ok(t, err)
		p.Arm(n)
		err = p.Wait()
		if n == 0 {
			ok(t, err)
			last = len(p.Calls())
			if !f.refusesWrites() {
				t.Fatal("published read-only, and writable")
			}
		}
		ok(t, f.unpublish("p"))
		if f.refusesWrites() {
			t.Errorf("killed at %v: the device keeps refusing writes", p.Calls()[len(p.Calls())-1])
		}
	}
	if last < 3 {
		t.Errorf("only %d calls", last)
	}
}
