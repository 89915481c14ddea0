package nodeops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The tests here and in failures_userns_linux_test.go reproduce failures from
// production; docs/failures.md lists them all.

// link creates or changes a link like those of udev in /dev/disk/by-id.
func link(t *testing.T, name, to string) {
	t.Helper()
	tmp := name + ".new"
	ok(t, os.Symlink(to, tmp))
	ok(t, os.Rename(tmp, name))
}

func (f *fixture) content() []byte {
	f.t.Helper()
	text, err := os.ReadFile(f.image)
	ok(f.t, err)
	return text
}

func (f *fixture) mustRead(path, want string) {
	f.t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		f.t.Errorf("%s holds %q (%v), want %q", path, got, err, want)
	}
}

func (f *fixture) mustHaveMounts(path string, want int) {
	f.t.Helper()
	if n := len(f.mounts(path)); n != want {
		f.t.Errorf("%d mounts at %s, want %d", n, path, want)
	}
}

// kubernetes-sigs/aws-ebs-csi-driver#1224: a link in /dev/disk/by-id was that of the
// device before, and a pod got another volume.
// kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#2380: the link changed while the
// volume was staged.
func TestStaleLinkToADevice(t *testing.T) {
	ours, other := newFixture(t, 64*mib), newFixture(t, 65*mib)
	for name, f := range map[string]*fixture{"ours": ours, "other": other} {
		f.mustStage("ext4")
		f.write(f.staging+"/file", name)
		f.unstage()
	}
	byID := filepath.Join(t.TempDir(), "by-id")
	r := ours.stageRequest("ext4")
	r.Device = Device{Path: byID, Size: 64 * mib}

	link(t, byID, other.dev.Path)
	wantKind(t, ours.stage(r), csierr.Precondition, "another disk")
	ours.mustHaveMounts(ours.staging, 0)

	link(t, byID, ours.dev.Path)
	ok(t, ours.stage(r))
	ours.mustRead(ours.staging+"/file", "ours")

	// Whatever the caller has checked, the device that is staged is compared.
	link(t, byID, other.dev.Path)
	r.Device.Size = 0
	wantKind(t, ours.stage(r), csierr.Conflict, fmt.Sprintf("device is 7:%d", unix.Minor(ours.dev.Rdev)))
	err := ours.publish("p", func(p *PublishFilesystemRequest) { p.Device.Path = byID })
	wantKind(t, err, csierr.Precondition, "shows device", "not "+other.dev.Path)
	ours.mustHaveMounts(ours.staging, 1)

	link(t, byID, ours.dev.Path)
	ok(t, ours.stage(r))
	ok(t, ours.publish("p", func(p *PublishFilesystemRequest) { p.Device.Path = byID }))
	ours.mustHaveMounts(ours.staging, 1)
	ok(t, ours.unpublish("p"))
	ours.unstage()

	// And if the path becomes another device between our check and the kernel's.
	dev, err := openDevice(Device{Path: ours.dev.Path})
	ok(t, err)
	defer dev.close()
	dev.path = other.dev.Path
	err = wrap("stage", "v", ours.staging, ours.node.mountDevice(t.Context(), dev, point(t, ours.staging), "ext4", mountapi.Options{}))
	wantKind(t, err, csierr.Precondition, "now refers to a different device")
	ours.mustHaveMounts(ours.staging, 0)
	other.mustStage("ext4")
	other.mustRead(other.staging+"/file", "other")
}

// kubernetes-sigs/aws-ebs-csi-driver#1076: the same disk was /dev/xvdba before and
// /dev/nvme3n1 after a restart, and was taken for another one.
func TestDeviceByAnotherName(t *testing.T) {
	f := newFixture(t, 64*mib)
	alias := filepath.Join(t.TempDir(), "nvme3n1")
	ok(t, unix.Mknod(alias, unix.S_IFBLK|0o600, int(f.dev.Rdev)))
	byID := filepath.Join(t.TempDir(), "by-id")
	link(t, byID, alias)
	for _, path := range []string{f.dev.Path, alias, byID} {
		f.with(Config{}) // the plugin was restarted
		r := f.stageRequest("ext4")
		r.Device.Path = path
		ok(t, f.stage(r))
		ok(t, f.publish("p", func(p *PublishFilesystemRequest) { p.Device.Path = path }))
	}
	f.mustHaveMounts(f.staging, 1)
	f.mustHaveMounts(f.target("p"), 1)
	ok(t, f.unpublish("p"))
	f.unstage()
	for _, path := range []string{f.dev.Path, alias, byID} {
		f.with(Config{})
		ok(t, f.publishBlock("b", func(b *PublishBlockRequest) { b.Device.Path = path }))
	}
	f.mustHaveMounts(f.target("b"), 1)
	ok(t, f.unpublish("b"))
	f.mustHaveMounts(f.target("b"), 0)
}

// digitalocean/csi-digitalocean#478: a volume was said to be attached before its device
// could be used, and could be formatted for that.
func TestDeviceThatIsNotReady(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	f.write(f.staging+"/file", "data")
	f.unstage()
	log := f.with(Config{})
	byID := filepath.Join(t.TempDir(), "by-id")
	r := f.stageRequest("ext4")
	r.Device.Path = byID
	wantKind(t, f.stage(r), csierr.Precondition, "does not exist")

	node := filepath.Join(t.TempDir(), "node") // of a driver that is not loaded: ENXIO
	ok(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(240, 17))))
	link(t, byID, node)
	wantKind(t, f.stage(r), csierr.Precondition, "does not exist")

	link(t, byID, "/dev/null")
	wantKind(t, f.stage(r), csierr.Precondition, "not a block device")
	if len(log.lines) > 0 {
		t.Errorf("ran %q for a device that is not ready", log.lines)
	}
	link(t, byID, f.dev.Path)
	ok(t, f.stage(r))
	f.mustRead(f.staging+"/file", "data")
}

// hetznercloud/csi-driver#1364: mkfs ran 708 times in a day on a mapper whose disk was
// gone.
func TestUnreadableDeviceIsNeverFormatted(t *testing.T) {
	for _, c := range fsTable {
		f := newFixture(t, c.size)
		ok(t, os.Truncate(f.image, 4096)) // the rest cannot be read; blkid calls it blank
		log := f.with(Config{})
		for range 20 {
			wantKind(t, f.stage(f.stageRequest(c.fsType)), csierr.Internal, "cannot be read")
		}
		if len(log.lines) > 0 {
			t.Errorf("%s: ran %q", c.fsType, log.lines)
		}
	}
}

// longhorn/longhorn#8009: a file stood where the device node should be, was bound, and
// the pod's container could not be made.
func TestBlockNodeThatIsAFile(t *testing.T) {
	f := newFixture(t, 8*mib)
	err := f.publishBlock("p", func(r *PublishBlockRequest) { r.Device.Path = f.image })
	wantKind(t, err, csierr.Precondition, "not a block device")
	if _, err := os.Lstat(f.target("p")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target was made (%v)", err)
	}
	f.write(f.target("p"), "")
	ok(t, unix.Mount(f.image, f.target("p"), "", unix.MS_BIND, ""))
	wantKind(t, f.publishBlock("p", nil), csierr.Conflict, "want block device")
	ok(t, f.unpublish("p"))
	ok(t, f.publishBlock("p", nil))
	ok(t, f.unpublish("p"))
}

// hetznercloud/csi-driver#349: raw block volumes were formatted.
// ceph/ceph-csi#3945: resizing looked for a file system on one.
func TestBlockRunsNoProgram(t *testing.T) {
	for field := range reflect.TypeFor[PublishBlockRequest]().Fields() {
		if strings.HasPrefix(field.Name, "FS") || strings.HasPrefix(field.Name, "Mount") {
			t.Errorf("a raw block volume can be given %s", field.Name)
		}
	}
	for _, setup := range []struct {
		name string
		do   func(*fixture)
	}{
		{"blank", func(*fixture) {}},
		{"file system of the pod's own", func(f *fixture) {
			f.mustStage("ext4")
			f.unstage()
			f.resize(128 * mib) // staging it would grow it
		}},
	} {
		t.Run(setup.name, func(t *testing.T) {
			f := newFixture(t, 64*mib)
			setup.do(f)
			before := f.content()
			log := f.with(Config{})
			for range 2 {
				ok(t, f.publishBlock("p", nil))
				ok(t, f.publishBlock("q", nil))
				_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.target("p")})
				ok(t, err)
				_, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
				ok(t, err)
			}
			ok(t, f.unpublish("p"))
			ok(t, f.unpublish("q"))
			ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
			if len(log.lines) > 0 {
				t.Errorf("ran %q", log.lines)
			}
			if !bytes.Equal(before, f.content()) {
				t.Error("the device was written")
			}
		})
	}
}

// topolvm/topolvm#1225: each publish of a raw block volume put one more bind on the
// others.
// outscale/osc-bsu-csi-driver#130: after two publishes one unpublish left a mount, and
// the pod stayed Terminating.
func TestPublishDoesNotStack(t *testing.T) {
	f := newFixture(t, 64*mib)
	kinds := map[string]func(pod string) error{
		"file system":           func(pod string) error { return f.publish(pod, nil) },
		"read-only file system": func(pod string) error { return f.publish(pod, func(r *PublishFilesystemRequest) { r.ReadOnly = true }) },
		"block":                 func(pod string) error { return f.publishBlock(pod, nil) },
		"read-only block":       func(pod string) error { return f.publishBlock(pod, func(r *PublishBlockRequest) { r.ReadOnly = true }) },
	}
	for name, publish := range kinds {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(name, "block") {
				f.mustStage("ext4")
			}
			for range 3 {
				f.with(Config{}) // which does not remember the call before
				ok(t, publish("p"))
			}
			f.mustHaveMounts(f.target("p"), 1)
			ok(t, f.unpublish("p"))
			f.mustHaveMounts(f.target("p"), 0)
			if _, err := os.Lstat(f.target("p")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the target is still there (%v)", err)
			}
			f.unstage()
		})
	}
}

// kubernetes-sigs/aws-ebs-csi-driver#1605, kubernetes-csi/csi-driver-nfs#319,
// libopenstorage/openstorage#1221, ceph/ceph-csi#1860: what was unmounted already was an
// error, and the pod stayed Terminating.
func TestTeardownIsIdempotent(t *testing.T) {
	f := newFixture(t, 64*mib)
	ways := map[string]func(path string) error{
		"nothing":                 func(string) error { return nil },
		"unmounted":               func(p string) error { return unix.Unmount(p, 0) },
		"unmounted and removed":   func(p string) error { return errors.Join(unix.Unmount(p, 0), os.Remove(p)) },
		"with all of its parents": func(p string) error { return errors.Join(unix.Unmount(p, 0), os.Remove(p), os.Remove(filepath.Dir(p))) },
	}
	for name, undo := range ways {
		t.Run(name, func(t *testing.T) {
			for _, block := range []bool{false, true} {
				pod := filepath.Join("pod", "mount")
				ok(t, os.MkdirAll(f.target("pod"), 0o755))
				if block {
					ok(t, f.publishBlock(pod, nil))
				} else {
					f.mustStage("ext4")
					ok(t, f.publish(pod, nil))
				}
				ok(t, undo(f.target(pod)))
				for range 2 {
					ok(t, f.unpublish(pod))
				}
				f.mustHaveMounts(f.target(pod), 0)
				ok(t, os.RemoveAll(f.target("pod")))
				if block {
					continue
				}
				if name != "nothing" {
					ok(t, unix.Unmount(f.staging, 0))
				}
				for range 2 {
					ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
				}
				f.mustHaveMounts(f.staging, 0)
			}
		})
	}
}

// digitalocean/csi-digitalocean@d009d467: teardown called the API, and blocked with it.
// truenas/truenas-csi#55: teardown needed state in the container's file system; after a
// restart it did nothing, and the mount was used for the next volume.
func TestTeardownNeedsNoState(t *testing.T) {
	f, next := newFixture(t, 64*mib), newFixture(t, 64*mib)
	f.mustStage("ext4")
	ok(t, f.publish("rw", nil))
	ok(t, f.publish("ro", func(r *PublishFilesystemRequest) { r.ReadOnly = true }))
	ok(t, next.publishBlock("block", func(r *PublishBlockRequest) { r.ReadOnly = true }))

	// A new process that knows nothing, has no programs, and whose volume is gone from
	// where it came from.
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOME", "/nonexistent")
	log := f.with(Config{})
	ok(t, os.Remove(f.image))
	r := next.stageRequest("ext4")
	r.StagingTargetPath = f.staging
	wantKind(t, f.stage(r), csierr.Conflict, "device is ")
	ok(t, f.node.Unpublish(t.Context(), UnpublishRequest{TargetPath: next.target("block")}))
	if next.refusesWrites() {
		t.Error("the block device stays read-only for its next volume")
	}
	for _, pod := range []string{"rw", "ro"} {
		ok(t, f.node.Unpublish(t.Context(), UnpublishRequest{TargetPath: f.target(pod)}))
	}
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{StagingTargetPath: f.staging}))
	f.mustHaveMounts(f.staging, 0)
	if len(log.lines) > 0 {
		t.Errorf("ran %q", log.lines)
	}
	if left, _ := os.ReadDir(f.pods); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// topolvm/topolvm#274: a server that did not answer, of a mount that was none of the
// plugin's, held all of it. weka PR 660: one hung stat held what came after it.
func TestHungMountOfAnotherVolume(t *testing.T) {
	f := newFixture(t, 320*mib)
	ok(t, os.Mkdir(f.target("other"), 0o755))
	server := mountFuse(t, f.target("other"))
	server.hangs.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-server.requested; cancel() }()
	if _, err := f.node.Stats(ctx, StatsRequest{VolumeID: "other", VolumePath: f.target("other")}); !isPending(err) {
		t.Fatalf("error is %v, want one that is pending", err)
	}
	for len(server.requested) > 0 {
		<-server.requested
	}
	defer time.AfterFunc(20*time.Second, server.die).Stop() // a call that waits for it has failed: see below
	for range 2 {
		f.mustStage("xfs")
		ok(t, f.publish("p", func(r *PublishFilesystemRequest) { r.Exclusive = true }))
	}
	f.resize(640 * mib)
	_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.target("p"), RequiredBytes: 640 * mib})
	ok(t, err)
	_, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
	ok(t, err)
	wantKind(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}), csierr.Precondition, f.target("p"))
	_, err = f.node.MountedAt(t.Context(), Device{Path: f.dev.Path})
	ok(t, err)
	_, err = f.node.Holders(t.Context(), Device{Path: f.dev.Path})
	ok(t, err)
	ok(t, f.unpublish("p"))
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	for range 2 {
		ok(t, f.publishBlock("b", func(r *PublishBlockRequest) { r.ReadOnly = true }))
	}
	ok(t, f.unpublish("b"))
	if len(server.requested) > 0 {
		t.Error("a request was sent to the other volume's server")
	}
	server.die()
	waitIdle(t, f.node)
}

// kubernetes/kubernetes#82190: staging ended after kubelet had timed out, and the volume was never
// unstaged.
func TestStageOutlivesItsCaller(t *testing.T) {
	f := newFixture(t, 64*mib)
	log := f.with(Config{})
	real, err := exec.LookPath("mke2fs")
	ok(t, err)
	bin := t.TempDir()
	gate := filepath.Join(bin, "gate") // what mke2fs waits for
	ok(t, unix.Mkfifo(gate, 0o600))
	ok(t, os.WriteFile(bin+"/mke2fs", []byte(fmt.Sprintf("#!/bin/sh\n[ -p %[1]s ] && read line < %[1]s\nexec %[2]s \"$@\"\n", gate, real)), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))

	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() { errs <- f.node.StageFilesystem(ctx, f.stageRequest("ext4")) }()
	in, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when mke2fs runs
	ok(t, err)
	cancel()
	err = <-errs
	if !isPending(err) || status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("error is %v, want one that is pending", err)
	}
	if calls := f.node.InFlight(); len(calls) != 1 || calls[0].Key != f.staging {
		t.Errorf("under way is %v, want %s", calls, f.staging)
	}
	// Unstage must not succeed while the stage in flight may still mount.
	short, done := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer done()
	if err := f.node.Unstage(short, UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}); !isPending(err) {
		t.Errorf("unstage meanwhile: %v, want that something is pending", err)
	}
	_, err = in.WriteString("go\n")
	ok(t, errors.Join(err, in.Close(), os.Remove(gate)))
	ok(t, f.stage(f.stageRequest("ext4"))) // the retry joins, and finds it done
	f.mustHaveMounts(f.staging, 1)
	if n := strings.Count(strings.Join(log.lines, "\n"), "[mke2fs"); n != 1 {
		t.Errorf("mke2fs ran %d times: %q", n, log.lines)
	}

	// And where no retry comes, a driver that starts finds what is mounted.
	f.with(Config{})
	if at, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path}); err != nil || len(at) != 1 || at[0] != f.staging {
		t.Errorf("mounted at %v (%v), want %s", at, err, f.staging)
	}
	f.unstage()
	f.mustHaveMounts(f.staging, 0)
}

// kubernetes-sigs/aws-ebs-csi-driver#913, digitalocean/csi-digitalocean#633: xfs refuses
// to mount a clone beside its source, which has the same UUID.
// topolvm/topolvm#522: a new UUID for the clone cost its data.
func TestXFSCloneBesideItsSource(t *testing.T) {
	source, clone := newFixture(t, 320*mib), newFixture(t, 320*mib)
	source.mustStage("xfs")
	source.write(source.staging+"/file", "data")
	source.unstage()
	out, err := exec.Command("dd", "if="+source.dev.Path, "of="+clone.dev.Path, "bs=1M", "conv=sparse,fsync", "status=none").CombinedOutput()
	if err != nil {
		t.Fatalf("dd: %v: %s", err, out)
	}
	source.mustStage("xfs")
	log := clone.with(Config{})
	r := clone.stageRequest("xfs")
	r.MustHoldData = true
	ok(t, clone.stage(r))
	clone.mustRead(clone.staging+"/file", "data")
	if len(log.lines) > 0 {
		t.Errorf("ran %q", log.lines)
	}
	source.write(source.staging+"/file", "changed")
	clone.mustRead(clone.staging+"/file", "data")
	for _, f := range []*fixture{source, clone} {
		f.mustHaveMounts(f.staging, 1)
		ok(t, f.publish("p", nil))
	}
}

// ceph/ceph-csi#859, rook/rook#4914: xfs_repair refuses a file system whose log was not
// replayed, so one that a node lost power with was never staged again. Mounting replays.
func TestXFSWithADirtyLog(t *testing.T) {
	f := newFixture(t, 320*mib)
	f.mustStage("xfs")
	file, err := os.Create(f.staging + "/file")
	ok(t, err)
	_, err = file.WriteString("data")
	ok(t, errors.Join(err, file.Sync())) // in the log, and not yet anywhere else
	const goingDown, withoutFlush = 0x8004587d, 2
	ok(t, unix.IoctlSetPointerInt(int(file.Fd()), goingDown, withoutFlush))
	file.Close()
	f.unstage()
	if out, _ := exec.Command("xfs_repair", "-n", f.dev.Path).CombinedOutput(); !bytes.Contains(out, []byte("metadata changes in a log")) {
		t.Fatalf("the log is not dirty, so this tests nothing: %s", out)
	}
	log := f.with(Config{})
	r := f.stageRequest("xfs")
	r.Fsck = FsckAlways
	ok(t, f.stage(r))
	f.mustRead(f.staging+"/file", "data")
	if len(log.lines) > 0 {
		t.Errorf("ran %q", log.lines)
	}
}

// ceph/ceph-csi@bf4ba0ec8, kubernetes-csi/csi-driver-nfs#340: each mount changed the mode
// of the root, for which kubelet went through all files again.
func TestTheRootDirectoryStaysAsItIs(t *testing.T) {
	for _, c := range fsTable {
		f := newFixture(t, c.size)
		f.mustStage(c.fsType)
		// As kubelet does for a pod's fsGroup.
		ok(t, os.Chown(f.staging, -1, 4711))
		ok(t, unix.Chmod(f.staging, 0o2775))
		root := func() (st unix.Stat_t) {
			ok(t, unix.Stat(f.staging, &st))
			return st
		}
		first := root()
		for range 2 {
			// The time stamps of a file system have a resolution of some milliseconds.
			for t0 := time.Unix(first.Ctim.Unix()); time.Since(t0) < 50*time.Millisecond; {
				time.Sleep(10 * time.Millisecond)
			}
			f.mustStage(c.fsType)
			f.unstage()
			f.mustStage(c.fsType)
			ok(t, f.publish("p", nil))
			ok(t, f.unpublish("p"))
			if now := root(); now.Ctim != first.Ctim || now.Gid != 4711 || now.Mode&0o7777 != 0o2775 {
				t.Errorf("%s: the root was changed: %+v, at first %+v", c.fsType, now, first)
			}
		}
	}
}

// kubernetes/kubernetes#77637: the whole mount table was read for each check of one path.
func TestStageAmongManyMounts(t *testing.T) {
	f := newFixture(t, 64*mib)
	manyMounts(t, t.TempDir())
	for range 2 {
		f.mustStage("ext4")
		ok(t, f.publish("p", func(r *PublishFilesystemRequest) { r.Exclusive = true }))
	}
	wantKind(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}), csierr.Precondition, f.target("p"))
	ok(t, f.unpublish("p"))
	f.unstage()
	for range 2 {
		ok(t, f.publishBlock("b", nil))
	}
	ok(t, f.unpublish("b"))
}

// After a final code kubelet assumes that nothing is mounted, and never unmounts: an
// attempt that fails while the mount of an earlier one exists must not return one.
func TestNoFinalCodeWhileMounted(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	ok(t, f.publish("p", nil))
	r := f.stageRequest("ext4")
	r.Device.Path = "/dev/missing"
	wantKind(t, f.stage(r), csierr.Uncertain, "does not exist")
	r = f.stageRequest("ext4")
	r.Device.Size = mib
	wantKind(t, f.stage(r), csierr.Uncertain, "another disk")
	// As after an error: only the superblock.
	fs, err := unix.Fspick(unix.AT_FDCWD, f.staging, unix.FSPICK_CLOEXEC)
	ok(t, err)
	defer unix.Close(fs)
	ok(t, unix.FsconfigSetFlag(fs, "ro"))
	ok(t, unix.FsconfigReconfigure(fs))
	wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Uncertain, "read-only after an error")
	wantKind(t, f.publish("p", nil), csierr.Uncertain, "read-only after an error")
	wantKind(t, f.publish("q", nil), csierr.Precondition, "read-only after an error")
	ok(t, unmountPath(f.staging))
	wantKind(t, f.publish("p", nil), csierr.Uncertain, "stage the volume first")
	wantKind(t, f.publishBlock("p", nil), csierr.Uncertain, "mounted as a file system")
	ok(t, f.unpublish("p"))
}
