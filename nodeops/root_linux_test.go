package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/probe"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const mib = int64(1) << 20

// fixture is a volume on a loop device with kubelet-like paths.
type fixture struct {
	t       testing.TB
	node    *Node
	dev     *loopdev.Device
	image   string
	staging string
	pods    string
}

func newFixture(t testing.TB, size int64) *fixture {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "mke2fs", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_growfs", "mkfs.btrfs", "btrfs", "blkid")
	dir := t.TempDir()
	f := &fixture{t: t, image: filepath.Join(dir, "image"), staging: filepath.Join(dir, "staging"), pods: filepath.Join(dir, "pods")}
	for _, d := range []string{f.staging, f.pods} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.resize(size)
	dev, err := loopdev.Attach(t.Context(), f.image)
	if err != nil {
		t.Fatal(err)
	}
	f.dev = dev
	t.Cleanup(func() {
		ctx := context.Background()
		table, err := mountapi.Table()
		if err != nil {
			t.Error(err)
		}
		for i := len(table) - 1; i >= 0; i-- {
			if strings.HasPrefix(table[i].MountPoint, dir+"/") {
				if err := unmountPath(table[i].MountPoint); err != nil {
					t.Error(err)
				}
			}
		}
		if d, err := openDevice(Device{Path: f.dev.Path}); err == nil {
			d.setReadOnly(false)
			d.close()
		}
		if err := f.dev.Detach(ctx); err != nil {
			t.Error(err)
		}
	})
	if f.node, err = New(Config{DeviceWait: -1}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) resize(size int64) {
	f.t.Helper()
	file, err := os.OpenFile(f.image, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(file.Truncate(size), file.Close())
	}
	if err == nil && f.dev != nil {
		_, err = f.dev.Resize()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) stageRequest(fsType string) StageFilesystemRequest {
	return StageFilesystemRequest{VolumeID: "v", Device: Device{Path: f.dev.Path}, StagingTargetPath: f.staging, FSType: fsType}
}

func (f *fixture) stage(r StageFilesystemRequest) error {
	return f.node.StageFilesystem(f.t.Context(), r)
}

func (f *fixture) mustStage(fsType string) {
	f.t.Helper()
	if err := f.stage(f.stageRequest(fsType)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) publish(pod string, change func(*PublishFilesystemRequest)) error {
	r := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: f.staging, TargetPath: f.target(pod)}
	if change != nil {
		change(&r)
	}
	return f.node.PublishFilesystem(f.t.Context(), r)
}

func (f *fixture) publishBlock(pod string, change func(*PublishBlockRequest)) error {
	r := PublishBlockRequest{VolumeID: "v", Device: Device{Path: f.dev.Path}, TargetPath: f.target(pod)}
	if change != nil {
		change(&r)
	}
	return f.node.PublishBlock(f.t.Context(), r)
}

func (f *fixture) unpublish(pod string) error {
	return f.node.Unpublish(f.t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: f.target(pod)})
}

func (f *fixture) target(pod string) string { return filepath.Join(f.pods, pod) }

func (f *fixture) mounts(path string) []mountapi.Mount {
	f.t.Helper()
	table, err := mountapi.Table()
	if err != nil {
		f.t.Fatal(err)
	}
	var on []mountapi.Mount
	for _, m := range table {
		if m.MountPoint == path {
			on = append(on, m)
		}
	}
	return on
}

func (f *fixture) write(path, text string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind csierr.Kind, words ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("error is %v, want one of kind %v", err, kind)
	}
	if got := status.Code(err); got != kind.Code() {
		t.Errorf("code is %v, want %v", got, kind.Code())
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var fsTable = []struct {
	fsType string
	size   int64
}{{"ext4", 64 * mib}, {"xfs", 320 * mib}, {"btrfs", 128 * mib}}

// onEachType runs the test with a blank device, for each file system type.
func onEachType(t *testing.T, test func(t *testing.T, f *fixture, fsType string)) {
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) { test(t, newFixture(t, c.size), c.fsType) })
	}
}

func TestStagePublishRoundTrip(t *testing.T) {
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			f := newFixture(t, c.size)
			for range 2 { // the second time finds all done
				f.mustStage(c.fsType)
				ok(t, f.publish("rw", nil))
				ok(t, f.publish("ro", func(r *PublishFilesystemRequest) { r.ReadOnly = true }))
			}
			for _, p := range []string{f.staging, f.target("rw"), f.target("ro")} {
				if n := len(f.mounts(p)); n != 1 {
					t.Errorf("%d mounts at %s, want 1", n, p)
				}
			}
			f.write(f.target("rw")+"/file", "data")
			if err := os.WriteFile(f.target("ro")+"/x", nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("writing to the read-only target: %v, want EROFS", err)
			}
			// kubernetes/kubernetes#106902: a device was detached though it was still mounted.
			err := f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging})
			wantKind(t, err, csierr.Precondition, "still published", f.target("rw"), f.target("ro"))

			for range 2 {
				ok(t, f.unpublish("rw"))
				ok(t, f.unpublish("ro"))
				ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
			}
			if left, _ := os.ReadDir(f.pods); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			f.mustStage(c.fsType)
			if got, err := os.ReadFile(f.staging + "/file"); string(got) != "data" {
				t.Errorf("after staging again the file holds %q (%v)", got, err)
			}
		})
	}
}

// kubernetes/kubernetes#142243, longhorn/longhorn#14042, NetApp/trident#418: a probe
// that found nothing, because it could not read, was taken for a blank device, and
// mkfs ran on volumes with data. What is not proven blank is not formatted.
func TestOnlyBlankIsFormatted(t *testing.T) {
	const size = 64 * mib
	fill := func(off int64, text string) func(*fixture) {
		return func(f *fixture) {
			d, err := os.OpenFile(f.dev.Path, os.O_WRONLY, 0)
			if err == nil {
				_, err = d.WriteAt([]byte(text), off)
				err = errors.Join(err, d.Sync(), d.Close())
			}
			ok(f.t, err)
		}
	}
	tests := []struct {
		name  string
		setup func(*fixture)
		kind  csierr.Kind
		words string
	}{
		{"data at the start", fill(0, "precious"), csierr.Precondition, "unknown kind"},
		{"data at the end", fill(size-8, "precious"), csierr.Precondition, "unknown kind"},
		{"data in place of an ext backup superblock", fill(8*mib, "precious"), csierr.Precondition, "unknown kind"},
		{"LUKS", fill(0, "LUKS\xba\xbe"), csierr.Precondition, "crypto_LUKS"},
		{"swap", fill(4086, "SWAPSPACE2"), csierr.Precondition, "swap"},
		{"partition table", fill(510, "\x55\xaa"), csierr.Precondition, "dos"},
		{"another file system", func(f *fixture) {
			_, _, err := f.node.command(t.Context(), 0, "mkfs.ext4", "-q", f.dev.Path)
			ok(f.t, err)
		}, csierr.Precondition, "ext4 file system"},
		// The image was truncated below the attached device: reads fail with EIO,
		// and blkid reports the same as for a blank device.
		{"unreadable", func(f *fixture) { ok(f.t, os.Truncate(f.image, 4096)) }, csierr.Internal, "cannot be read"},
		{"held by a program", func(f *fixture) {
			fd, err := unix.Open(f.dev.Path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
			ok(f.t, err)
			f.t.Cleanup(func() { unix.Close(fd) })
		}, csierr.Busy, "in use"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, size)
			test.setup(f)
			before, err := os.ReadFile(f.image)
			ok(t, err)
			for _, fsType := range []string{"xfs", "btrfs"} {
				wantKind(t, f.stage(f.stageRequest(fsType)), test.kind, test.words)
			}
			after, err := os.ReadFile(f.image)
			ok(t, err)
			if string(before) != string(after) {
				t.Error("the device was written")
			}
			if len(f.mounts(f.staging)) > 0 {
				t.Error("something was mounted")
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		f := newFixture(t, size)
		r := f.stageRequest("ext4")
		r.Device.Path = "/dev/csikit-no-such-device"
		wantKind(t, f.stage(r), csierr.Precondition, "does not exist")
	})
	t.Run("must hold data", func(t *testing.T) {
		f := newFixture(t, size)
		r := f.stageRequest("ext4")
		r.MustHoldData = true
		wantKind(t, f.stage(r), csierr.Precondition, "blank")
	})
	t.Run("read-only", func(t *testing.T) {
		f := newFixture(t, size)
		r := f.stageRequest("ext4")
		r.ReadOnly = true
		wantKind(t, f.stage(r), csierr.Precondition, "blank")
	})
	t.Run("no blkid", func(t *testing.T) {
		f := newFixture(t, size)
		dir := t.TempDir()
		real, err := os.Readlink("/proc/self/exe")
		ok(t, err)
		ok(t, os.Symlink(real, dir+"/mke2fs"))
		t.Setenv("PATH", dir)
		err = f.stage(f.stageRequest("ext4"))
		wantKind(t, err, csierr.Internal, "blkid is not installed")
	})
}

// kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#2178: a disk smaller than the
// volume's was mounted. What the driver knows of the device is checked on it.
func TestStageRefusesTheWrongDevice(t *testing.T) {
	f := newFixture(t, 64*mib)
	for _, d := range []Device{
		{Path: f.dev.Path, Size: 65 * mib},
		{Path: f.dev.Path, Serial: "other"},
		{Path: f.dev.Path, WWID: "other"},
		{Path: f.dev.Path, DMUUID: "other"},
		{Path: f.dev.Path, Partition: 1},
		{Path: f.dev.Path, Check: func(string) error { return errors.New("other") }},
		{Path: f.image},
	} {
		r := f.stageRequest("ext4")
		r.Device = d
		wantKind(t, f.stage(r), csierr.Precondition)
	}
	r := f.stageRequest("ext4")
	r.Device.Size = 64 * mib
	r.Device.Check = func(dir string) error {
		backing, err := os.ReadFile(dir + "/loop/backing_file")
		if err == nil && strings.TrimSpace(string(backing)) != f.image {
			err = fmt.Errorf("the image is %q", backing)
		}
		return err
	}
	link := filepath.Join(t.TempDir(), "by-id") // as /dev/disk/by-id is
	ok(t, os.Symlink(f.dev.Path, link))
	r.Device.Path = link
	ok(t, f.stage(r))
}

// kubernetes/kubernetes#120853, ceph/ceph-csi#4762: after a reboot a volume was published
// that was not staged, and the pod wrote to the node's own disk.
func TestPublishNeedsTheStagedDevice(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		wantKind(t, f.publish("p", nil), csierr.Precondition, "stage the volume first")
		ok(t, unix.Mount("tmpfs", f.staging, "tmpfs", 0, ""))
		err := f.publish("p", func(r *PublishFilesystemRequest) { r.Device.Path = f.dev.Path })
		wantKind(t, err, csierr.Precondition, f.dev.Path)
		if _, err := os.Lstat(f.target("p")); err == nil {
			t.Error("the target was made and left")
		}
		ok(t, unix.Unmount(f.staging, 0))
		f.mustStage(fsType)
		other := newFixture(t, 8*mib)
		err = f.publish("p", func(r *PublishFilesystemRequest) { r.Device.Path = other.dev.Path })
		wantKind(t, err, csierr.Precondition, "shows device "+f.open().name(), "not "+other.dev.Path)
		ok(t, f.publish("p", func(r *PublishFilesystemRequest) { r.Device.Path = f.dev.Path }))
		at, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path})
		if want := []string{f.target("p"), f.staging}; err != nil || !slices.Equal(at, want) {
			t.Errorf("mounted at %v (%v), want %v", at, err, want)
		}
	})
}

// "Is a mount" is not "is the mount".
func TestConflictsListTheDifferences(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		ok(t, unix.Mount("tmpfs", f.staging, "tmpfs", 0, ""))
		err := f.stage(f.stageRequest(fsType))
		wantKind(t, err, csierr.Conflict, "device", "file system type is tmpfs, want "+fsType)
		ok(t, unix.Unmount(f.staging, 0))

		f.mustStage(fsType)
		r := f.stageRequest(fsType)
		r.ReadOnly = true
		wantKind(t, f.stage(r), csierr.Conflict, "access is read-write, want read-only")

		ok(t, f.publish("p", nil))
		err = f.publish("p", func(r *PublishFilesystemRequest) { r.ReadOnly = true })
		wantKind(t, err, csierr.Conflict, "access is read-write, want read-only")
		err = f.publish("p", func(r *PublishFilesystemRequest) { r.MountFlags = []string{"nosuid,noexec"} })
		wantKind(t, err, csierr.Conflict, "nosuid,noexec is not set, want set")

		ok(t, unix.Mount("tmpfs", f.target("p"), "tmpfs", 0, ""))
		wantKind(t, f.publish("p", nil), csierr.Conflict, "number of stacked mounts is 2, want 1")
		ok(t, f.unpublish("p")) // both
		if len(f.mounts(f.target("p"))) > 0 {
			t.Error("stacked mounts were not unwound")
		}

		ok(t, os.WriteFile(f.target("file"), []byte("x"), 0o600))
		wantKind(t, f.publish("file", nil), csierr.Conflict, "target is a file of 1 bytes, want a directory")
		wantKind(t, f.unpublish("file"), csierr.Precondition, "not deleted")
		ok(t, os.Mkdir(f.target("dir"), 0o700))
		f.write(f.target("dir")+"/precious", "data")
		wantKind(t, f.unpublish("dir"), csierr.Precondition, "not empty")
		f.write(f.target("dir")+"/precious", "still here")

		wantKind(t, f.publish("no-parent/p", nil), csierr.Precondition, "parent directory")
		ok(t, f.unpublish("no-parent/p"))
	})
}

func TestSymlinkAtTheTargetIsNotFollowed(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	elsewhere := t.TempDir()
	ok(t, os.Symlink(elsewhere, f.target("p")))
	wantKind(t, f.publish("p", nil), csierr.Conflict)
	if len(f.mounts(elsewhere)) > 0 {
		t.Fatal("the link was followed")
	}
	ok(t, f.unpublish("p"))
	if _, err := os.Lstat(f.target("p")); err == nil {
		t.Error("the link is still there")
	}
}

func TestMountFlags(t *testing.T) {
	f := newFixture(t, 64*mib)
	r := f.stageRequest("ext4")
	r.MountFlags = []string{"noatime", "errors=remount-ro,nosuid"}
	ok(t, f.stage(r))
	m := f.mounts(f.staging)[0]
	for _, o := range []string{"noatime", "nosuid"} {
		if !strings.Contains(m.Options, o) {
			t.Errorf("mount options are %q, want %s in them", m.Options, o)
		}
	}
	if !strings.Contains(m.SuperOptions, "errors=remount-ro") {
		t.Errorf("file system options are %q, want errors=remount-ro in them", m.SuperOptions)
	}
	ok(t, f.publish("p", func(p *PublishFilesystemRequest) { p.MountFlags = r.MountFlags }))
	ok(t, f.unpublish("p"))
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	r.MountFlags = []string{"no-such-option"}
	err := f.stage(r)
	wantKind(t, err, csierr.Invalid, "no-such-option", "Unknown parameter") // the kernel's own words
}

func TestExclusivePublication(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		f.mustStage(fsType)
		once := func(r *PublishFilesystemRequest) { r.Exclusive = true }
		ok(t, f.publish("a", once))
		ok(t, f.publish("a", once))
		wantKind(t, f.publish("b", once), csierr.Precondition, f.target("a"))
		ok(t, f.unpublish("a"))
		ok(t, f.publish("b", once))
	})
}

func TestBlock(t *testing.T) {
	f := newFixture(t, 8*mib)
	ro := func(r *PublishBlockRequest) { r.ReadOnly = true }
	try := func() error {
		d, err := os.OpenFile(f.dev.Path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = d.WriteAt([]byte("x"), 0)
		return errors.Join(err, d.Sync(), d.Close())
	}
	for range 2 {
		ok(t, f.publishBlock("a", nil))
	}
	st, err := os.Stat(f.target("a"))
	ok(t, err)
	if st.Mode().Type() != os.ModeDevice || st.Sys().(*syscall.Stat_t).Rdev != f.dev.Rdev {
		t.Errorf("the target is %v of device %d, want block device %d", st.Mode(), st.Sys().(*syscall.Stat_t).Rdev, f.dev.Rdev)
	}
	ok(t, try())
	wantKind(t, f.publishBlock("b", ro), csierr.Precondition, f.target("a"), "cannot be both")
	wantKind(t, f.publishBlock("b", func(r *PublishBlockRequest) { r.Exclusive = true }), csierr.Precondition, f.target("a"))
	wantKind(t, f.publishBlock("a", ro), csierr.Conflict, "access is read-write, want read-only")
	if flag := f.refusesWrites(); flag {
		t.Error("a publication that was refused made the device read-only")
	}
	at, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path})
	if err != nil || fmt.Sprint(at) != fmt.Sprint([]string{f.target("a")}) {
		t.Errorf("mounted at %v (%v), want only %s", at, err, f.target("a"))
	}
	ok(t, f.unpublish("a"))

	ok(t, f.publishBlock("a", ro))
	// kubelet binds the publication once more and remounts its copy read-write.
	// That opens nothing, and does not stop the next pod nor a repetition.
	kubelet := f.target("kubelet")
	ok(t, os.WriteFile(kubelet, nil, 0o600))
	ok(t, unix.Mount(f.target("a"), kubelet, "", unix.MS_BIND, ""))
	ok(t, unix.Mount("", kubelet, "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	for range 2 {
		ok(t, f.publishBlock("a", ro))
		ok(t, f.publishBlock("b", ro))
	}
	wantKind(t, f.publishBlock("c", nil), csierr.Precondition, "cannot be both")
	if err := try(); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to the device published read-only: %v", err)
	}
	ok(t, unix.Unmount(kubelet, 0))
	ok(t, os.Remove(kubelet))
	ok(t, f.unpublish("a"))
	if try() == nil {
		t.Error("writable while a read-only publication is left")
	}
	// Another process has cleared the flag: a repeated publication sets it again.
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(t, err)
	ok(t, d.setReadOnly(false))
	d.close()
	ok(t, f.publishBlock("b", ro))
	if try() == nil {
		t.Error("writable after the read-only publication was repeated")
	}
	ok(t, f.unpublish("b"))
	ok(t, try())
	ok(t, f.unpublish("b"))

	// What could not be published leaves no flag.
	ok(t, os.Mkdir(f.target("dir"), 0o700))
	wantKind(t, f.publishBlock("dir", ro), csierr.Conflict, "want an empty file")
	ok(t, os.Remove(f.target("dir")))
	f.write(f.target("file"), "x")
	wantKind(t, f.publishBlock("file", ro), csierr.Conflict, "a file of 1 bytes, want an empty file")
	ok(t, os.Remove(f.target("file")))
	ok(t, try())
	if left, _ := os.ReadDir(f.pods); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func (f *fixture) refusesWrites() bool {
	f.t.Helper()
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(f.t, err)
	defer d.close()
	flag, err := d.readOnly()
	ok(f.t, err)
	return flag
}

// A mount on top of a publication is unmounted with it, and the flag has to be cleared too.
func TestBlockBelowAnotherMount(t *testing.T) {
	f := newFixture(t, 8*mib)
	ok(t, f.publishBlock("p", func(r *PublishBlockRequest) { r.ReadOnly = true }))
	ok(t, unix.Mount(f.dev.Path, f.target("p"), "", unix.MS_BIND, "")) // read-write, as an older driver did
	ok(t, f.unpublish("p"))
	if f.refusesWrites() {
		t.Error("the device keeps refusing writes")
	}
}

// The node of a device may lie below a directory of /dev, have the name of another device,
// and be removed while it is published: /dev/longhorn/volume, and nodes of device-mapper
// that were created without udev.
func TestBlockNodeAnywhere(t *testing.T) {
	f, other := newFixture(t, 8*mib), newFixture(t, 9*mib)
	dir, err := os.MkdirTemp("/dev", "csikit-")
	ok(t, err)
	t.Cleanup(func() { ok(t, os.Remove(dir)) })
	for _, name := range []string{"volume", filepath.Base(other.dev.Path)} {
		node := filepath.Join(dir, name)
		for _, removed := range []bool{false, true} {
			ok(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(f.dev.Rdev)))
			t.Cleanup(func() { os.Remove(node) })
			ok(t, other.publishBlock("other", func(r *PublishBlockRequest) { r.ReadOnly = true }))
			ok(t, f.publishBlock("p", func(r *PublishBlockRequest) { r.Device.Path, r.ReadOnly = node, true }))
			if removed {
				ok(t, os.Remove(node))
			}
			if !f.refusesWrites() {
				t.Error("the device accepts writes")
			}
			s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
			if err != nil || !s.Block || s.TotalBytes != 8*mib {
				t.Errorf("stats are %+v (%v)", s, err)
			}
			size, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.target("p")})
			if err != nil || size != 8*mib {
				t.Errorf("expanded to %d (%v)", size, err)
			}
			ok(t, f.unpublish("p"))
			if f.refusesWrites() {
				t.Errorf("%s, removed %t: the device keeps refusing writes", name, removed)
			}
			if !other.refusesWrites() {
				t.Errorf("%s, removed %t: the other device accepts writes", name, removed)
			}
			ok(t, other.unpublish("other"))
			os.Remove(node)
		}
	}
}

// Concurrent read-only and read-write publications of one device: whichever succeed, the
// device refuses writes exactly while read-only ones exist.
func TestBlockInParallel(t *testing.T) {
	f := newFixture(t, 8*mib)
	for i := range 100 {
		var wg sync.WaitGroup
		var errs [2]error
		for j, readOnly := range []bool{false, true} {
			wg.Go(func() {
				errs[j] = f.publishBlock(fmt.Sprint(j), func(r *PublishBlockRequest) { r.ReadOnly = readOnly })
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("round %d: read-write %v, read-only %v; want one of them refused", i, errs[0], errs[1])
		}
		if f.refusesWrites() != (errs[1] == nil) {
			t.Fatalf("round %d: the device refuses writes: %v, published read-only: %v", i, f.refusesWrites(), errs[1] == nil)
		}
		// One read-only publication goes while another one comes.
		ok(t, f.unpublish("0"))
		ok(t, f.unpublish("1"))
		readOnly := func(r *PublishBlockRequest) { r.ReadOnly = true }
		ok(t, f.publishBlock("0", readOnly))
		wg.Go(func() { errs[0] = f.unpublish("0") })
		wg.Go(func() { errs[1] = f.publishBlock("1", readOnly) })
		wg.Wait()
		ok(t, errors.Join(errs[:]...))
		if !f.refusesWrites() {
			t.Fatalf("round %d: published read-only, and writable", i)
		}
		ok(t, f.unpublish("1"))
		if f.refusesWrites() {
			t.Fatalf("round %d: the flag outlives the last publication", i)
		}
	}
}

// After a restart in a container with a separate /dev, the publications are recognised by
// the device number.
func TestBlockPublishedFromAnotherDev(t *testing.T) {
	f := newFixture(t, 8*mib)
	dev := t.TempDir()
	ok(t, unix.Mount("tmpfs", dev, "tmpfs", 0, ""))
	node := dev + "/disk"
	ok(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(f.dev.Rdev)))
	elsewhere := func(r *PublishBlockRequest) { r.Device.Path = node }
	ok(t, f.publishBlock("a", elsewhere))
	ok(t, unix.Unmount(dev, unix.MNT_DETACH))
	ok(t, f.publishBlock("a", nil))
	wantKind(t, f.publishBlock("b", func(r *PublishBlockRequest) { r.Exclusive = true }), csierr.Precondition, f.target("a"))
	if at, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path}); err != nil || len(at) != 1 {
		t.Errorf("mounted at %v, %v; want only %s", at, err, f.target("a"))
	}
}

func TestStats(t *testing.T) {
	f := newFixture(t, 64*mib)
	_, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
	wantKind(t, err, csierr.NotFound)
	_, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: "some/path"})
	wantKind(t, err, csierr.NotFound)
	f.mustStage("ext4")
	ok(t, f.publish("p", nil))
	before, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
	ok(t, err)
	f.write(f.target("p")+"/file", strings.Repeat("x", int(4*mib)))
	unix.Sync()
	s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
	ok(t, err)
	if grown := s.UsedBytes - before.UsedBytes; grown < 4*mib || grown > 5*mib {
		t.Errorf("%d bytes more are used after writing 4 MiB", grown)
	}
	if s.UsedInodes != before.UsedInodes+1 || s.TotalInodes == 0 {
		t.Errorf("inodes: %+v after one more file, before: %+v", s, before)
	}
	ok(t, f.unpublish("p"))
	wantKind(t, f.publishBlock("p", nil), csierr.Precondition, "mounted as a file system at "+f.staging)
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	ok(t, f.publishBlock("p", nil))
	wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Precondition, "raw block device at "+f.target("p"))
	s, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
	if want := (Stats{Block: true, TotalBytes: 64 * mib}); err != nil || s != want {
		t.Errorf("stats of a block volume are %+v (%v), want %+v", s, err, want)
	}
}

func TestExpand(t *testing.T) {
	online := func(t *testing.T, fsType string) {
		f := newFixture(t, 320*mib)
		f.mustStage(fsType)
		ok(t, f.publish("p", nil))
		f.resize(640 * mib)
		_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.target("p"), RequiredBytes: 641 * mib})
		wantKind(t, err, csierr.Uncertain, "has not grown yet")
		for range 2 {
			got, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.target("p"), RequiredBytes: 640 * mib})
			if err != nil || got != 640*mib {
				t.Fatalf("expanded to %d: %v", got, err)
			}
		}
		s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
		if err != nil || s.TotalBytes < 512*mib {
			t.Errorf("the file system has %d bytes (%v)", s.TotalBytes, err)
		}
		ok(t, f.unpublish("p"))
		f.unstage()
		r := f.stageRequest(fsType)
		r.ReadOnly = true
		ok(t, f.stage(r))
		full := ExpandRequest{VolumeID: "v", VolumePath: f.staging}
		_, err = f.node.Expand(t.Context(), full)
		ok(t, err)
		f.resize(700 * mib)
		_, err = f.node.Expand(t.Context(), full)
		wantKind(t, err, csierr.Precondition, "mounted read-only")
	}
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType+" online", func(t *testing.T) { online(t, fsType) })
	}
	t.Run("ext4 online", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		f.mustStage("ext4")
		f.resize(128 * mib)
		got, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.staging})
		if hasSysResource() {
			if err != nil || got != 128*mib {
				t.Fatalf("expanded to %d: %v", got, err)
			}
			return
		}
		wantKind(t, err, csierr.Precondition, "CAP_SYS_RESOURCE", "staged the next time")
		f.mustStage("ext4") // a running volume stages again all the same
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		f.mustStage("ext4")
		s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
		if err != nil || s.TotalBytes < 100*mib {
			t.Errorf("after staging again the file system has %d bytes (%v)", s.TotalBytes, err)
		}
	})
	t.Run("ext4 with errors", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		f.mustStage("ext4")
		ok(t, os.WriteFile("/sys/fs/ext4/"+filepath.Base(f.dev.Path)+"/trigger_fs_error", []byte("test"), 0))
		f.resize(128 * mib)
		_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.staging})
		wantKind(t, err, csierr.Precondition, "recorded errors")
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		f.mustStage("ext4")
		s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
		if err != nil || s.TotalBytes < 100*mib {
			t.Errorf("after staging again the file system has %d bytes (%v)", s.TotalBytes, err)
		}
	})
	t.Run("at stage", func(t *testing.T) { // kubernetes/kubernetes#94929: a volume restored to a larger one kept its small file system
		for _, c := range fsTable {
			f := newFixture(t, c.size)
			f.mustStage(c.fsType)
			f.write(f.staging+"/file", "data")
			ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
			f.resize(2 * c.size)
			f.mustStage(c.fsType)
			s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
			if err != nil || s.TotalBytes < c.size*3/2 {
				t.Errorf("%s has %d bytes after its device grew to %d (%v)", c.fsType, s.TotalBytes, 2*c.size, err)
			}
			if got, _ := os.ReadFile(f.staging + "/file"); string(got) != "data" {
				t.Errorf("%s lost its data", c.fsType)
			}
		}
	})
	t.Run("block", func(t *testing.T) {
		f := newFixture(t, 8*mib)
		ok(t, f.publishBlock("p", nil))
		f.resize(16 * mib)
		got, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.target("p"), RequiredBytes: 16 * mib})
		if err != nil || got != 16*mib {
			t.Errorf("expanded to %d: %v", got, err)
		}
	})
	t.Run("nothing there", func(t *testing.T) {
		f := newFixture(t, 8*mib)
		_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.staging})
		wantKind(t, err, csierr.NotFound)
	})
}

// When an xfs has grown, its superblock on the device says so as well, and not half a
// minute later: of what is there in between, a snapshot may be one that cannot be mounted.
func TestXFSGrowthIsOnTheDevice(t *testing.T) {
	const size = 320 * mib
	expand := func(f *fixture) {
		_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.staging, RequiredBytes: 2 * size})
		ok(t, err)
	}
	for name, grow := range map[string]func(*fixture){
		"online": expand,
		"at stage": func(f *fixture) {
			f.unstage()
			f.mustStage("xfs")
		},
		"grown by an interrupted call": func(f *fixture) {
			f.run("xfs_growfs", f.staging)
			expand(f)
		},
		"grown by an interrupted stage": func(f *fixture) {
			f.run("xfs_growfs", f.staging)
			f.mustStage("xfs")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, size)
			f.mkfs("xfs", "-L", "precious")
			f.mustStage("xfs")
			f.resize(2 * size)
			grow(f)
			head := make([]byte, 512)
			image, err := os.Open(f.image)
			ok(t, err)
			defer image.Close()
			_, err = image.ReadAt(head, 0)
			ok(t, err)
			if label := string(head[108:116]); label != "precious" {
				t.Errorf("the label became %q", label)
			}
			mounted, _, err := xfsGeometry(f.staging)
			if on := probe.XFSSize(head); err != nil || mounted < 2*size-mib || on != mounted {
				t.Errorf("the xfs has %d bytes, on the device %d, %v", mounted, on, err)
			}
		})
	}
}

// A snapshot of an xfs that has grown twice can be mounted. The second growth is one of the
// last allocation group, which the first has created, and the log begins with it as soon as
// something else was written: Linux 6.18 cannot replay that without a superblock that
// includes this group.
func TestSnapshotOfAGrownXFS(t *testing.T) {
	f := newFixture(t, 300*mib)
	f.mustStage("xfs")
	f.unstage() // the log is empty
	f.mustStage("xfs")
	for _, size := range []int64{308 * mib, 316 * mib} {
		f.resize(size)
		_, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.staging, RequiredBytes: size})
		ok(t, err)
	}
	f.write(f.staging+"/file", "data")
	f.run("sync", "-f", f.staging)
	snapshot := newFixture(t, mib)
	f.run("cp", "--sparse=always", f.image, snapshot.image)
	snapshot.resize(316 * mib)
	snapshot.mustStage("xfs")
	if got, err := os.ReadFile(snapshot.staging + "/file"); string(got) != "data" {
		t.Errorf("the snapshot has %q, %v", got, err)
	}
}

// ext4 of many sizes is taken for full after mkfs: else every stage would run a
// full check and resize2fs.
func TestFreshExt4IsFull(t *testing.T) {
	for _, size := range []int64{16 * mib, 17*mib + 4096, 64 * mib, 129 * mib, 513 * mib, 1025*mib + 512, 3000 * mib, 40 << 30} {
		f := newFixture(t, size)
		f.mustStage("ext4")
		d, err := openDevice(Device{Path: f.dev.Path})
		ok(t, err)
		res, err := d.probe()
		d.close()
		if err != nil || !res.Full || !res.Clean {
			t.Errorf("%d bytes: %+v (%v)", size, res, err)
		}
	}
}

// A call that waited for another operation has not run its own: if its context ends just
// then, it must not return success.
func TestWaitingCallDoesItsOwnWork(t *testing.T) {
	n, err := New(Config{})
	ok(t, err)
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		first, finish := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			ok(t, n.run(t.Context(), "publish", "v", "/p", func(context.Context, resolvedPath) error {
				close(first)
				<-finish
				return nil
			}))
		})
		<-first
		ran := false
		var got error
		wg.Go(func() {
			got = n.run(ctx, "unpublish", "v", "/p", func(context.Context, resolvedPath) error { ran = true; return nil })
		})
		wg.Go(cancel)
		close(finish)
		wg.Wait()
		if got == nil && !ran {
			t.Fatal("success without having done anything")
		}
	}
}

// hetznercloud/csi-driver#1381: udev creates the link of an attached device after a while,
// and blkid reports the same for a missing device as for a blank one.
func TestStageWaitsForTheDevice(t *testing.T) {
	f := newFixture(t, 64*mib)
	node, err := New(Config{DeviceWait: time.Minute})
	ok(t, err)
	f.node = node
	r := f.stageRequest("ext4")
	r.Device.Path = filepath.Join(t.TempDir(), "by-id")
	staged := make(chan error)
	go func() { staged <- f.stage(r) }()
	for !slices.ContainsFunc(f.node.InFlight(), func(c blocking.Call) bool { return c.Key == f.staging }) {
		runtime.Gosched()
	}
	select {
	case err := <-staged:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	ok(t, os.Symlink(f.dev.Path, r.Device.Path))
	ok(t, <-staged)
}

// kubernetes-csi/csi-driver-nfs#558: statistics were requested from a server that was slow
// already. If statfs hangs, the last values are returned with their age.
func TestStatsOfAHungVolume(t *testing.T) {
	f := newFixture(t, 64*mib)
	group := new(blocking.Group)
	node, err := New(Config{Blocking: group})
	ok(t, err)
	f.node = node
	f.mustStage("ext4")
	first, err := node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
	ok(t, err)

	release, hung := make(chan struct{}), make(chan struct{})
	go group.Do(context.Background(), f.staging+" (stats)", func() (any, error) { close(hung); <-release; return Stats{}, nil })
	<-hung
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	again, err := node.Stats(ctx, StatsRequest{VolumeID: "v", VolumePath: f.staging})
	ok(t, err)
	if again.Age <= 0 {
		t.Errorf("measured now: %+v", again)
	}
	again.Age = 0
	if again != first {
		t.Errorf("%+v, before %+v", again, first)
	}
	// After Unstage there are no last values.
	ok(t, node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = node.Stats(ctx, StatsRequest{VolumeID: "v", VolumePath: f.staging})
	var parked interface{ Pending() <-chan struct{} }
	if !errors.As(err, &parked) || status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error is %v, want one that is pending", err)
	}
	close(release)
	<-parked.Pending()
}

// Too many hung calls of one kind do not keep other volumes from being unpublished.
func TestTeardownBesideHungCalls(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.with(Config{Blocking: &blocking.Group{Limit: 1}})
	f.mustStage("ext4")
	ok(t, f.publish("p", nil))
	stats := func(path string) error {
		_, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: path})
		return err
	}
	release := make(chan struct{})
	defer close(release)
	hang := func(lane *blocking.Lane, key string) {
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := lane.Do(ctx, key, func() (any, error) { cancel(); <-release; return nil, nil })
		if !isPending(err) {
			t.Fatal(err)
		}
	}
	hang(f.node.measuring, "hung (stats)")
	wantKind(t, stats(f.staging), csierr.Uncertain, "1 earlier calls still hang")
	ok(t, f.publish("q", nil)) // hung statistics do not keep it from being mounted
	hang(f.node.mounting, "hung")
	wantKind(t, f.publish("r", nil), csierr.Uncertain, "1 earlier calls still hang")
	ok(t, f.unpublish("p"))
	ok(t, f.unpublish("q"))
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging, Device: Device{Path: f.dev.Path}}))
	ok(t, f.node.Released(t.Context(), Device{Path: f.dev.Path}))
}

// kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#1657: a disk was detached while
// a container had it mounted in another namespace.
func TestHolders(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		f.mustStage(fsType)
		if h, err := f.node.Holders(t.Context(), Device{Path: f.dev.Path}); err != nil || len(h) > 0 {
			t.Fatalf("held by %v (%v), want no other namespace", h, err)
		}
		container := exec.Command("cat")
		stdin, err := container.StdinPipe()
		ok(t, err)
		container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		ok(t, container.Start())
		defer func() {
			stdin.Close()
			ok(t, container.Wait())
		}()
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		h, err := f.node.Holders(t.Context(), Device{Path: f.dev.Path})
		ok(t, err)
		if len(h) != 1 || h[0].PID != container.Process.Pid || h[0].Command != "cat" || !slices.Equal(h[0].Paths, []string{f.staging}) {
			t.Errorf("held by %+v, want process %d at %s", h, container.Process.Pid, f.staging)
		}
		// The file system still writes to the device, which must not be detached.
		wantKind(t, f.node.Released(t.Context(), Device{Path: f.dev.Path}), csierr.Busy, "in use", fmt.Sprintf("process %d (cat)", container.Process.Pid), f.staging)
		// And the device cannot be formatted or checked under it.
		other := map[string]string{"ext4": "xfs", "xfs": "btrfs", "btrfs": "ext4"}[fsType]
		wantKind(t, f.stage(f.stageRequest(other)), csierr.Busy, "in use")
	})
}

// As TestTwoInstancesDoNotStack, for staging.
func TestTwoInstancesDoNotStackStages(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	f.unstage()
	other, err := New(Config{DeviceWait: -1})
	ok(t, err)
	for range 50 {
		var wg sync.WaitGroup
		var errs [2]error
		start := make(chan struct{})
		for k, node := range []*Node{f.node, other} {
			wg.Go(func() {
				<-start
				errs[k] = node.StageFilesystem(t.Context(), f.stageRequest("ext4"))
			})
		}
		close(start)
		wg.Wait()
		if errs[0] != nil && errs[1] != nil {
			t.Errorf("neither succeeded: %v; %v", errs[0], errs[1])
		}
		for _, err := range errs {
			if err != nil {
				wantKind(t, err, csierr.Busy)
			}
		}
		f.mustHaveMounts(f.staging, 1)
		f.unstage()
	}
}

func TestReleased(t *testing.T) {
	f := newFixture(t, 64*mib)
	dev := Device{Path: f.dev.Path}
	released := func() error { return f.node.Released(t.Context(), dev) }
	ok(t, released())
	f.mustStage("ext4")
	wantKind(t, released(), csierr.Precondition, f.staging)
	open, err := os.Create(f.staging + "/file")
	ok(t, err)
	ok(t, unix.Unmount(f.staging, unix.MNT_DETACH)) // now in no mount table
	wantKind(t, released(), csierr.Busy, "in use")
	ok(t, open.Close())
	ok(t, released())
	ok(t, f.publishBlock("p", nil))
	wantKind(t, released(), csierr.Precondition, f.target("p"))
	ok(t, f.unpublish("p"))
	ok(t, released())
	dev.Size = mib // it cannot be checked in place of another
	wantKind(t, released(), csierr.Precondition, "another disk")
	dev.Path = "/dev/csikit-gone"
	ok(t, released())
}

// Only the device shows where a raw block volume is published.
func TestUnstageOfAPublishedDevice(t *testing.T) {
	f := newFixture(t, 8*mib)
	r := UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging, Device: Device{Path: f.dev.Path}}
	ok(t, f.publishBlock("p", nil))
	wantKind(t, f.node.Unstage(t.Context(), r), csierr.Precondition, "still published", f.target("p"))
	r.StagingTargetPath += "-missing" // kubelet removes it first
	wantKind(t, f.node.Unstage(t.Context(), r), csierr.Precondition, "still published", f.target("p"))
	f.with(Config{IsOrphaned: func(path string) bool { return path == f.target("p") }})
	ok(t, f.node.Unstage(t.Context(), r))
	f.mustHaveMounts(f.target("p"), 0)
	fd, err := unix.Open(f.dev.Path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	ok(t, err)
	wantKind(t, f.node.Unstage(t.Context(), r), csierr.Busy, "in use")
	ok(t, unix.Close(fd))
	for range 2 {
		ok(t, f.node.Unstage(t.Context(), r))
	}
	r.Device.Path = "/dev/csikit-gone"
	ok(t, f.node.Unstage(t.Context(), r))
}

// hetznercloud/csi-driver#1455: one device for two volumes after a reboot.
func TestStageRefusesADeviceInUse(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		f.mustStage(fsType)
		r := f.stageRequest(fsType)
		r.VolumeID, r.StagingTargetPath = "other", t.TempDir()
		wantKind(t, f.stage(r), csierr.Precondition, "mounted at "+f.staging)
		if len(f.mounts(r.StagingTargetPath)) > 0 {
			t.Error("and was mounted all the same")
		}
	})
}

// What the probe cannot rule out is ruled out before mounting.
func TestStageRefusesDamage(t *testing.T) {
	t.Run("device smaller than its file system", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		f.mustStage("ext4")
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		f.resize(48 * mib)
		wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Precondition, "too small")
	})
	t.Run("xfs with an interrupted mkfs", func(t *testing.T) {
		f := newFixture(t, 320*mib)
		f.mustStage("xfs")
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		f.poke(126, 1) // sb_inprogress
		wantKind(t, f.stage(f.stageRequest("xfs")), csierr.Precondition, "mkfs was interrupted")
	})
	t.Run("ext4 that e2fsck cannot repair", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		f.mustStage("ext4")
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		f.poke(1024+0x3a, 2) // s_state: errors were found
		fake := t.TempDir()  // e2fsck -p repairs nearly everything: let it say 4 | 1
		ok(t, os.WriteFile(fake+"/e2fsck", []byte("#!/bin/sh\nexit 5\n"), 0o755))
		t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
		wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Precondition, "exit status 5")
	})
	t.Run("ext4 with errors is repaired", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		f.mustStage("ext4")
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		_, _, err := f.node.command(t.Context(), 0, "debugfs", "-w", "-R", "set_super_value state 2", f.dev.Path)
		ok(t, err)
		f.mustStage("ext4")
		d, err := openDevice(Device{Path: f.dev.Path})
		ok(t, err)
		defer d.close()
		if found, err := d.probe(); err != nil || !found.Clean {
			t.Errorf("%+v, %v", found, err)
		}
	})
}

// poke writes one byte to the device.
func (f *fixture) poke(off int64, b byte) {
	f.t.Helper()
	d, err := os.OpenFile(f.dev.Path, os.O_WRONLY, 0)
	if err == nil {
		_, err = d.WriteAt([]byte{b}, off)
		err = errors.Join(err, d.Sync(), d.Close())
	}
	ok(f.t, err)
}

// After a failure to grow, the mount of this call is undone; that of an earlier call stays,
// with a code that makes the CO retry.
func TestFailureToGrow(t *testing.T) {
	f := newFixture(t, 320*mib)
	f.mustStage("xfs")
	path := os.Getenv("PATH")
	fake := t.TempDir()
	ok(t, os.WriteFile(fake+"/xfs_growfs", []byte("#!/bin/sh\nexit 1\n"), 0o755))
	t.Setenv("PATH", fake+":"+path)
	f.resize(640 * mib)
	wantKind(t, f.stage(f.stageRequest("xfs")), csierr.Uncertain, "xfs_growfs")
	if n := len(f.mounts(f.staging)); n != 1 {
		t.Fatalf("%d mounts at the staging path, want that of the first call", n)
	}
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	if err := f.stage(f.stageRequest("xfs")); err == nil {
		t.Fatal("staged without growing")
	}
	if n := len(f.mounts(f.staging)); n != 0 {
		t.Errorf("%d mounts at the staging path after a failure, want none", n)
	}
	t.Setenv("PATH", path)
	f.mustStage("xfs")
}

// After a reboot all volumes are staged concurrently, and because of a stale link two may
// have one device.
func TestOneDeviceForTwoVolumes(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	other := f.target("other")
	ok(t, os.Mkdir(other, 0o755))
	for range 50 {
		var wg sync.WaitGroup
		var errs [2]error
		for i, path := range []string{f.staging, other} {
			wg.Go(func() {
				r := f.stageRequest("ext4")
				r.VolumeID, r.StagingTargetPath = path, path
				errs[i] = f.stage(r)
			})
		}
		wg.Wait()
		if errs[0] == nil && errs[1] == nil {
			t.Fatal("both have the device")
		}
		for _, path := range []string{f.staging, other} {
			ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: path, StagingTargetPath: path}))
		}
	}
}

func TestReadOnlyStage(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		f.mustStage(fsType)
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
		r := f.stageRequest(fsType)
		r.ReadOnly = true
		ok(t, f.stage(r))
		wantKind(t, f.publish("p", nil), csierr.Precondition, "staged read-only")
		ok(t, f.publish("p", func(r *PublishFilesystemRequest) { r.ReadOnly = true }))
		if m := f.mounts(f.staging)[0]; !m.SuperReadOnly() || !m.MountReadOnly() {
			t.Errorf("staged read-only as %+v", m)
		}
	})
}

// The staging mount is not a publication: its unpublish would unmount the stage.
func TestPublishAtTheStagingPath(t *testing.T) {
	f := newFixture(t, 8*mib)
	f.mustStage("ext4")
	link := filepath.Join(f.pods, "link")
	ok(t, os.Symlink(filepath.Dir(f.staging), link))
	for _, target := range []string{f.staging, filepath.Join(link, filepath.Base(f.staging))} {
		wantKind(t, f.publish("", func(r *PublishFilesystemRequest) { r.TargetPath = target }), csierr.Conflict, "is the staging path")
	}
}

// A staging path that shows a part of the volume must not be published.
func TestPublishNeedsTheRoot(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		f.mustStage(fsType)
		ok(t, os.Mkdir(f.staging+"/sub", 0o700))
		other := t.TempDir()
		ok(t, unix.Mount(f.staging+"/sub", other, "", unix.MS_BIND, ""))
		t.Cleanup(func() { ok(t, unix.Unmount(other, 0)) })
		err := f.publish("p", func(r *PublishFilesystemRequest) { r.StagingTargetPath = other })
		wantKind(t, err, csierr.Precondition, "/sub")
	})
}

// A file system that made itself read-only after an error is not the CO's mistake. Once no
// pod uses it, it is repaired and mounted again.
func TestStageAfterFilesystemError(t *testing.T) {
	onEachType(t, func(t *testing.T, f *fixture, fsType string) {
		f.mustStage(fsType)
		ok(t, f.publish("p", nil))
		ok(t, unix.Mount("", f.staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		ok(t, unix.Mount("", f.staging, "", unix.MS_REMOUNT|unix.MS_BIND, "")) // the mount itself stays read-write
		wantKind(t, f.stage(f.stageRequest(fsType)), csierr.Uncertain, "read-only after an error", f.target("p"))
		ok(t, f.unpublish("p"))
		f.mustStage(fsType)
		f.write(f.staging+"/file", "data")
	})
}

// breakFilesystem makes the kernel record an error in the mounted ext4.
func (f *fixture) breakFilesystem() {
	f.t.Helper()
	ok(f.t, os.WriteFile("/sys/fs/ext4/"+filepath.Base(f.dev.Path)+"/trigger_fs_error", []byte("test"), 0))
	dev := f.open()
	for deadline := time.Now().Add(time.Minute); !dev.recordsErrors(); { // a worker of the kernel does that
		if time.Now().After(deadline) {
			f.t.Fatal("ext4 does not record the error")
		}
		time.Sleep(time.Millisecond)
	}
}

// torvalds/linux@d3476f3dad4a (Linux 6.12), ydb-platform/nbs#2936: an ext4 that failed no longer gets a
// read-only superblock, and was staged and published for writing.
func TestExt4AfterError(t *testing.T) {
	condition := func(t *testing.T, f *fixture, want string) {
		t.Helper()
		s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
		if err != nil || s.Condition == "" != (want == "") || !strings.Contains(s.Condition, want) {
			t.Errorf("the condition is %q (%v), want %q", s.Condition, err, want)
		}
	}
	t.Run("remount-ro", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		r := f.stageRequest("ext4")
		r.MountFlags = []string{"errors=remount-ro"}
		ok(t, f.stage(r))
		condition(t, f, "")
		ok(t, f.publish("p", nil))
		f.breakFilesystem()
		condition(t, f, "read-only after an error")
		wantKind(t, f.stage(r), csierr.Uncertain, "read-only after an error", f.target("p"))
		wantKind(t, f.publish("q", nil), csierr.Precondition, "read-only after an error")
		wantKind(t, f.publish("p", nil), csierr.Uncertain, "read-only after an error")
		ok(t, f.publish("ro", func(r *PublishFilesystemRequest) { r.ReadOnly = true }))
		ok(t, f.unpublish("ro"))
		ok(t, f.unpublish("p"))
		ok(t, f.stage(r))
		condition(t, f, "")
		ok(t, f.publish("p", nil))
		f.write(f.target("p")+"/file", "data")
	})
	t.Run("continue", func(t *testing.T) {
		f := newFixture(t, 64*mib)
		r := f.stageRequest("ext4")
		ok(t, f.stage(r))
		ok(t, f.publish("p", nil))
		f.breakFilesystem()
		condition(t, f, "recorded errors")
		ok(t, f.stage(r)) // the pod works
		condition(t, f, "recorded errors")
		ok(t, f.unpublish("p"))
		r.Fsck = FsckNever
		ok(t, f.stage(r))
		condition(t, f, "recorded errors")
		r.Fsck = FsckIfNeeded
		ok(t, f.stage(r))
		condition(t, f, "")
		f.mustHaveMounts(f.staging, 1)
	})
}

// After a crash an error may be recorded in the journal only, where e2fsck finds it.
func TestErrorInTheJournal(t *testing.T) {
	before, f := newFixture(t, 64*mib), newFixture(t, 64*mib)
	before.mustStage("ext4")
	before.breakFilesystem()
	file, err := os.Create(before.staging + "/file")
	ok(t, err)
	ok(t, errors.Join(file.Sync(), file.Close())) // commits the journal, and writes nothing else
	ok(t, os.WriteFile(f.image+"2", before.content(), 0o600))
	f.reattach(f.image + "2")
	if d := f.probeDevice(); !d.Clean || !d.Recovery {
		t.Fatalf("the superblock records the error, so this tests nothing: %v", d)
	}
	log := f.with(Config{})
	f.mustStage("ext4")
	if !log.some("e2fsck -p") {
		t.Error("e2fsck was not run")
	}
	if s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging}); err != nil || s.Condition != "" {
		t.Errorf("the condition is %q (%v)", s.Condition, err)
	}
	f.unstage()
	log = f.with(Config{})
	f.mustStage("ext4")
	if log.some("e2fsck") {
		t.Error("e2fsck was run on a clean file system")
	}
}

// A device that is attached read-only, of a file system that was not unmounted, such as a
// snapshot: its log cannot be replayed.
func TestReadOnlyDeviceWithADirtyLog(t *testing.T) {
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			before, f := newFixture(t, c.size), newFixture(t, c.size)
			before.mustStage(c.fsType)
			before.write(before.staging+"/file", "data")
			before.unstage() // now it is not only in the log
			before.mustStage(c.fsType)
			log, err := os.Create(before.staging + "/log")
			ok(t, err)
			ok(t, errors.Join(log.Sync(), log.Close()))
			ok(t, os.WriteFile(f.image+"2", before.content(), 0o600))
			before.unstage()
			f.reattach(f.image + "2")
			dev := f.open()
			ok(t, dev.setReadOnly(true))
			wantKind(t, f.stage(f.stageRequest(c.fsType)), csierr.Precondition, "refuses writes")
			f.mustHaveMounts(f.staging, 0)
			r := f.stageRequest(c.fsType)
			r.ReadOnly = true
			for range 2 {
				ok(t, f.stage(r))
			}
			f.mustRead(f.staging+"/file", "data")
			f.unstage()
			ok(t, dev.setReadOnly(false))
			f.mustStage(c.fsType)
			f.mustRead(f.staging+"/file", "data")
		})
	}
}

// The access time of the staged volume is replaced by that of the publication, not added.
func TestAccessTimesOfPublications(t *testing.T) {
	for _, flags := range [][2]string{{"strictatime", "noatime"}, {"noatime", "strictatime"}, {"strictatime", ""}, {"", "noatime"}} {
		f := newFixture(t, 64*mib)
		r := f.stageRequest("ext4")
		r.MountFlags = flags[:1]
		ok(t, f.stage(r))
		for range 2 {
			if err := f.publish("p", func(r *PublishFilesystemRequest) { r.MountFlags = flags[1:] }); err != nil {
				t.Errorf("staged with %q, published with %q: %v", flags[0], flags[1], err)
			}
		}
	}
}

// No file system has such a name: a retry could never succeed.
func TestNameTooLong(t *testing.T) {
	f := newFixture(t, 8*mib)
	long := strings.Repeat("n", 256)
	wantKind(t, f.publishBlock(long, nil), csierr.Invalid, "longer than 255 bytes")
	wantKind(t, f.publishBlock(long+"/p", nil), csierr.Invalid, "longer than 255 bytes")
	wantKind(t, f.unpublish(long), csierr.Invalid, "longer than 255 bytes")
	ok(t, f.publishBlock(long[1:], nil))
	ok(t, f.unpublish(long[1:]))
}

// The wait for a device ends with the call.
func TestDeviceWaitEndsWithTheCaller(t *testing.T) {
	f := newFixture(t, 8*mib)
	node, err := New(Config{DeviceWait: 24 * time.Hour})
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = node.awaitDevice(ctx, Device{Path: "/dev/csikit-gone"})
	if !errors.Is(err, errNoDevice) {
		t.Errorf("error is %v, want that there is no device", err)
	}
	dev, err := node.awaitDevice(ctx, Device{Path: f.dev.Path})
	ok(t, err)
	dev.close()
}

// A sound ext4 that resize2fs cannot grow is staged with its size.
func TestStageThatCannotGrow(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	f.unstage()
	f.resize(128 * mib)
	dir := t.TempDir()
	ok(t, os.WriteFile(dir+"/resize2fs", []byte("#!/bin/sh\necho no; exit 1\n"), 0o700))
	path := os.Getenv("PATH")
	t.Setenv("PATH", dir+":"+path)
	f.mustStage("ext4")
	f.unstage()
	t.Setenv("PATH", path)
	f.mustStage("ext4")
	s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
	if err != nil || s.TotalBytes < 100*mib {
		t.Errorf("the file system has %d bytes (%v)", s.TotalBytes, err)
	}
}

// A call whose caller times out stays in flight, is listed, and is joined by the retry.
func TestWorkOutlivesItsCaller(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	// On a frozen file system mkdir blocks in the kernel.
	dir, err := os.Open(f.staging)
	ok(t, err)
	defer dir.Close()
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878
	ok(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	thaw := func() { unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0) }
	defer thaw()

	inside := PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: f.staging, TargetPath: f.staging + "/pod"}
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() { errs <- f.node.PublishFilesystem(ctx, inside) }()
	listed := func(c blocking.Call) bool { return c.Key == inside.TargetPath }
	for !slices.ContainsFunc(f.node.InFlight(), listed) { // it is listed before it can hang
		runtime.Gosched()
	}
	cancel()
	err = <-errs
	var parked interface{ Pending() <-chan struct{} }
	if !errors.As(err, &parked) {
		t.Fatalf("error is %v, want one with Pending", err)
	}
	if code := status.Code(err); code != codes.DeadlineExceeded {
		t.Errorf("code is %v, want DEADLINE_EXCEEDED", code)
	}
	if calls := f.node.InFlight(); len(calls) != 1 || calls[0].Key != inside.TargetPath {
		t.Errorf("InFlight lists %+v, want %s", calls, inside.TargetPath)
	}
	// Another path of the same node is not affected.
	_, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging})
	ok(t, err)
	go func() { errs <- f.node.PublishFilesystem(t.Context(), inside) }()
	thaw()
	<-parked.Pending()
	ok(t, <-errs)
	if n := len(f.mounts(inside.TargetPath)); n != 1 {
		t.Errorf("%d mounts at the target, want 1", n)
	}
	ok(t, f.node.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: inside.TargetPath}))
}
