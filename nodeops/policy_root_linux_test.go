package nodeops

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
)

// ran collects the command lines of the log.
type ran struct{ lines []string }

func (r *ran) Write(p []byte) (int, error) {
	if line := string(p); strings.Contains(line, "ran a program") {
		_, line, _ = strings.Cut(line, "command=")
		r.lines = append(r.lines, line)
	}
	return len(p), nil
}

func (r *ran) some(word string) bool {
	return slices.ContainsFunc(r.lines, func(l string) bool { return strings.Contains(l, word) })
}

// with replaces the fixture's node and returns what it runs.
func (f *fixture) with(cfg Config) *ran {
	f.t.Helper()
	log := new(ran)
	cfg.DeviceWait = -1
	cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	node, err := New(cfg)
	ok(f.t, err)
	f.node = node
	return log
}

func TestFsckPolicy(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	f.write(f.staging+"/file", "data")
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	for _, tt := range []struct {
		policy  Fsck
		damaged bool
		want    string // of the command line; "" for no check
	}{
		{FsckIfNeeded, false, ""},
		{FsckNever, false, ""},
		{FsckAlways, false, "e2fsck -f -p"},
		{FsckNever, true, ""},
		{FsckIfNeeded, true, "e2fsck -p"},
	} {
		if tt.damaged {
			_, _, err := f.node.command(t.Context(), 0, "debugfs", "-w", "-R", "set_super_value state 2", f.dev.Path)
			ok(t, err)
		}
		log := f.with(Config{})
		r := f.stageRequest("ext4")
		r.Fsck = tt.policy
		ok(t, f.stage(r))
		if got := log.some("e2fsck"); got != (tt.want != "") || !log.some(tt.want) && tt.want != "" {
			t.Errorf("policy %d, damaged %v: ran %q, want %q", tt.policy, tt.damaged, log.lines, tt.want)
		}
		if got, err := os.ReadFile(f.staging + "/file"); err != nil || string(got) != "data" {
			t.Errorf("read %q (%v)", got, err)
		}
		ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	}
	r := f.stageRequest("ext4")
	r.Fsck = FsckAlways + 1
	wantKind(t, f.stage(r), csierr.Invalid, "Fsck")
}

// ceph/ceph-csi#859, rook/rook#4914: xfs_repair was run before the log was replayed. It is
// never run on a file system that may have been used.
func TestNoProgramTouchesAFormattedXFS(t *testing.T) {
	f := newFixture(t, 320*mib)
	f.mustStage("xfs")
	ok(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
	log := f.with(Config{})
	r := f.stageRequest("xfs")
	r.Fsck = FsckAlways
	ok(t, f.stage(r))
	if len(log.lines) > 0 {
		t.Errorf("ran %q, want nothing", log.lines)
	}
}

// If the CO's device cgroup prevents writes of a pod, the device is not changed.
func TestDeviceCgroup(t *testing.T) {
	f := newFixture(t, 8*mib)
	f.with(Config{DeviceCgroup: true})
	ro := func(r *PublishBlockRequest) { r.ReadOnly = true }
	ok(t, f.publishBlock("ro", ro))
	ok(t, f.publishBlock("rw", nil))
	ok(t, f.publishBlock("ro", ro))
	if f.refusesWrites() {
		t.Error("the device refuses writes")
	}
	ok(t, f.unpublish("rw"))

	// A flag left by a driver without the option is cleared by the first read-write publication.
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(t, err)
	ok(t, d.setReadOnly(true))
	d.close()
	ok(t, f.publishBlock("rw", nil))
	if f.refusesWrites() {
		t.Error("the device refuses writes")
	}
	for _, pod := range []string{"ro", "rw"} {
		ok(t, f.unpublish(pod))
	}
}

func TestRescan(t *testing.T) {
	f := newFixture(t, 320*mib)
	f.mustStage("xfs")
	ok(t, os.Truncate(f.image, 640*mib)) // which the loop device does not notice
	r := ExpandRequest{VolumeID: "v", VolumePath: f.staging, RequiredBytes: 640 * mib}
	_, err := f.node.Expand(t.Context(), r)
	wantKind(t, err, csierr.Uncertain, "has not grown yet")

	r.Rescan = func(string) error { return errors.New("no luck") }
	_, err = f.node.Expand(t.Context(), r)
	wantKind(t, err, csierr.Uncertain, "no luck")

	var rescanned []string
	r.Rescan = func(path string) error {
		rescanned = append(rescanned, path)
		_, err := f.dev.Resize()
		return err
	}
	for range 2 {
		got, err := f.node.Expand(t.Context(), r)
		if err != nil || got != 640*mib {
			t.Fatalf("expanded to %d: %v", got, err)
		}
	}
	if !slices.Equal(rescanned, []string{f.dev.Path}) {
		t.Errorf("rescanned %q, want %s once", rescanned, f.dev.Path)
	}
}

// A device is not written for a mount that has no place to go.
func TestStageWithoutADirectory(t *testing.T) {
	f := newFixture(t, 64*mib)
	r := f.stageRequest("ext4")
	r.StagingTargetPath = f.target("missing")
	wantKind(t, f.stage(r), csierr.Precondition, "staging directory")
	f.write(f.target("file"), "")
	r.StagingTargetPath = f.target("file")
	wantKind(t, f.stage(r), csierr.Conflict, "want a directory")
	if found := f.probeDevice(); found.String() != "blank" {
		t.Errorf("the device holds %v", found)
	}
}

func TestStageBlock(t *testing.T) {
	f := newFixture(t, 64*mib)
	stage := func(d Device) error {
		return f.node.StageBlock(t.Context(), StageBlockRequest{VolumeID: "v", Device: d, StagingTargetPath: f.staging})
	}
	for range 2 {
		ok(t, stage(Device{Path: f.dev.Path, Size: 64 * mib}))
	}
	wantKind(t, stage(Device{Path: f.dev.Path, Size: 32 * mib}), csierr.Precondition, "may be another disk")
	wantKind(t, stage(Device{Path: "/dev/nosuchdevice"}), csierr.Precondition, "does not exist")
	if found := f.probeDevice(); found.String() != "blank" || len(f.mounts(f.staging)) > 0 {
		t.Errorf("the device holds %v, mounted is %v", found, f.mounts(f.staging))
	}
	f.mustStage("ext4")
	wantKind(t, stage(Device{Path: f.dev.Path}), csierr.Precondition, "mounted as a file system")
}
