package nodeops

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// kubernetes/kubernetes#28822: what a pod had mounted was deleted with the pod.
func TestUnpublishDeletesNothing(t *testing.T) {
	n, staging, pods := staged(t)
	ok(t, os.MkdirAll(staging+"/dir/below", 0o755))
	ok(t, os.WriteFile(staging+"/dir/below/file", []byte("data"), 0o600))
	intact := func(root string) {
		t.Helper()
		if got, err := os.ReadFile(root + "/dir/below/file"); err != nil || string(got) != "data" {
			t.Errorf("the file holds %q (%v)", got, err)
		}
	}
	target := filepath.Join(pods, "p")
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}
	ok(t, n.PublishFilesystem(t.Context(), r))

	keep, err := os.Open(target + "/dir/below/file")
	ok(t, err)
	wantKind(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Busy)
	intact(target)
	keep.Close()

	// The pod's own mount inside of it is not unmounted either.
	ok(t, unix.Mount("tmpfs", target+"/dir", "tmpfs", 0, ""))
	wantKind(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Busy)
	ok(t, unix.Unmount(target+"/dir", 0))
	intact(target)

	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	intact(staging)

	// Nothing is mounted, and another process has created files there.
	ok(t, os.MkdirAll(target+"/dir/below", 0o755))
	ok(t, os.WriteFile(target+"/dir/below/file", []byte("data"), 0o600))
	wantKind(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Precondition, "not empty")
	intact(target)
	ok(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: target}))
	intact(target)
}

// kubernetes-csi/csi-driver-nfs#839: a second call of mount(8) was left over, and each
// share was mounted twice.
func TestShareDoesNotStack(t *testing.T) {
	n, _, pods := staged(t)
	helper(t, "tmpfs", mounts)
	target := filepath.Join(pods, "p")
	for range 3 {
		ok(t, n.share(t, target, nil))
	}
	if got := mountedTypes(t, target); len(got) != 1 {
		t.Errorf("mounted is %v, want one", got)
	}
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	if got := mountedTypes(t, target); len(got) != 0 {
		t.Errorf("mounted is %v, want nothing", got)
	}
}

// kubernetes/kubernetes#31272, kubernetes/kubernetes#72048, kubernetes/kubernetes#123960,
// rook/rook#6327: any access to the mount of a failed server before the unmount blocked
// indefinitely.
func TestTeardownSendsNoRequest(t *testing.T) {
	for _, policy := range []UnmountPolicy{UnmountWait, UnmountForce, UnmountLazy} {
		for name, tearDown := range map[string]func(n *Node, ctx context.Context, path string) error{
			"unpublish": func(n *Node, ctx context.Context, path string) error {
				return n.Unpublish(ctx, UnpublishRequest{TargetPath: path})
			},
			"unstage": func(n *Node, ctx context.Context, path string) error {
				return n.Unstage(ctx, UnstageRequest{StagingTargetPath: path})
			},
		} {
			t.Run(name+", "+policy.String(), func(t *testing.T) {
				_, _, pods := staged(t)
				n, err := New(Config{Unmount: policy})
				ok(t, err)
				target := filepath.Join(pods, "p")
				ok(t, os.Mkdir(target, 0o755))
				server := mountFuse(t, target)
				server.hangs.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ok(t, tearDown(n, ctx, target))
				if len(server.requested) > 0 {
					t.Error("a request was sent to the server")
				}
				if got := mountedTypes(t, target); len(got) > 0 {
					t.Errorf("mounted is %v", got)
				}
			})
		}
	}
}

// kubernetes-csi/csi-driver-nfs#558, kubernetes-csi/csi-driver-nfs#870: statfs of all pods,
// every minute, on one server. While it does not respond, no further request is sent.
func TestConcurrentStatsShareOneCall(t *testing.T) {
	n, _, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	server := mountFuse(t, target)
	server.hangs.Store(true)
	const callers = 50
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			if _, err := n.Stats(ctx, StatsRequest{VolumeID: "v", VolumePath: target}); !isPending(err) {
				t.Errorf("error is %v, want one that is pending", err)
			}
		})
	}
	together := func() bool {
		calls := n.InFlight()
		return len(calls) == 1 && calls[0].Waiters == callers && calls[0].Key == target+" (stats)" // not resolving the path
	}
	for deadline := time.Now().Add(time.Minute); !together(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("in flight is %v, want one call for all %d", n.InFlight(), callers)
			break
		}
	}
	cancel()
	all.Wait()
	server.die()
	waitIdle(t, n)
}

// ceph/ceph-csi@b7703faf3: a file system that does not count inodes was reported as one
// that has none left, and alarms went off.
func TestStatsWithoutInodes(t *testing.T) {
	n, _, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	mountFuse(t, target)
	s, err := n.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: target})
	ok(t, err)
	if want := (Stats{Source: "server", TotalBytes: 409600, UsedBytes: 409600}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// manyMounts fills the mount table.
func manyMounts(t *testing.T, dir string) {
	t.Helper()
	const count = 10_000
	ok(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { // all together
		_, err := mountapi.Detach(dir)
		ok(t, err)
	})
	for i := range count {
		p := filepath.Join(dir, strconv.Itoa(i))
		ok(t, os.Mkdir(p, 0o755))
		ok(t, unix.Mount("tmpfs", p, "tmpfs", 0, ""))
	}
	table, err := readTable()
	ok(t, err)
	if len(table) < count {
		t.Fatalf("%d mounts in the table, want %d", len(table), count)
	}
}

// kubernetes/kubernetes#77637: the whole mount table was read, often twice, for each check
// of one path. To publish, unpublish and measure a file system it is not needed.
func TestPublishReadsNoMountTable(t *testing.T) {
	n, staging, pods := staged(t)
	manyMounts(t, t.TempDir())
	ok(t, unix.Mount("tmpfs", "/proc", "tmpfs", 0, "")) // where it would be read
	t.Cleanup(func() { ok(t, unix.Unmount("/proc", 0)) })
	if _, err := readTable(); err == nil {
		t.Fatal("the mount table can be read, so this tests nothing")
	}
	if _, err := mountapi.At(staging); errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel has no complete statmount(2) (before 6.13)")
	}
	for _, pod := range []string{"a", "b"} {
		r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: filepath.Join(pods, pod)}
		for range 2 {
			ok(t, n.PublishFilesystem(t.Context(), r))
			_, err := n.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: r.TargetPath})
			ok(t, err)
		}
	}
	for range 2 {
		for _, pod := range []string{"a", "b"} {
			ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: filepath.Join(pods, pod)}))
		}
	}
	if left, _ := os.ReadDir(pods); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The longest path that the kernel takes, of which the mount table has to show all.
func TestLongestPath(t *testing.T) {
	n, staging, pods := staged(t)
	long := pods
	for len(long) < unix.PathMax-1-256-1 {
		long += "/" + strings.Repeat("d", 200)
		if len(long) > unix.PathMax-1-256 {
			break
		}
	}
	ok(t, os.MkdirAll(long, 0o755))
	target := long + "/" + strings.Repeat("m", unix.PathMax-1-len(long)-1)
	if len(target) != unix.PathMax-1 {
		t.Fatalf("the path has %d bytes, want %d", len(target), unix.PathMax-1)
	}
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target, Exclusive: true}
	for range 2 {
		ok(t, n.PublishFilesystem(t.Context(), r))
	}
	_, err := n.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: target})
	ok(t, err)
	wantKind(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}), csierr.Precondition, target)
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there (%v)", err)
	}
	r.TargetPath += "m"
	if err := n.PublishFilesystem(t.Context(), r); err == nil {
		t.Error("published where no path leads")
	}
}
