package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/volumelock"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// The kernel does not come back from a call, here because the file system is frozen,
// and nothing can kill it. The caller gets its answer, the volume stays locked, a pod
// that goes can go all the same, and when the kernel is done so is the lock.
func TestTeardownPassesAHungExpand(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mkfs.xfs", "blkid", "xfs_growfs")
	w := newCrashVolume(t, "xfs", 300<<20)
	var table *volumelock.Table
	serveLocked(t, w, func(locks *volumelock.Table, opts ...volumelock.Option) csiserver.Interceptor {
		table = locks // before anything is served
		return volumelock.Interceptor(locks, opts...)
	})
	t.Cleanup(w.close)
	must(t, w.create())
	must(t, w.attach())
	must(t, w.stage())
	must(t, w.publish("b", false))
	must(t, w.expand())
	expand := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := w.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: w.id, VolumePath: w.staging(), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * w.size}, VolumeCapability: w.capability(),
		})
		return err
	}
	parked := func() bool {
		return slices.ContainsFunc(table.Snapshot(), func(e volumelock.Entry) bool { return e.Parked })
	}

	freeze(t, w.staging(), fiFreeze)
	thaw := sync.OnceFunc(func() { freeze(t, w.staging(), fiThaw) })
	defer thaw()
	for tries := 0; !parked(); tries++ { // a slow machine has not come to the kernel yet
		if err := expand(time.Second); err == nil || tries == 60 {
			t.Fatalf("nothing is parked, although the file system is frozen: %v", err)
		}
	}
	refused(t, w.publish("a", false), codes.Aborted, "is held by NodeExpandVolume")
	must(t, w.unpublish("b"))
	if !parked() {
		t.Error("the expansion is no longer parked")
	}

	thaw()
	must(t, w.again(func() error { return expand(2 * time.Minute) }))
	must(t, w.again(func() error { return w.publish("a", false) }))
	must(t, w.checkWritable("a"))
	must(t, w.unpublish("a"))
	must(t, w.unstage())
	must(t, w.detach())
	must(t, w.delete())
	w.checkNothingLeft()
}

func freeze(t *testing.T, dir string, what uint) {
	t.Helper()
	f, err := os.Open(filepath.Clean(dir))
	must(t, err)
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), what, 0); err != nil {
		t.Errorf("freeze or thaw: %v", err)
	}
}
