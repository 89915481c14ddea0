package csitest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A loop device that stays after a stage that failed is found; one that is detached is not.
func TestFailedStage(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "losetup", "mkfs.ext4")
	t.Parallel()
	for _, leaks := range []bool{false, true} {
		d := &loopDriver{dir: t.TempDir(), leaks: leaks, loops: map[string]string{}}
		t.Cleanup(d.detachAll)
		target, cfg := reference(t, defect{kernel: true, unary: d.interceptor()})
		cfg.Rules = []string{"leaks.failed-stage"}
		report, err := Check(t.Context(), target, cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]Outcome{false: Passed, true: Failed}[leaks]
		x := report.Results[0]
		if x.Outcome != want || leaks && !strings.Contains(fmt.Sprint(x.Failures), "image") {
			t.Errorf("leaks %t: %s, want %s: %s %v", leaks, x.Outcome, want, x.Reason, x.Failures)
		}
	}
}

// A loopDriver is the node part of a driver whose volumes are on loop devices.
type loopDriver struct {
	dir   string
	leaks bool // the device of a stage that failed

	mu    sync.Mutex
	loops map[string]string // by staging path
}

func (d *loopDriver) interceptor() grpc.UnaryServerInterceptor {
	return chain(
		instead(func(r *csi.NodeStageVolumeRequest) (proto.Message, error) {
			return &csi.NodeStageVolumeResponse{}, d.stage(r)
		}),
		instead(func(r *csi.NodeUnstageVolumeRequest) (proto.Message, error) {
			return &csi.NodeUnstageVolumeResponse{}, d.unstage(r.GetStagingTargetPath())
		}),
		instead(func(r *csi.NodePublishVolumeRequest) (proto.Message, error) {
			_ = os.Mkdir(r.GetTargetPath(), 0o750)
			return &csi.NodePublishVolumeResponse{}, unix.Mount(r.GetStagingTargetPath(), r.GetTargetPath(), "", unix.MS_BIND, "")
		}),
		instead(func(r *csi.NodeUnpublishVolumeRequest) (proto.Message, error) {
			_ = unix.Unmount(r.GetTargetPath(), 0)
			_ = os.Remove(r.GetTargetPath())
			return &csi.NodeUnpublishVolumeResponse{}, nil
		}))
}

func (d *loopDriver) stage(r *csi.NodeStageVolumeRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	image, staging := filepath.Join(d.dir, "image-"+r.GetVolumeId()), r.GetStagingTargetPath()
	if _, err := os.Stat(image); err != nil {
		if out, err := exec.Command("mkfs.ext4", "-q", image, "8M").CombinedOutput(); err != nil {
			return status.Errorf(codes.Internal, "mkfs: %v: %s", err, out)
		}
	}
	out, err := exec.Command("losetup", "--show", "-f", image).CombinedOutput()
	if err != nil {
		return status.Errorf(codes.Internal, "losetup: %v: %s", err, out)
	}
	d.loops[staging] = strings.TrimSpace(string(out))
	if err := unix.Mount(d.loops[staging], staging, "ext4", 0, strings.Join(r.GetVolumeCapability().GetMount().GetMountFlags(), ",")); err != nil {
		if !d.leaks {
			d.detach(staging)
		}
		return status.Errorf(codes.Internal, "mount: %v", err)
	}
	return nil
}

func (d *loopDriver) unstage(staging string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = unix.Unmount(staging, 0)
	d.detach(staging)
	return nil
}

func (d *loopDriver) detach(staging string) {
	if loop := d.loops[staging]; loop != "" {
		_ = exec.Command("losetup", "-d", loop).Run()
		delete(d.loops, staging)
	}
}

func (d *loopDriver) detachAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for staging := range d.loops {
		d.detach(staging)
	}
}
