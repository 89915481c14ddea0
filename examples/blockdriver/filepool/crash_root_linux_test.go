package filepool_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// TestCrash walks a volume from CreateVolume to DeleteVolume and kills the driver
// with SIGKILL at every third state-changing system call of every RPC of the walk, or
// at every one with CSIKIT_TORTURE=1. A new driver then gets the same request again,
// which must succeed, and the rest of the walk, at whose end the data must have been
// intact and nothing be left.
func TestCrash(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_growfs")
	for _, c := range []struct {
		fsType string
		size   int64
	}{{"ext4", 64 << 20}, {"xfs", 300 << 20}, {"", 16 << 20}} {
		name := c.fsType
		if name == "" {
			name = "block"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crashEverywhere(t, crashSteps, 0, func(s crashStep) bool { return c.fsType == "ext4" || !s.controller }, // those are the same for all
				func(t *testing.T) *crashVolume { return newCrashVolume(t, c.fsType, c.size) })
		})
	}
}

// TestCrashFrozen is TestCrash for a group of volumes in use, on a pool that shares
// blocks: no kill leaves their file systems frozen.
func TestCrashFrozen(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "mkfs.xfs")
	steps := []crashStep{
		{name: "two volumes", do: func(w *crashVolume) error {
			for _, v := range []*crashVolume{w, w.second()} {
				if err := errors.Join(v.create(), v.attach(), v.stage(), v.publish("a"+v.name, false)); err != nil {
					return err
				}
			}
			return w.write()
		}},
		{name: "CreateVolumeGroupSnapshot", do: (*crashVolume).snapshotBoth, controller: true},
		{name: "write", do: func(w *crashVolume) error {
			return errors.Join(w.write(), os.WriteFile(w.target("asecond")+"/x", []byte("x"), 0o600), w.check("a"))
		}},
		{name: "the rest", do: func(w *crashVolume) error {
			for _, v := range []*crashVolume{w, w.second()} {
				if err := errors.Join(v.unpublish("a"+v.name), v.unstage(), v.detach(), v.delete()); err != nil {
					return err
				}
			}
			return w.deleteGroup()
		}},
	}
	crashEverywhere(t, steps, 0, func(s crashStep) bool { return s.controller }, func(t *testing.T) *crashVolume {
		w := newCrashVolume(t, "ext4", 16<<20)
		must(t, os.Mkdir(w.second().staging(), 0o700))
		mountPool(t, w.pool(), "xfs")
		return w
	})
}

// crashEverywhere does the walk once for every third system call of each of the chosen steps, at
// most that often for each step if most is not 0; with CSIKIT_TORTURE=1 for every call.
func crashEverywhere(t *testing.T, steps []crashStep, most int, chosen func(crashStep) bool, start func(*testing.T) *crashVolume) {
	var counts []int
	t.Run("count", func(t *testing.T) { counts, _ = crashWalk(t, start(t), steps, -1, 0) })
	stride := 3
	if os.Getenv("CSIKIT_TORTURE") == "1" {
		stride = 1
	}
	var kills atomic.Int64
	t.Run("kill", func(t *testing.T) { // it ends when those in it have
		for step, rpc := range steps {
			stride := stride
			if most > 0 && stride > 1 {
				stride = max(stride, (counts[step]+most-1)/most)
			}
			for n := 1 + step%min(stride, max(counts[step], 1)); chosen(rpc) && n <= counts[step]; n += stride {
				t.Run(fmt.Sprintf("%s/%d", rpc.name, n), func(t *testing.T) {
					t.Parallel()
					if _, killed := crashWalk(t, start(t), steps, step, n); killed {
						kills.Add(1)
					}
				})
			}
		}
	})
	if kills.Load() == 0 && slices.ContainsFunc(steps, chosen) {
		t.Error("the driver was never killed")
	}
	t.Logf("%d kills; system calls per RPC: %v", kills.Load(), counts)
}

// crashWalk does the walk in its own directory, killing the driver at the
// n-th call of one step, if the step has so many this time. With a negative step
// it only counts.
func crashWalk(t *testing.T, w *crashVolume, crashSteps []crashStep, killAt, n int) (counts []int, killed bool) {
	defer w.close()
	driver, err := crash.Start(w.command())
	if err != nil {
		t.Fatal(err)
	}
	w.killed = driver.Done()
	stop := func() { // the driver that serves at the end
		driver.Kill()
		_ = driver.Wait()
	}
	counts = make([]int, len(crashSteps))
	for i, step := range crashSteps {
		switch {
		case i == killAt:
			driver.Arm(n)
		case killAt < 0:
			driver.Arm(0)
		}
		err := step.do(w)
		if i == killAt {
			driver.Disarm()
		}
		if i == killAt && driver.Killed() {
			killed = true
			if driver.Wait() == nil {
				t.Error("the driver was killed, but exited with success")
			}
			w.killed = nil
			next := w.command()
			if err := next.Start(); err != nil {
				t.Fatal(err)
			}
			stop = func() {
				if err := errors.Join(next.Process.Signal(syscall.SIGTERM), next.Wait()); err != nil {
					t.Errorf("the driver after SIGTERM: %v", err)
				}
			}
			calls := driver.Calls()
			if err = w.again(func() error { return step.do(w) }); err != nil {
				err = fmt.Errorf("again, after SIGKILL before %v: %w", calls[len(calls)-1], err)
			}
		}
		if err != nil {
			t.Errorf("%s: %v", step.name, err)
			break
		}
		if killAt < 0 {
			counts[i] = len(driver.Calls())
		}
	}
	stop()
	if t.Failed() {
		t.Log(w.log())
	} else {
		w.checkNothingLeft()
	}
	return counts, killed
}

type crashStep struct {
	name       string
	do         func(*crashVolume) error
	controller bool
}

// crashSteps is the walk.
var crashSteps = []crashStep{
	{"CreateVolume", (*crashVolume).create, true},
	{"ControllerPublishVolume", (*crashVolume).attach, true},
	{"ControllerModifyVolume", (*crashVolume).modify, true},
	{"NodeStageVolume", (*crashVolume).stage, false},
	{"NodePublishVolume", func(w *crashVolume) error { return w.publish("a", false) }, false},
	{"write", (*crashVolume).write, false},
	{"NodePublishVolume of a second pod", func(w *crashVolume) error { return w.publish("b", w.fsType != "") }, false},
	{"ControllerExpandVolume", (*crashVolume).expand, true},
	{"NodeExpandVolume", (*crashVolume).expandNode, false},
	{"check", func(w *crashVolume) error { return w.check("b") }, false},
	{"NodeUnpublishVolume", func(w *crashVolume) error { return w.unpublish("b") }, false},
	{"NodeUnpublishVolume of the last pod", func(w *crashVolume) error { return w.unpublish("a") }, false},
	{"NodePublishVolume, read-only", func(w *crashVolume) error { return w.publish("c", true) }, false},
	{"check", func(w *crashVolume) error { return w.check("c") }, false},
	{"NodeUnpublishVolume, read-only", func(w *crashVolume) error { return w.unpublish("c") }, false},
	{"NodeUnstageVolume", (*crashVolume).unstage, false},
	{"NodeStageVolume of data", (*crashVolume).stage, false},
	{"NodePublishVolume of data", func(w *crashVolume) error { return w.publish("a", false) }, false},
	{"check", func(w *crashVolume) error { return errors.Join(w.check("a"), w.checkWritable("a")) }, false},
	{"NodeUnpublishVolume of data", func(w *crashVolume) error { return w.unpublish("a") }, false},
	{"NodeUnstageVolume of data", (*crashVolume).unstage, false},
	{"ControllerUnpublishVolume", (*crashVolume).detach, true},
	{"CreateSnapshot", (*crashVolume).snapshot, true},
	{"CreateVolume from a snapshot", func(w *crashVolume) error { return w.createFrom(fromSnapshot(w.snapshotID())) }, true},
	{"check", (*crashVolume).checkCopies, false},
	{"CreateVolumeGroupSnapshot", (*crashVolume).snapshotBoth, true},
	{"DeleteVolume", (*crashVolume).delete, true},
	{"check", (*crashVolume).checkCopies, false},
	{"DeleteSnapshot", (*crashVolume).deleteSnapshot, true},
	{"DeleteVolumeGroupSnapshot", (*crashVolume).deleteGroup, true},
	{"DeleteVolume of a copy", func(w *crashVolume) error { return w.second().delete() }, true},
}

// crashVolume is the CO's view of one volume.
type crashVolume struct {
	t          *testing.T
	dir        string
	name       string // of the volume; "" is "crash"
	fsType     string // "" for raw block
	size       int64
	encrypted  bool
	id         string
	published  map[string]string // publish context
	conn       *grpc.ClientConn
	killed     <-chan struct{} // closed when the driver was killed
	node       csi.NodeClient
	controller csi.ControllerClient
}

func newCrashVolume(t *testing.T, fsType string, size int64) *crashVolume {
	// Not t.TempDir, which has the test's name in it: a socket's path is short, and a
	// comma begins a pool's segments.
	dir, err := os.MkdirTemp("", "walk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{"staging", "pods"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w := &crashVolume{t: t, dir: dir, fsType: fsType, size: size}
	makePool(t, w.pool())
	quick := grpc.ConnectParams{MinConnectTimeout: 10 * time.Second, Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond}}
	if w.conn, err = grpc.NewClient(w.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(quick), grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
		t.Fatal(err)
	}
	w.node, w.controller = csi.NewNodeClient(w.conn), csi.NewControllerClient(w.conn)
	return w
}

func (w *crashVolume) endpoint() string         { return "unix://" + filepath.Join(w.dir, "csi.sock") }
func (w *crashVolume) target(pod string) string { return filepath.Join(w.dir, "pods", pod) }
func (w *crashVolume) pool() string             { return filepath.Join(w.dir, "pool") }
func (w *crashVolume) snapshotID() string       { return idOnDisk(filepool.SnapshotKind, "snap", w.pool()) }
func (w *crashVolume) staging() string          { return filepath.Join(w.dir, "staging"+w.name) }

func (w *crashVolume) command() *exec.Cmd {
	c := gate.RoleCommand(context.Background(), "blockdriver",
		"-endpoint", w.endpoint(), "-pool", w.pool(), "-node-id", "node", "-log-level", "debug")
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { log.Close() })
	c.Stdout, c.Stderr = log, log
	return c
}

func (w *crashVolume) log() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "log"))
	return string(text)
}

// close takes down what a failed walk left.
func (w *crashVolume) close() {
	w.conn.Close()
	for _, m := range w.mounts() {
		unix.Unmount(m, unix.MNT_DETACH)
	}
	for _, d := range w.loops() {
		d.Detach(context.Background())
	}
}

// again repeats the request as kubelet does: while it does not know the outcome.
func (w *crashVolume) again(do func() error) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := do()
		switch status.Code(err) {
		case codes.Aborted, codes.Unavailable, codes.DeadlineExceeded:
			if time.Now().Before(end) {
				continue
			}
		}
		return err
	}
}

// ctx is kubelet's deadline, and ends with the driver: a call that was not sent
// yet would wait for the next one.
func (w *crashVolume) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	w.t.Cleanup(cancel)
	killed := w.killed
	go func() {
		select {
		case <-killed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx
}

func (w *crashVolume) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}}
	if w.fsType == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: w.fsType}}
	}
	return c
}

func (w *crashVolume) create() error {
	r, err := w.controller.CreateVolume(w.ctx(), &csi.CreateVolumeRequest{
		Name: cmp.Or(w.name, "crash"), CapacityRange: &csi.CapacityRange{RequiredBytes: w.size},
		VolumeCapabilities: []*csi.VolumeCapability{w.capability()}, Parameters: w.parameters(),
	})
	w.id = r.GetVolume().GetVolumeId()
	return err
}

func (w *crashVolume) attach() error {
	r, err := w.controller.ControllerPublishVolume(w.ctx(), &csi.ControllerPublishVolumeRequest{
		VolumeId: w.id, NodeId: "node", VolumeCapability: w.capability(),
	})
	w.published = r.GetPublishContext()
	return err
}

func (w *crashVolume) stage() error {
	_, err := w.node.NodeStageVolume(w.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: w.id, StagingTargetPath: w.staging(), VolumeCapability: w.capability(), PublishContext: w.published,
		Secrets: w.secrets(),
	})
	return err
}

func (w *crashVolume) parameters() map[string]string {
	if !w.encrypted {
		return nil
	}
	return map[string]string{storage.ParamEncryption: storage.EncryptionLUKS2}
}

func (w *crashVolume) secrets() map[string]string {
	if !w.encrypted {
		return nil
	}
	return map[string]string{"passphrase": "of the crash"}
}

func (w *crashVolume) publish(pod string, readOnly bool) error {
	_, err := w.node.NodePublishVolume(w.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: w.id, StagingTargetPath: w.staging(), TargetPath: w.target(pod), VolumeCapability: w.capability(), Readonly: readOnly,
		PublishContext: w.published,
	})
	return err
}

func (w *crashVolume) expand() error {
	_, err := w.controller.ControllerExpandVolume(w.ctx(), &csi.ControllerExpandVolumeRequest{
		VolumeId: w.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * w.size}, VolumeCapability: w.capability(),
	})
	return err
}

func (w *crashVolume) expandNode() error {
	_, err := w.node.NodeExpandVolume(w.ctx(), &csi.NodeExpandVolumeRequest{
		VolumeId: w.id, VolumePath: w.target("a"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * w.size}, VolumeCapability: w.capability(),
		Secrets: w.secrets(),
	})
	if w.fsType == "ext4" && status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
		return nil // it grows at the next stage
	}
	return err
}

func (w *crashVolume) unpublish(pod string) error {
	_, err := w.node.NodeUnpublishVolume(w.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: w.id, TargetPath: w.target(pod)})
	return err
}

func (w *crashVolume) unstage() error {
	_, err := w.node.NodeUnstageVolume(w.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: w.id, StagingTargetPath: w.staging()})
	return err
}

func (w *crashVolume) detach() error {
	_, err := w.controller.ControllerUnpublishVolume(w.ctx(), &csi.ControllerUnpublishVolumeRequest{VolumeId: w.id, NodeId: "node"})
	return err
}

func (w *crashVolume) delete() error {
	_, err := w.controller.DeleteVolume(w.ctx(), &csi.DeleteVolumeRequest{VolumeId: w.id})
	return err
}

func (w *crashVolume) modify() error {
	_, err := w.controller.ControllerModifyVolume(w.ctx(), &csi.ControllerModifyVolumeRequest{
		VolumeId: w.id, MutableParameters: map[string]string{"readAheadKiB": "64"},
	})
	return err
}

// second is another volume of the same driver.
func (w *crashVolume) second() *crashVolume {
	v := *w
	v.name, v.id = "second", idOnDisk(filepool.VolumeKind, "second", w.pool())
	return &v
}

func (w *crashVolume) snapshot() error {
	_, err := w.controller.CreateSnapshot(w.ctx(), &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: w.id})
	return err
}

func (w *crashVolume) deleteSnapshot() error {
	_, err := w.controller.DeleteSnapshot(w.ctx(), &csi.DeleteSnapshotRequest{SnapshotId: w.snapshotID()})
	return err
}

func (w *crashVolume) createFrom(source *csi.VolumeContentSource) error {
	_, err := w.controller.CreateVolume(w.ctx(), &csi.CreateVolumeRequest{
		Name: "second", VolumeCapabilities: []*csi.VolumeCapability{w.capability()}, VolumeContentSource: source, Parameters: w.parameters(),
	})
	return err
}

func (w *crashVolume) snapshotBoth() error {
	_, err := w.group(w.id, w.second().id)
	return err
}

func (w *crashVolume) deleteGroup() error {
	_, err := csi.NewGroupControllerClient(w.conn).DeleteVolumeGroupSnapshot(w.ctx(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: idOnDisk(filepool.GroupKind, "group", w.pool())})
	return err
}

// checkCopies looks for the data in all images: those of what was made of the volume
// have it as the volume has.
func (w *crashVolume) checkCopies() error {
	images, err := filepath.Glob(filepath.Join(w.dir, "pool", "*", "*.img"))
	if err == nil && len(images) < 3 {
		err = fmt.Errorf("%d images", len(images))
	}
	for _, image := range images {
		data, readErr := readSparse(image)
		if err = errors.Join(err, readErr); readErr == nil && !bytes.Contains(data, crashData) {
			err = errors.Join(err, fmt.Errorf("%s lacks the data", image))
		}
	}
	return err
}

// readSparse leaves the holes out.
func readSparse(file string) (data []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for at := int64(0); ; {
		start, end, err := filepool.NextData(f, at)
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		part := make([]byte, end-start)
		if _, err := f.ReadAt(part, start); err != nil {
			return nil, err
		}
		data, at = append(data, part...), end
	}
}

var crashData = bytes.Repeat([]byte("precious "), 100_000)

func (w *crashVolume) file(pod string) string {
	if w.fsType == "" {
		return w.target(pod)
	}
	return filepath.Join(w.target(pod), "data")
}

func (w *crashVolume) write() error {
	f, err := os.OpenFile(w.file("a"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(crashData)
	return errors.Join(err, f.Sync(), f.Close())
}

func (w *crashVolume) check(pod string) error {
	f, err := os.Open(w.file(pod))
	if err != nil {
		return err
	}
	defer f.Close()
	got := make([]byte, len(crashData))
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, crashData) {
		return fmt.Errorf("%s: the data is not what was written", f.Name())
	}
	return nil
}

// checkWritable: no read-only flag of an earlier publication is left, and the
// volume has its new size.
func (w *crashVolume) checkWritable(pod string) error {
	if err := w.write(); err != nil {
		return err
	}
	r, err := w.node.NodeGetVolumeStats(w.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: w.id, VolumePath: w.target(pod)})
	if err != nil {
		return err
	}
	if total := r.GetUsage()[0].GetTotal(); total < w.size*3/2 {
		return fmt.Errorf("the volume has %d bytes after growing from %d to %d", total, w.size, 2*w.size)
	}
	return nil
}

func (w *crashVolume) mounts() []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		w.t.Error(err)
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], w.dir+"/") && f[4] != w.pool() {
			points = append(points, f[4])
		}
	}
	return points
}

func (w *crashVolume) loops() []loopdev.Device {
	all, err := loopdev.List()
	if err != nil {
		w.t.Error(err)
	}
	var ours []loopdev.Device
	for _, d := range all {
		if strings.HasPrefix(d.Backing, w.dir+"/") && d.Backing != filepath.Join(w.dir, "pool.disk") {
			ours = append(ours, d)
		}
	}
	return ours
}

func (w *crashVolume) checkNothingLeft() {
	w.t.Helper()
	if m := w.mounts(); len(m) > 0 {
		w.t.Errorf("mounts are left: %v", m)
	}
	if d := w.loops(); len(d) > 0 {
		w.t.Errorf("loop devices are left: %+v", d)
	}
	for _, dir := range []string{"pods", "pool/volumes", "pool/snapshots", "pool/groups"} {
		left, err := os.ReadDir(filepath.Join(w.dir, dir))
		if err != nil || len(left) > 0 {
			w.t.Errorf("%s holds %v (%v), want nothing", dir, left, err)
		}
	}
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}
