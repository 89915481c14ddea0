package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const mib = int64(1) << 20

// walk is the demo's story.
type walk struct {
	kubelet
	dir      string // all that the demo makes lies below it
	program  string
	endpoint string
	identity csi.IdentityClient
	process  *exec.Cmd
	exited   chan struct{}
	volumes  []*volume
}

func newWalk(dir, program string) (*walk, error) {
	w := &walk{
		dir: dir, program: program,
		endpoint: "unix://" + filepath.Join(dir, "csi.sock"),
		volumes: []*volume{
			{pv: "pvc-ext4", fsType: "ext4", size: 512 * mib, grown: 768 * mib},
			{pv: "pvc-xfs", fsType: "xfs", size: 512 * mib, grown: 1024 * mib},
			{pv: "pvc-block", size: 256 * mib, grown: 384 * mib},
		},
	}
	w.root = filepath.Join(dir, "kubelet")
	// A driver that starts is called until it answers; without the short backoff
	// the times shown would be those of grpc's patience.
	quick := grpc.ConnectParams{MinConnectTimeout: 10 * time.Second, Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}
	conn, err := grpc.NewClient(w.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(quick), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, err
	}
	w.conn, w.node, w.ctrl, w.identity = conn, csi.NewNodeClient(conn), csi.NewControllerClient(conn), csi.NewIdentityClient(conn)
	return w, os.MkdirAll(w.root, 0o750)
}

func (w *walk) run(ctx context.Context) error {
	for _, step := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"start the driver", w.start},
		{"make three volumes and attach them to this node", w.create},
		{"stage them: attach loop devices, format, mount", w.stageAll},
		{"publish each to two pods", w.publishAll},
		{"write through pod A, read back through pod B", w.exchange},
		{"usage, as kubelet asks for it every minute", w.usage},
		{"what is mounted", w.showMounts},
		{"kill -9 the driver; kubelet stages and publishes everything again", w.killAndRepeat},
		{"expand while pod A writes", w.expandAll},
		{"take everything down", w.down},
		{"what is left", w.left},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		fmt.Printf("\n%s\n", strings.ToUpper(step.title[:1])+step.title[1:])
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) start(ctx context.Context) error {
	if err := w.launch(); err != nil {
		return err
	}
	var name, version string
	if err := call(ctx, "GetPluginInfo", "", func(ctx context.Context) error {
		r, err := w.identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		name, version = r.GetName(), r.GetVendorVersion()
		return err
	}); err != nil {
		return err
	}
	w.driver = name
	fmt.Printf("  %s %s serves %s\n", name, version, w.endpoint)
	return nil
}

// launch starts the driver; it dies with the demo.
func (w *walk) launch() error {
	log, err := os.OpenFile(w.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	w.process = exec.Command(w.program, "-endpoint", w.endpoint, "-pool", w.pool(), "-node-id", "demo-node")
	w.process.Stdout, w.process.Stderr = log, log
	// A group of its own: Ctrl-C is for the demo, which then takes its volumes down.
	w.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := w.process.Start(); err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}
	w.exited = make(chan struct{})
	go func(p *exec.Cmd, exited chan struct{}) {
		p.Wait()
		close(exited)
	}(w.process, w.exited)
	return nil
}

func (w *walk) pool() string    { return filepath.Join(w.dir, "pool") }
func (w *walk) logPath() string { return filepath.Join(w.dir, "driver.log") }

func (w *walk) create(ctx context.Context) error {
	for _, v := range w.volumes {
		if err := call(ctx, "CreateVolume", fmt.Sprintf("%s, %d MiB", v.kind(), v.size/mib), func(ctx context.Context) error {
			r, err := w.ctrl.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: v.pv, CapacityRange: &csi.CapacityRange{RequiredBytes: v.size},
				VolumeCapabilities: []*csi.VolumeCapability{v.capability()},
			})
			v.id = r.GetVolume().GetVolumeId()
			return err
		}); err != nil {
			return err
		}
	}
	for _, v := range w.volumes {
		if err := call(ctx, "ControllerPublishVolume", v.kind(), func(ctx context.Context) error {
			r, err := w.ctrl.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
				VolumeId: v.id, NodeId: "demo-node", VolumeCapability: v.capability(),
			})
			v.publishContext = r.GetPublishContext()
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) stageAll(ctx context.Context) error {
	for _, v := range w.volumes {
		if err := w.stage(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// publishAll: the second file system target is read-only. The second block target is not, because
// a block device is read-only for all or for none.
func (w *walk) publishAll(ctx context.Context) error {
	for _, v := range w.volumes {
		if err := errors.Join(w.publish(ctx, v, podA, false), w.publish(ctx, v, podB, !v.block())); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) exchange(context.Context) error {
	for _, v := range w.volumes {
		if err := writeData(v, w.targetPath(v, podA)); err != nil {
			return err
		}
		b := w.targetPath(v, podB)
		if err := checkData(v, b); err != nil {
			return err
		}
		refused := ""
		if !v.block() {
			if err := checkReadOnly(b); err != nil {
				return err
			}
			refused = "; pod B's write was refused"
		}
		fmt.Printf("  %-5s %d MiB, sha256 %s…, the same in both pods%s\n", v.kind(), dataSize/mib, v.sum[:12], refused)
	}
	return nil
}

func (w *walk) usage(ctx context.Context) error {
	for _, v := range w.volumes {
		var usage []*csi.VolumeUsage
		if err := call(ctx, "NodeGetVolumeStats", v.kind(), func(ctx context.Context) error {
			r, err := w.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: w.targetPath(v, podA)})
			usage = r.GetUsage()
			return err
		}); err != nil {
			return err
		}
		for _, u := range usage {
			switch {
			case u.GetUnit() == csi.VolumeUsage_INODES:
				fmt.Printf("    %d of %d inodes used\n", u.GetUsed(), u.GetTotal())
			case v.block():
				fmt.Printf("    %d MiB\n", u.GetTotal()/mib)
			default:
				fmt.Printf("    %d of %d MiB used\n", u.GetUsed()/mib, u.GetTotal()/mib)
			}
		}
	}
	return nil
}

func (w *walk) showMounts(context.Context) error {
	t := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  DEVICE\tROOT\tTYPE\tACCESS\tMOUNTED AT")
	for _, m := range mountTable() {
		if rel, ok := strings.CutPrefix(m.point, w.root+"/"); ok {
			access, _, _ := strings.Cut(m.options, ",")
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", m.device, m.root, m.fsType, access, shorten(rel))
		}
	}
	return t.Flush()
}

// shorten keeps a table row on one line: volume handles are 64 hex digits.
func shorten(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if len(p) > 16 && !strings.Contains(p, ".") {
			parts[i] = p[:8] + "…"
		}
	}
	return strings.Join(parts, "/")
}

func (w *walk) killAndRepeat(ctx context.Context) error {
	before := len(mountsBelow(w.root))
	if err := w.process.Process.Kill(); err != nil {
		return err
	}
	<-w.exited
	fmt.Println("  killed; the volumes stay mounted")
	for _, v := range w.volumes {
		if err := checkData(v, w.targetPath(v, podA)); err != nil {
			return err
		}
	}
	if err := errors.Join(w.launch(), w.stageAll(ctx), w.publishAll(ctx)); err != nil {
		return err
	}
	if after := len(mountsBelow(w.root)); after != before {
		return fmt.Errorf("%d mounts before the restart, %d after everything was staged and published again", before, after)
	}
	for _, v := range w.volumes {
		if err := checkData(v, w.targetPath(v, podB)); err != nil {
			return err
		}
	}
	fmt.Printf("  the same %d mounts as before, data intact\n", before)
	return nil
}

func (w *walk) expandAll(ctx context.Context) error {
	for _, v := range w.volumes {
		if err := w.expand(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) expand(ctx context.Context, v *volume) error {
	target := w.targetPath(v, podA)
	pod, err := startWriter(ctx, v, target, v.size/2-dataSize)
	if err != nil {
		return err
	}
	err = call(ctx, "ControllerExpandVolume", fmt.Sprintf("%s to %d MiB", v.kind(), v.grown/mib), func(ctx context.Context) error {
		_, err := w.ctrl.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: v.grown}, VolumeCapability: v.capability(),
		})
		return err
	})
	if err == nil {
		err = call(ctx, "NodeExpandVolume", v.kind(), func(ctx context.Context) error {
			_, err := w.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: v.id, VolumePath: target, StagingTargetPath: w.stagingPath(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: v.grown}, VolumeCapability: v.capability(),
			})
			return err
		})
	}
	later := v.fsType == "ext4" && status.Code(err) == codes.FailedPrecondition && !hasSysResource()
	if later {
		err = nil
	}
	if err == nil {
		err = pod.more()
	}
	written, writeErr := pod.end()
	if err := errors.Join(err, writeErr, checkData(v, target)); err != nil {
		return err
	}
	if later {
		fmt.Printf("    a mounted ext4 grows only with CAP_SYS_RESOURCE, which is missing here: it grows when it is staged again\n")
		return nil
	}
	size, err := w.size(v, target)
	if err != nil {
		return err
	}
	fmt.Printf("    pod A sees %d MiB; %.1f MiB written meanwhile, all read back\n", size/mib, float64(written)/float64(mib))
	return nil
}

// size is what a pod sees, and an error if that is not the expanded volume.
func (w *walk) size(v *volume, target string) (int64, error) {
	var size int64
	if v.block() {
		f, err := os.Open(target)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		if size, err = f.Seek(0, 2); err != nil {
			return 0, err
		}
	} else {
		var st unix.Statfs_t
		if err := unix.Statfs(target, &st); err != nil {
			return 0, err
		}
		size = int64(st.Blocks) * int64(st.Bsize)
	}
	// A file system keeps a part of the device for itself.
	if want := v.grown * 3 / 4; size <= max(v.size, want) {
		return size, fmt.Errorf("%s volume has %d bytes after growing from %d to %d", v.kind(), size, v.size, v.grown)
	}
	return size, nil
}

func (w *walk) down(ctx context.Context) error {
	for _, v := range w.volumes {
		if err := errors.Join(w.unpublish(ctx, v, podA), w.unpublish(ctx, v, podB)); err != nil {
			return err
		}
		if v.fsType == "ext4" && !hasSysResource() {
			if err := w.growAtStage(ctx, v); err != nil {
				return err
			}
		}
		if err := w.unstage(ctx, v); err != nil {
			return err
		}
		if err := call(ctx, "ControllerUnpublishVolume", v.kind(), func(ctx context.Context) error {
			_, err := w.ctrl.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: "demo-node"})
			return err
		}); err != nil {
			return err
		}
		if err := call(ctx, "DeleteVolume", v.kind(), func(ctx context.Context) error {
			_, err := w.ctrl.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// growAtStage shows that the growth that had to wait was not forgotten.
func (w *walk) growAtStage(ctx context.Context, v *volume) error {
	if err := errors.Join(w.unstage(ctx, v), w.stage(ctx, v), w.publish(ctx, v, podA, false)); err != nil {
		return err
	}
	target := w.targetPath(v, podA)
	size, err := w.size(v, target)
	if err := errors.Join(err, checkData(v, target)); err != nil {
		return err
	}
	fmt.Printf("    staged again, pod A sees %d MiB, data intact\n", size/mib)
	return w.unpublish(ctx, v, podA)
}

// left stops the driver and looks for whatever should be gone.
func (w *walk) left(context.Context) error {
	w.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.exited:
	case <-time.After(30 * time.Second):
		return errors.New("the driver did not stop within 30 s of SIGTERM")
	}
	if code := w.process.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the driver exited with status %d after SIGTERM", code)
	}
	var left []string
	for _, m := range mountsBelow(w.dir) {
		left = append(left, "mount "+m)
	}
	loops, err := loopsBelow(w.dir)
	if err != nil {
		return err
	}
	for _, d := range loops {
		left = append(left, "loop device "+d.Path)
	}
	expected := []string{
		filepath.Join(w.dir, lockName), w.logPath(), w.root,
		// The pool itself stays: it is the storage, and now an empty one.
		w.pool(), filepath.Join(w.pool(), ".csikit-pool"), filepath.Join(w.pool(), "volumes"), filepath.Join(w.pool(), "snapshots"), filepath.Join(w.pool(), "groups"),
		filepath.Join(w.pool(), "nodes"), filepath.Join(w.pool(), "nodes", "demo-node.json"),
		filepath.Join(w.pool(), "nodes", "demo-node.lock"),
	}
	for _, f := range filesBelow(w.dir, expected...) {
		left = append(left, "file "+f)
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
	fmt.Println("  no mount, no loop device, no file, no process")
	return nil
}

// tearDown takes down whatever is still there, as far as it can: the demo failed
// or was interrupted. What it does outside of the mount namespace, the other
// process undoes.
func (w *walk) tearDown() {
	w.conn.Close()
	if w.process != nil && w.process.Process != nil {
		w.process.Process.Kill()
		<-w.exited
	}
	for _, m := range mountsBelow(w.dir) {
		unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	loops, _ := loopsBelow(w.dir)
	for _, d := range loops {
		detach(d)
	}
}

func detach(d loopdev.Device) {
	if err := d.Detach(backgroundCtx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
}

// showLog prints the end of the driver's log.
func (w *walk) showLog() {
	text, err := os.ReadFile(w.logPath())
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	fmt.Println("\nThe end of the driver's log:")
	for _, l := range lines[max(0, len(lines)-25):] {
		fmt.Println(" ", l)
	}
}

func hasSysResource() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
