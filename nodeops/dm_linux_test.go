package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mapped puts the fixture's volume on a device of device-mapper whose target is, over the
// loop device. The words of a table are those of the kernel's
// Documentation/admin-guide/device-mapper.
type mapped struct {
	*fixture
	name string
	path string
}

func newMapped(t *testing.T, size int64) *mapped {
	t.Helper()
	gate.Root(t)
	gate.Modules(t, "dm_mod", "dm_flakey", "dm_delay", "loop")
	gate.Tools(t, "dmsetup", "blockdev")
	t.Setenv("DM_DISABLE_UDEV", "1") // dmsetup creates the node, also without udev
	f := newFixture(t, size)
	m := &mapped{fixture: f, name: fmt.Sprintf("csikit%d", os.Getpid())}
	m.path = "/dev/mapper/" + m.name
	run(t, "dmsetup", "create", m.name, "--table", m.table("linear", ""))
	t.Cleanup(func() {
		m.become("linear", "")
		for _, path := range []string{f.target("p"), f.staging} {
			if err := unmountPath(path); err != nil {
				t.Error(err)
			}
		}
		run(t, "dmsetup", "remove", "--retry", m.name)
	})
	return m
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (m *mapped) table(target, more string) string {
	sectors := run(m.t, "blockdev", "--getsz", m.dev.Path)
	if target == "error" {
		return fmt.Sprintf("0 %s error", sectors)
	}
	return fmt.Sprintf("0 %s %s %s 0 %s", sectors, target, m.dev.Path, more)
}

// become changes what the device does, without waiting for what it has under way.
func (m *mapped) become(target, more string) {
	m.t.Helper()
	run(m.t, "dmsetup", "suspend", "--noflush", "--nolockfs", m.name)
	run(m.t, "dmsetup", "load", m.name, "--table", m.table(target, more))
	run(m.t, "dmsetup", "resume", m.name)
}

func (m *mapped) request(fsType string) StageFilesystemRequest {
	r := m.stageRequest(fsType)
	r.Device.Path = m.path
	return r
}

// A device that cannot be read, or only in part, is not blank.
func TestMapperErrors(t *testing.T) {
	m := newMapped(t, 64*mib)
	m.become("error", "")
	err := m.stage(m.request("ext4"))
	if err == nil {
		t.Fatal("staged a device that returns only errors")
	}
	wantKind(t, err, csierr.Internal, "input/output error")
	m.become("linear", "")
	if found := m.probeDevice(); found.String() != "blank" {
		t.Errorf("the device holds %v", found)
	}
	ok(t, m.stage(m.request("ext4")))
	ok(t, m.publish("p", nil))
	m.write(m.target("p")+"/file", "data")
	unix.Sync()

	// It fails while it is in use: everything comes down, and nothing is lost.
	m.become("error", "")
	_ = os.WriteFile(m.target("p")+"/other", []byte("data"), 0o600)
	unix.Sync()
	_, err = m.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: m.target("p")})
	t.Logf("stats: %v", err)
	ok(t, m.unpublish("p"))
	ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))
	if err := m.stage(m.request("ext4")); err == nil {
		t.Error("staged while the device returns errors")
	} else {
		t.Logf("stage: %v", err)
	}
	m.become("linear", "")
	ok(t, m.stage(m.request("ext4")))
	if got, err := os.ReadFile(m.staging + "/file"); err != nil || string(got) != "data" {
		t.Errorf("read %q (%v)", got, err)
	}
	ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))
}

// A device that fails for a second at a time, as a path that flaps: whatever stage
// answers, it converges, and never formats what is not blank.
func TestMapperFlakey(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			m := newMapped(t, 320*mib)
			ok(t, m.stage(m.request(fsType)))
			m.write(m.staging+"/file", "data")
			ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))

			m.become("flakey", "1 1")
			for deadline := time.Now().Add(time.Minute); ; {
				err := m.stage(m.request(fsType))
				if err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("it does not converge: %v", err)
				}
			}
			m.become("linear", "")
			ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))
			ok(t, m.stage(m.request(fsType)))
			if got, err := os.ReadFile(m.staging + "/file"); err != nil || string(got) != "data" {
				t.Errorf("read %q (%v)", got, err)
			}
			ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))
		})
	}
}

// A device that does not respond blocks only its volume; the caller gets an error, a retry joins.
func TestMapperSuspended(t *testing.T) {
	m := newMapped(t, 64*mib)
	ok(t, m.stage(m.request("ext4")))
	m.write(m.staging+"/file", "data") // not yet on the device
	run(t, "dmsetup", "suspend", "--noflush", "--nolockfs", m.name)
	for range 2 {
		err := m.node.Unstage(soon(t), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging})
		if status.Code(err) != codes.DeadlineExceeded || !isPending(err) {
			t.Errorf("unstage: %v, want DEADLINE_EXCEEDED and pending", err)
		}
	}
	other := newFixture(t, 64*mib)
	other.node = m.node
	r := other.stageRequest("ext4")
	r.VolumeID = "other"
	ok(t, other.stage(r))
	ok(t, other.node.Unstage(t.Context(), UnstageRequest{VolumeID: "other", StagingTargetPath: other.staging}))

	run(t, "dmsetup", "resume", m.name)
	ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))
	m.become("delay", "50") // every read and write takes 50 ms longer
	ok(t, m.stage(m.request("ext4")))
	if got, err := os.ReadFile(m.staging + "/file"); err != nil || string(got) != "data" {
		t.Errorf("read %q (%v)", got, err)
	}
	ok(t, m.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: m.staging}))
}

// What is encrypted is not blank, whether it is open or not; the open device is a volume
// as any other, which grows in two steps.
func TestLUKS(t *testing.T) {
	gate.Modules(t, "dm_crypt")
	gate.Tools(t, "cryptsetup", "blkdiscard")
	f := newFixture(t, 64*mib)
	name := fmt.Sprintf("csikit%d", os.Getpid())
	path := "/dev/mapper/" + name
	key := filepath.Join(t.TempDir(), "key")
	ok(t, os.WriteFile(key, []byte("secret"), 0o600))
	t.Setenv("DM_DISABLE_UDEV", "1")
	cryptsetup := func(args ...string) {
		t.Helper()
		run(t, "cryptsetup", append([]string{"--batch-mode", "--key-file", key}, args...)...)
	}
	cryptsetup("luksFormat", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", f.dev.Path)
	wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Precondition, "LUKS")
	cryptsetup("open", f.dev.Path, name)
	t.Cleanup(func() {
		if err := unmountPath(f.staging); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command("cryptsetup", "close", name).CombinedOutput(); err != nil {
			t.Errorf("close: %v: %s", err, out)
		}
	})
	if err := f.stage(f.stageRequest("ext4")); err == nil {
		t.Error("staged a device that is in use by dm-crypt")
	}
	r := f.stageRequest("ext4")
	r.Device.Path = path
	// It turns zeros below into noise, which cannot be distinguished from data.
	wantKind(t, f.stage(r), csierr.Precondition, "blkdiscard -z")
	run(t, "blkdiscard", "-z", path)
	for range 2 {
		ok(t, f.stage(r))
	}
	f.write(f.staging+"/file", "data")
	f.resize(128 * mib)
	grow := ExpandRequest{VolumeID: "v", VolumePath: f.staging, RequiredBytes: 100 * mib}
	_, err := f.node.Expand(t.Context(), grow)
	wantKind(t, err, csierr.Uncertain, "has not grown yet")
	gate.Capability(t, unix.CAP_SYS_RESOURCE)
	grow.Rescan = func(string) error { cryptsetup("resize", name); return nil }
	got, err := f.node.Expand(t.Context(), grow)
	if err != nil || got < 100*mib || got >= 128*mib { // LUKS keeps 16 MiB for itself
		t.Errorf("expanded to %d: %v", got, err)
	}
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
}

// newSCSI returns the directory in sysfs of a new disk of 64 MiB.
func newSCSI(t *testing.T) (disk string) {
	t.Helper()
	gate.Root(t)
	gate.Modules(t, "scsi_debug", "sd_mod")
	gate.Tools(t, "modprobe", "rmmod", "mke2fs", "e2fsck", "blkid")
	run(t, "rmmod", "scsi_debug")
	run(t, "modprobe", "scsi_debug", "dev_size_mb=64", "delay=0")
	t.Cleanup(func() { run(t, "rmmod", "scsi_debug") })
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		disks, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*/block/sd*")
		if len(disks) == 1 {
			return disks[0]
		}
		if time.Now().After(end) {
			t.Fatalf("scsi_debug made the disks %q, want one", disks)
		}
	}
}

// The identity of a SCSI disk, of a partition, and of a multipath device is what the kernel
// shows; the multipath device is one of its name only.
func TestSCSIIdentity(t *testing.T) {
	gate.Modules(t, "dm_mod")
	gate.Tools(t, "dmsetup", "addpart", "delpart")
	t.Setenv("DM_DISABLE_UDEV", "1")
	disk := newSCSI(t)
	path := "/dev/" + filepath.Base(disk)
	page, err := os.ReadFile(disk + "/device/vpd_pg80")
	ok(t, err)
	wwid, err := os.ReadFile(disk + "/device/wwid")
	ok(t, err)
	serial := strings.TrimSpace(string(page[4:]))
	t.Logf("serial %q, wwid %q", serial, wwid)
	n, err := New(Config{DeviceWait: -1})
	ok(t, err)
	stage := func(d Device) error {
		return n.StageBlock(t.Context(), StageBlockRequest{VolumeID: "v", Device: d, StagingTargetPath: "/nowhere"})
	}
	whole := Device{Path: path, Serial: serial, WWID: strings.TrimSpace(string(wwid))}
	ok(t, stage(whole))
	wantKind(t, stage(Device{Path: path, Serial: serial + "0"}), csierr.Precondition, "it is another disk")

	run(t, "addpart", path, "2", "2048", "4096")
	t.Cleanup(func() { run(t, "delpart", path, "2") })
	part := whole
	part.Path, part.Partition, part.Size = path+"2", 2, 2*mib
	ok(t, stage(part))
	wantKind(t, stage(Device{Path: part.Path, Serial: serial}), csierr.Precondition, "the volume is a whole disk")
	part.Partition = 1
	wantKind(t, stage(part), csierr.Precondition, "partition 2")

	name, uuid := fmt.Sprintf("csikit%d", os.Getpid()), "mpath-3600csikit"
	run(t, "dmsetup", "create", name, "--uuid", uuid, "--table", "0 2048 linear "+path+" 0")
	remove := sync.OnceFunc(func() { run(t, "dmsetup", "remove", "--retry", name) })
	t.Cleanup(remove)
	for _, d := range []Device{whole, {Path: path}, {Path: part.Path}} {
		wantKind(t, stage(d), csierr.Precondition, "one path of the multipath device /dev/mapper/"+name)
	}
	mapped := Device{Path: "/dev/mapper/" + name, DMUUID: uuid}
	ok(t, stage(mapped))
	mapped.DMUUID = "mpath-3600other"
	wantKind(t, stage(mapped), csierr.Precondition, uuid, "another disk")

	// A link that refers to a path is changed to the multipath device once that is assembled.
	link := filepath.Join(t.TempDir(), "by-id")
	ok(t, os.Symlink(path, link))
	patient, err := New(Config{DeviceWait: time.Minute})
	ok(t, err)
	staged := make(chan error, 1)
	go func() {
		staged <- patient.StageBlock(t.Context(), StageBlockRequest{VolumeID: "v", Device: Device{Path: link, DMUUID: uuid}, StagingTargetPath: "/nowhere"})
	}()
	ok(t, os.Symlink("/dev/mapper/"+name, link+".new"))
	ok(t, os.Rename(link+".new", link))
	ok(t, <-staged)
	remove()
	ok(t, stage(whole))
}

// A disk of the SCSI stack grows when it is rescanned, and goes without a word.
func TestSCSI(t *testing.T) {
	disk := newSCSI(t)
	sys, path := filepath.Join(disk, "device"), "/dev/"+filepath.Base(disk)
	wwid, err := os.ReadFile(sys + "/wwid")
	ok(t, err)

	dir := t.TempDir()
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "p")
	ok(t, os.Mkdir(staging, 0o755))
	n, err := New(Config{})
	ok(t, err)
	device := Device{Path: path, WWID: strings.TrimSpace(string(wwid)), Size: 64 * mib}
	ok(t, n.PublishBlock(t.Context(), PublishBlockRequest{VolumeID: "v", Device: device, TargetPath: target}))
	capacity := func(gib string) { // 0: that of what the disk really stores
		ok(t, os.WriteFile("/sys/bus/pseudo/drivers/scsi_debug/virtual_gb", []byte(gib), 0))
	}
	rescan := func(string) error { return os.WriteFile(sys+"/rescan", []byte("1"), 0) }
	capacity("1")
	grow := ExpandRequest{VolumeID: "v", VolumePath: target, RequiredBytes: 1024 * mib}
	_, err = n.Expand(t.Context(), grow)
	wantKind(t, err, csierr.Uncertain, "has not grown yet")
	grow.Rescan = rescan
	for range 2 {
		got, err := n.Expand(t.Context(), grow)
		if err != nil || got != 1024*mib {
			t.Fatalf("expanded to %d: %v", got, err)
		}
	}
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	capacity("0")
	ok(t, rescan(path))

	r := StageFilesystemRequest{VolumeID: "v", Device: device, StagingTargetPath: staging, FSType: "ext4"}
	other := r
	other.Device.WWID = "t10.another"
	wantKind(t, n.StageFilesystem(t.Context(), other), csierr.Precondition, "it is another disk")
	for range 2 {
		ok(t, n.StageFilesystem(t.Context(), r))
	}
	t.Cleanup(func() {
		for _, p := range []string{target, staging} {
			if err := unmountPath(p); err != nil {
				t.Error(err)
			}
		}
	})
	ok(t, n.PublishFilesystem(t.Context(), PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: staging, TargetPath: target}))

	// Pulled out.
	ok(t, os.WriteFile(sys+"/delete", []byte("1"), 0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = n.Stats(ctx, StatsRequest{VolumeID: "v", VolumePath: target})
	t.Logf("stats: %v", err)
	if err := n.StageFilesystem(ctx, r); err == nil {
		t.Error("staged a disk that was pulled out")
	} else {
		t.Logf("stage: %v", err)
	}
	ok(t, n.Unpublish(ctx, UnpublishRequest{VolumeID: "v", TargetPath: target}))
	ok(t, n.Unstage(ctx, UnstageRequest{VolumeID: "v", StagingTargetPath: staging}))
	err = n.StageFilesystem(ctx, r)
	wantKind(t, err, csierr.Precondition, "does not exist")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", path, err)
	}
}
