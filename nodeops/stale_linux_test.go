package nodeops

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func mountedTypes(t *testing.T, path string) []string {
	t.Helper()
	table, err := readTable()
	ok(t, err)
	var types []string
	for _, m := range table.at(path) {
		types = append(types, m.FSType)
	}
	return types
}

// ceph/ceph-csi#2634: FUSE mounts are corrupted after a restart of the plugin.
func TestPublishReplacesACorruptedMount(t *testing.T) {
	n, staging, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	mountFuse(t, target).die()
	mountFuse(t, target).die() // published twice by the plugin
	if corrupted(target) == nil {
		t.Fatal("a FUSE file system whose server has ended is not corrupted")
	}
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}
	for range 2 {
		ok(t, n.PublishFilesystem(t.Context(), r))
	}
	if got := mountedTypes(t, target); len(got) != 1 || got[0] != "tmpfs" {
		t.Errorf("mounted is %v, want tmpfs", got)
	}
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
}

func TestPublishKeepsAHealthyMount(t *testing.T) {
	n, staging, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	mountFuse(t, target)
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}
	wantKind(t, n.PublishFilesystem(t.Context(), r), csierr.Conflict, "fuse")
	if got := mountedTypes(t, target); len(got) != 1 || got[0] != "fuse" {
		t.Errorf("mounted is %v, want fuse", got)
	}
}

// Below a corrupted mount there may be a healthy one, with data.
func TestStageKeepsAHealthyMount(t *testing.T) {
	f := newFixture(t, 64*mib)
	ok(t, unix.Mount("precious", f.staging, "tmpfs", 0, ""))
	f.write(f.staging+"/file", "data")
	mountFuse(t, f.staging).die()
	wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Conflict, "tmpfs")
	if got, err := os.ReadFile(f.staging + "/file"); err != nil || string(got) != "data" {
		t.Errorf("read %q (%v)", got, err)
	}
}

func TestPublishFromACorruptedStagingPath(t *testing.T) {
	n, staging, pods := staged(t)
	mountFuse(t, staging).die()
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: filepath.Join(pods, "p")}
	wantKind(t, n.PublishFilesystem(t.Context(), r), csierr.Precondition, "corrupted", "stage the volume again")
	if _, err := os.Lstat(r.TargetPath); err == nil {
		t.Error("the target was made")
	}
	ok(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}))
}

// shutDown shuts down an ext4 or xfs after writing its log, as after an I/O error.
func shutDown(t testing.TB, path string) {
	t.Helper()
	const goingDown = 0x8004587d // XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)
	dir, err := os.Open(path)
	ok(t, err)
	defer dir.Close()
	ok(t, unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, 1))
}

// kubernetes/kubernetes#73513, kubernetes/kubernetes#77969, openebs/openebs#1461: an xfs that shut itself down answers EIO to
// everything and was never unmounted, because it was accessed first.
func TestShutDownFilesystem(t *testing.T) {
	for _, tt := range fsTable {
		if tt.fsType == "btrfs" {
			continue // has no ioctl to shut down
		}
		t.Run(tt.fsType, func(t *testing.T) {
			f := newFixture(t, tt.size)
			f.mustStage(tt.fsType)
			f.write(f.staging+"/file", "data")
			unix.Sync()
			ok(t, f.publish("p", nil))
			shutDown(t, f.staging)

			wantKind(t, f.stage(f.stageRequest(tt.fsType)), csierr.Uncertain, "corrupted", f.target("p"))
			if len(f.mounts(f.staging)) != 1 {
				t.Error("what is published was unmounted")
			}
			wantKind(t, f.publish("q", nil), csierr.Precondition, "corrupted")
			ok(t, f.unpublish("p"))
			f.mustStage(tt.fsType)
			if got, err := os.ReadFile(f.staging + "/file"); err != nil || string(got) != "data" {
				t.Errorf("read %q (%v)", got, err)
			}
			ok(t, f.publish("p", nil))
			ok(t, f.unpublish("p"))
			ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		})
	}
}

// hungAt publishes a FUSE file system whose server does not respond, and starts a call that
// waits for it.
func hungAt(t *testing.T, n *Node, pods string) (target string, server *fuse) {
	t.Helper()
	target = filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	server = mountFuse(t, target)
	server.hangs.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-server.requested; cancel() }()
	_, err := n.Stats(ctx, StatsRequest{VolumeID: "v", VolumePath: target})
	if !isPending(err) {
		t.Fatalf("error is %v, want one that is pending", err)
	}
	return target, server
}

// kubernetes-sigs/aws-fsx-csi-driver#495: a pod was Terminating for 44 days because
// umount(2) did not come back.
func TestUnpublishOfAHungMount(t *testing.T) {
	for _, tt := range []struct {
		policy UnmountPolicy
		code   codes.Code
	}{
		{UnmountWait, codes.Aborted},
		{UnmountForce, codes.OK},
		{UnmountLazy, codes.OK},
	} {
		t.Run(tt.policy.String(), func(t *testing.T) {
			_, _, pods := staged(t)
			n, err := New(Config{Unmount: tt.policy, UnmountTimeout: 300 * time.Millisecond})
			ok(t, err)
			target, server := hungAt(t, n, pods)
			if len(n.InFlight()) != 1 {
				t.Errorf("in flight is %v, want the stats", n.InFlight())
			}
			err = n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target})
			if status.Code(err) != tt.code {
				t.Fatalf("error is %v, want code %v", err, tt.code)
			}
			if tt.code != codes.OK {
				// Other volumes are served meanwhile, and once the server is gone the pod can go.
				server.die()
				waitIdle(t, n)
				ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
			}
			waitIdle(t, n)
			if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the target is still there (%v)", err)
			}
		})
	}
}

// waitIdle returns when nothing is under way.
func waitIdle(t *testing.T, n *Node) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(n.InFlight()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still in flight: %v", n.InFlight())
		}
	}
}

// If MNT_FORCE is not enough, because a process keeps a file open, the path is free
// nevertheless; and a healthy mount is only busy, whatever the policy.
func TestUnpublishLazy(t *testing.T) {
	_, _, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	server := mountFuse(t, target)
	keep, err := os.Open(target)
	ok(t, err)
	defer keep.Close()

	forced, err := New(Config{Unmount: UnmountForce, UnmountTimeout: 300 * time.Millisecond})
	ok(t, err)
	lazy, err := New(Config{Unmount: UnmountLazy, UnmountTimeout: 300 * time.Millisecond})
	ok(t, err)
	wantKind(t, forced.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Busy)
	server.hangs.Store(false)
	server.die()
	wantKind(t, forced.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Busy)
	wantKind(t, forced.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: target}), csierr.Busy)
	wantKind(t, lazy.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: target}), csierr.Busy)
	ok(t, lazy.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	waitIdle(t, lazy)
}

func TestUnpublishOfAHealthyBusyMount(t *testing.T) {
	_, _, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	mountFuse(t, target)
	keep, err := os.Open(target)
	ok(t, err)
	defer keep.Close()
	n, err := New(Config{Unmount: UnmountLazy})
	ok(t, err)
	wantKind(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Busy, "nodeops.test")
	if corrupted(target) != nil {
		t.Error("a mount that lives was forced")
	}
}

// A long operation on a path, such as an expansion, does not mean that its mount hangs; a
// caller that times out gets an error that is pending.
func TestTearDownDuringOtherWork(t *testing.T) {
	_, staging, pods := staged(t)
	n, err := New(Config{Unmount: UnmountLazy, UnmountTimeout: 50 * time.Millisecond})
	ok(t, err)
	target := filepath.Join(pods, "p")
	ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}))
	for path, teardown := range map[string]func(context.Context) error{
		staging: func(ctx context.Context) error { return n.Unstage(ctx, UnstageRequest{StagingTargetPath: staging}) },
		target:  func(ctx context.Context) error { return n.Unpublish(ctx, UnpublishRequest{TargetPath: target}) },
	} {
		end := workAt(t, n, path)
		for _, timeout := range []time.Duration{20, 75, 125, 300} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout*time.Millisecond)
			if err := teardown(ctx); !isPending(err) {
				t.Errorf("after %d ms: error is %v, want one that is pending", timeout, err)
			}
			cancel()
		}
		if got := mountedTypes(t, path); len(got) != 1 {
			t.Errorf("mounted is %v", got)
		}
		end()
	}
}

// A caller whose context ends between two attempts gets an error that is pending too.
func TestTearDownOfAHungMountInVain(t *testing.T) {
	_, _, pods := staged(t)
	n, err := New(Config{Unmount: UnmountForce, UnmountTimeout: 50 * time.Millisecond})
	ok(t, err)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	mountFuse(t, target).hangs.Store(true)
	end := workAt(t, n, target) // simulates an umount that MNT_FORCE does not end
	for _, timeout := range []time.Duration{20, 75, 125, 300} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout*time.Millisecond)
		if err := n.Unpublish(ctx, UnpublishRequest{VolumeID: "v", TargetPath: target}); !isPending(err) {
			t.Errorf("after %d ms: error is %v, want one that is pending", timeout, err)
		}
		cancel()
	}
	end()
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
}

func TestOrphanedPublication(t *testing.T) {
	_, staging, pods := staged(t)
	orphaned, inUse := filepath.Join(pods, "orphaned"), filepath.Join(pods, "in-use")
	n, err := New(Config{IsOrphaned: func(path string) bool { return path == orphaned }})
	ok(t, err)
	for _, target := range []string{orphaned, inUse} {
		ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}))
	}
	wantKind(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}), csierr.Precondition, inUse)
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: inUse}))
	ok(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}))
	if _, err := os.Lstat(orphaned); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the orphaned target still exists (%v)", err)
	}
}

// An operation in flight on an orphaned target is not disturbed: the target may be partly
// published, or its unmount may hang.
func TestOrphanedPublicationInFlight(t *testing.T) {
	_, staging, pods := staged(t)
	n, err := New(Config{IsOrphaned: func(string) bool { return true }})
	ok(t, err)
	target := filepath.Join(pods, "p")
	ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}))
	end := workAt(t, n, target)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := n.Unstage(ctx, UnstageRequest{VolumeID: "v", StagingTargetPath: staging}); !isPending(err) {
		t.Errorf("error is %v, want one that is pending", err)
	}
	if got := mountedTypes(t, target); len(got) != 1 {
		t.Errorf("mounted is %v", got)
	}
	end()
	ok(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}))
}

// workAt starts an operation on the path that is in flight until end is called.
func workAt(t *testing.T, n *Node, path string) (end func()) {
	t.Helper()
	begun, over := make(chan struct{}), make(chan struct{})
	go func() {
		_ = n.run(context.Background(), "work", "v", path, func(context.Context, resolvedPath) error {
			close(begun)
			<-over
			return nil
		})
	}()
	<-begun
	end = sync.OnceFunc(func() {
		close(over)
		waitIdle(t, n)
	})
	t.Cleanup(end)
	return end
}
