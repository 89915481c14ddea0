package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// staged mounts a tmpfs at a staging path in place of a volume.
func staged(t testing.TB) (n *Node, staging, pods string) {
	t.Helper()
	gate.UserNS(t)
	dir := t.TempDir()
	staging, pods = filepath.Join(dir, "staging"), filepath.Join(dir, "pods")
	for _, d := range []string{staging, pods} {
		ok(t, os.Mkdir(d, 0o755))
	}
	ok(t, unix.Mount("tmpfs", staging, "tmpfs", 0, ""))
	t.Cleanup(func() {
		table, err := mountapi.Table()
		ok(t, err)
		for i := len(table) - 1; i >= 0; i-- {
			if strings.HasPrefix(table[i].MountPoint, dir+"/") {
				ok(t, unmountPath(table[i].MountPoint))
			}
		}
	})
	n, err := New(Config{})
	ok(t, err)
	return n, staging, pods
}

func TestPublishOddPaths(t *testing.T) {
	n, staging, pods := staged(t)
	for _, name := range []string{"with space", "new\nline", `back\slash`, "tab\t", "#", "ü", strings.Repeat("n", 255)} {
		target := filepath.Join(pods, name)
		r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target, ReadOnly: true}
		for range 2 {
			ok(t, n.PublishFilesystem(t.Context(), r))
		}
		ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
		if _, err := os.Lstat(target); err == nil {
			t.Errorf("%q is still there", target)
		}
	}
}

// An old instance of the driver hangs beside its successor: of two that publish at one
// target, one mounts.
func TestTwoInstancesDoNotStack(t *testing.T) {
	n, staging, pods := staged(t)
	other, err := New(Config{})
	ok(t, err)
	for i := range 200 {
		target := filepath.Join(pods, strconv.Itoa(i))
		var wg sync.WaitGroup
		var errs [2]error
		start := make(chan struct{})
		for k, node := range []*Node{n, other} {
			wg.Go(func() {
				<-start
				errs[k] = node.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target})
			})
		}
		close(start)
		wg.Wait()
		if errs[0] != nil && errs[1] != nil {
			t.Errorf("neither succeeded: %v; %v", errs[0], errs[1])
		}
		table, err := readTable()
		ok(t, err)
		if on := table.at(target); len(on) != 1 {
			t.Errorf("%d mounts at %s, want 1", len(on), target)
		}
		for _, err := range errs {
			if err != nil {
				wantKind(t, err, csierr.Busy, "another process")
			}
		}
		ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	}
}

// A call that waits for another process ends with its context, and has mounted nothing.
func TestWaitForAnotherInstanceEnds(t *testing.T) {
	n, staging, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	other, err := os.Open(target)
	ok(t, err)
	defer other.Close()
	ok(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tree, err := mountapi.CloneTree(staging, 0)
	ok(t, err)
	err = wrap("publish", "v", target, attach(ended, tree, point(t, target)))
	if !errors.Is(err, context.Canceled) || status.Code(err) != codes.Canceled || !strings.Contains(err.Error(), "another process mounts at "+target) {
		t.Errorf("attached while another process mounts: %v, want CANCELED", err)
	}
	ok(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
	ok(t, attach(ended, tree, point(t, target))) // nothing to wait for
	ok(t, tree.Close())
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
}

// kubelet's directory is often a symlink to a larger disk.
func TestPublishBelowASymlink(t *testing.T) {
	n, staging, pods := staged(t)
	link := filepath.Join(filepath.Dir(pods), "link")
	ok(t, os.Symlink(pods, link))
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: link + "/p"}
	for range 2 {
		ok(t, n.PublishFilesystem(t.Context(), r))
	}
	table, err := readTable()
	ok(t, err)
	if got := table.at(pods + "/p"); len(got) != 1 {
		t.Errorf("%d mounts, want 1", len(got))
	}
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: link + "/p"}))
}

// If kubelet's directory is a shared bind mount on itself, one mount below it is twice in
// the table at one path, and one umount removes both.
func TestSelfBoundSharedKubeletDirectory(t *testing.T) {
	n, _, pods := staged(t)
	kubelet := filepath.Join(pods, "kubelet")
	ok(t, os.Mkdir(kubelet, 0o755))
	ok(t, unix.Mount("tmpfs", pods, "tmpfs", 0, ""))
	ok(t, unix.Mount("", pods, "", unix.MS_SHARED, ""))
	ok(t, os.Mkdir(kubelet, 0o755))
	ok(t, unix.Mount(kubelet, kubelet, "", unix.MS_BIND, ""))
	staging := filepath.Join(kubelet, "staging")
	ok(t, os.Mkdir(staging, 0o755))
	ok(t, unix.Mount("tmpfs", staging, "tmpfs", 0, ""))
	table, err := readTable()
	ok(t, err)
	seen := 0
	for _, m := range table {
		if m.MountPoint == staging {
			seen++
		}
	}
	if seen != 2 {
		t.Fatalf("the staging mount is %d times in the table; the test needs 2", seen)
	}
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: kubelet + "/p", Exclusive: true}
	for range 2 {
		ok(t, n.PublishFilesystem(t.Context(), r))
	}
	wantKind(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}), csierr.Precondition, r.TargetPath)
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: r.TargetPath}))
	ok(t, n.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: staging}))
}

// Two hundred concurrent pods of one volume, and each path twice.
func TestPublishInParallel(t *testing.T) {
	n, staging, pods := staged(t)
	var wg sync.WaitGroup
	each := func(do func(target string) error) {
		for i := range 400 {
			wg.Go(func() {
				if err := do(filepath.Join(pods, "p"+strconv.Itoa(i%200))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(target string) error {
		return n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target})
	})
	table, err := readTable()
	ok(t, err)
	count := 0
	for _, m := range table {
		if filepath.Dir(m.MountPoint) == pods {
			count++
		}
	}
	if count != 200 {
		t.Errorf("%d mounts of 200 targets", count)
	}
	each(func(target string) error {
		return n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target})
	})
	if left, _ := os.ReadDir(pods); len(left) > 0 {
		t.Errorf("%d targets are left", len(left))
	}
}

func TestUnpublishBusy(t *testing.T) {
	n, staging, pods := staged(t)
	target := filepath.Join(pods, "p")
	ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}))
	f, err := os.Create(target + "/open")
	ok(t, err)
	wantKind(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}), csierr.Busy, fmt.Sprintf("process %d (", os.Getpid()))
	f.Close()
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
}

func TestExclusivePublishInParallel(t *testing.T) {
	n, staging, pods := staged(t)
	for range 50 {
		var wg sync.WaitGroup
		var errs [2]error
		targets := [2]string{filepath.Join(pods, "a"), filepath.Join(pods, "b")}
		for i, target := range targets {
			wg.Go(func() {
				errs[i] = n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target, Exclusive: true})
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("errors are %v, want one", errs)
		}
		for _, target := range targets {
			ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
		}
	}
}

// Values that were measured during an unpublish are not kept.
func TestStatsDuringUnpublish(t *testing.T) {
	n, staging, pods := staged(t)
	target := filepath.Join(pods, "p")
	for range 100 {
		ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}))
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				_, _ = n.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: target})
			}
		})
		for n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}) != nil { // busy during statfs
		}
		wg.Wait()
		if len(n.measured) > 0 {
			t.Fatalf("kept is %v", n.measured)
		}
	}
}
