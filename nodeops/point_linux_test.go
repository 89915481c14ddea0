package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/internal/mountapi"
	"google.golang.org/grpc/codes"
)

// point is the path, open until the test ends.
func point(t *testing.T, path string) *mountapi.Point {
	t.Helper()
	p, err := mountapi.OpenPoint(path)
	ok(t, err)
	t.Cleanup(p.Close)
	return p
}

// unmountPath unmounts everything that is mounted on the path.
func unmountPath(path string) error {
	p, err := mountapi.OpenPoint(path)
	if err != nil {
		return err
	}
	defer p.Close()
	return unmountAll(p)
}

// A publication costs the same calls among few and many others in its directory: nothing reads
// the directory, and nothing is resolved twice. With EvalSymlinks and a read of the directory
// there were 58 calls, and more with each component of the path.
func TestCallsOfAPublication(t *testing.T) {
	_, staging, pods := staged(t)
	s := startServer(t, crash.WithReads())
	count := func() (calls [2][]string) {
		for i, r := range []faultRequest{
			{Publish: &PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: pods + "/p"}},
			{Unpublish: pods + "/p"},
		} {
			s.ArmFailure(0, 0)
			if a := s.ask(r); a.Code != codes.OK {
				t.Fatal(a)
			}
			s.Disarm()
			for _, c := range s.Calls() {
				calls[i] = append(calls[i], c.Name)
			}
		}
		return calls
	}
	count() // what is determined once, such as the calls that the kernel has
	few := count()
	for i := range 2000 {
		ok(t, os.Mkdir(fmt.Sprint(pods, "/", i), 0o755))
	}
	many := count()
	t.Logf("publish %v, unpublish %v", few[0], few[1])
	for i := range few {
		if !slices.Equal(few[i], many[i]) {
			t.Errorf("among many %v, among few %v", many[i], few[i])
		}
	}
	if slices.Contains(few[1], "getdents64") {
		t.Error("unpublish reads a directory")
	}
	if slices.Contains(few[0], "statmount") && len(few[0])+len(few[1]) > 20 { // those that package crash counts
		t.Errorf("%d calls", len(few[0])+len(few[1]))
	}
}

// What replaces the directory of the target while the target is being unmounted is not touched.
func TestUnpublishOfAReplacedDirectory(t *testing.T) {
	n, staging, pods := staged(t)
	ours, theirs, link := pods+"/ours", pods+"/theirs", pods+"/link"
	for _, dir := range []string{ours, theirs} {
		ok(t, os.Mkdir(dir, 0o755))
		ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: dir + "/p"}))
	}
	ok(t, os.Symlink(ours, link))
	var err error
	moved := pods + "/moved"
	n, err = New(Config{TracerProvider: hookTracers{hook: func(span string) {
		if span == "nodeops.unmount" {
			ok(t, os.Rename(ours, moved))
			ok(t, os.Rename(theirs, ours))
		}
	}}})
	ok(t, err)
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: link + "/p"}))
	if _, err := os.Lstat(moved + "/p"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was to be unpublished is still there (%v)", err)
	}
	if got := mountedTypes(t, ours+"/p"); len(got) != 1 {
		t.Errorf("the other publication shows %v", got)
	}
}

// A target below a mount that does not respond holds neither its caller nor another volume, and
// repeated calls start no further one in the kernel.
func TestTargetBelowAHungMount(t *testing.T) {
	n, staging, pods := staged(t)
	ok(t, os.Mkdir(pods+"/fuse", 0o755))
	server := mountFuse(t, pods+"/fuse")
	server.hangs.Store(true)
	defer time.AfterFunc(20*time.Second, server.die).Stop() // a call that waits for it has failed
	target := pods + "/fuse/dir/p"
	publish := func(ctx context.Context, target string) error {
		return n.PublishFilesystem(ctx, PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target})
	}
	unpublish := func(ctx context.Context, target string) error {
		return n.Unpublish(ctx, UnpublishRequest{VolumeID: "v", TargetPath: target})
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-server.requested; cancel() }()
	if err := publish(ctx, target); !isPending(err) {
		t.Errorf("error is %v, want one that is pending", err)
	}
	for _, again := range []func(context.Context, string) error{unpublish, publish} {
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := again(short, target); !isPending(err) {
			t.Errorf("error is %v, want one that is pending", err)
		}
	}
	if calls := n.InFlight(); len(calls) != 1 || !strings.HasPrefix(calls[0].Key, target) {
		t.Errorf("in flight are %+v, want one call for the target", calls)
	}
	ok(t, publish(t.Context(), pods+"/p"))
	ok(t, unpublish(t.Context(), pods+"/p"))
	if ctx.Err() == nil {
		t.Error("nothing hung")
	}
	server.die()
	waitIdle(t, n)
}
