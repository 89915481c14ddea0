package nodeops

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

func (f *fixture) run(name string, args ...string) {
	f.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		f.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// A restored snapshot has its source's UUID, by which btrfs knows its devices.
// Whether or not the kernel mounts both, no path shows the data of the other.
func TestBtrfsClone(t *testing.T) {
	const size = 256 * mib
	a, b := newFixture(t, size), newFixture(t, size)
	a.mustStage("btrfs")
	a.write(a.staging+"/who", "a")
	a.unstage()
	a.run("dd", "if="+a.dev.Path, "of="+b.dev.Path, "bs=1M", "conv=fsync,sparse", "status=none")
	b.mustStage("btrfs") // as the other one is not mounted, on every kernel
	b.write(b.staging+"/who", "b")
	b.unstage()

	both := []*fixture{a, b}
	for round := range 4 {
		if round%2 == 1 {
			slices.Reverse(both)
		}
		if round >= 2 { // as udev does for each device that appears
			for _, f := range both {
				f.run("btrfs", "device", "scan", f.dev.Path)
			}
		}
		first, second := both[0], both[1]
		first.mustStage("btrfs")
		staged := both
		if err := second.stage(second.stageRequest("btrfs")); err != nil {
			wantKind(t, err, csierr.Precondition, "Linux 6.7")
			staged = both[:1]
		}
		for _, f := range staged {
			f.run("btrfs", "device", "scan", f.dev.Path)
			f.mustStage("btrfs") // finds it done
			ok(t, f.publish("p", func(r *PublishFilesystemRequest) { r.Device.Path = f.dev.Path }))
			want := "a"
			if f == b {
				want = "b"
			}
			if got, err := os.ReadFile(f.target("p") + "/who"); string(got) != want {
				t.Fatalf("round %d: shows the data of %q, want %q (%v)", round, got, want, err)
			}
			at, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path})
			if want := []string{f.target("p"), f.staging}; err != nil || !slices.Equal(at, want) {
				t.Errorf("round %d: mounted at %v (%v), want %v", round, at, err, want)
			}
			grown := size + mib*16*int64(round+1)
			f.resize(grown)
			got, err := f.node.Expand(t.Context(), ExpandRequest{VolumeID: "v", VolumePath: f.staging})
			if s, e := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.staging}); err != nil || e != nil || got != grown || s.TotalBytes != grown || s.TotalInodes != 0 {
				t.Errorf("round %d: grown to %d, %+v (%v); want %d bytes and no inodes", round, got, s, errors.Join(err, e), grown)
			}
		}
		for _, f := range staged {
			wantKind(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}), csierr.Precondition, f.target("p"))
			ok(t, f.unpublish("p"))
			f.unstage()
		}
	}
}

// What the kernel cannot grow is staged all the same, and not said to have grown.
func TestSmallBtrfs(t *testing.T) {
	f := newFixture(t, 128*mib)
	f.mustStage("btrfs")
	f.unstage()
	f.resize(192 * mib)
	f.mustStage("btrfs")
	expand := ExpandRequest{VolumeID: "v", VolumePath: f.staging}
	_, err := f.node.Expand(t.Context(), expand)
	wantKind(t, err, csierr.Precondition, "268435456 bytes or more")
	f.resize(256 * mib)
	if got, err := f.node.Expand(t.Context(), expand); err != nil || got != 256*mib {
		t.Errorf("grown to %d, %v", got, err)
	}
}

func TestBtrfsOfTwoDevices(t *testing.T) {
	a, b := newFixture(t, 128*mib), newFixture(t, 128*mib)
	a.run("mkfs.btrfs", "-q", "-K", a.dev.Path, b.dev.Path)
	for _, f := range []*fixture{a, b} {
		wantKind(t, f.stage(f.stageRequest("btrfs")), csierr.Precondition, "one of the 2 devices")
		if len(f.mounts(f.staging)) > 0 {
			t.Error("mounted")
		}
	}
	// A device that was added since: the device number does not identify the volume any more.
	f := newFixture(t, 128*mib)
	f.mustStage("btrfs")
	f.run("btrfs", "device", "add", "-f", b.dev.Path, f.staging)
	err := f.publish("p", nil)
	wantKind(t, err, csierr.Uncertain, "does not consist of one device")
	f.unstage()
}

// The volume is the whole file system, whatever its default subvolume is.
func TestBtrfsSubvolumes(t *testing.T) {
	f := newFixture(t, 128*mib)
	f.mustStage("btrfs")
	f.run("btrfs", "subvolume", "create", f.staging+"/sub")
	f.run("btrfs", "subvolume", "set-default", f.staging+"/sub")
	f.write(f.staging+"/file", "data")
	f.unstage()
	f.mustStage("btrfs")
	f.mustStage("btrfs")
	if got, err := os.ReadFile(f.staging + "/file"); string(got) != "data" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	// Files in a subvolume have another st_dev, which must not make it another volume.
	sub := t.TempDir()
	ok(t, unix.Mount(f.staging+"/sub", sub, "", unix.MS_BIND, ""))
	defer func() { ok(t, unix.Unmount(sub, 0)) }()
	wantKind(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}), csierr.Precondition, "still published at "+sub)
	err := f.publish("p", func(r *PublishFilesystemRequest) { r.StagingTargetPath = sub })
	wantKind(t, err, csierr.Precondition, "/sub of a file system")

	for _, option := range []string{"subvol=sub", "noatime,subvolid=256", "device=/dev/loop9"} {
		r := f.stageRequest("btrfs")
		r.MountFlags = []string{option}
		wantKind(t, f.stage(r), csierr.Invalid, "a whole btrfs")
	}
}

// The mount table shows a btrfs by the name that its device was last mounted by.
// If that path does not exist, the answer is an error.
func TestBtrfsByAnotherPath(t *testing.T) {
	f := newFixture(t, 128*mib)
	f.mustStage("btrfs")
	ok(t, f.publish("p", nil))
	dir := t.TempDir()
	name, other := dir+"/disk", dir+"/mnt"
	ok(t, unix.Mknod(name, unix.S_IFBLK|0o600, int(f.dev.Rdev)))
	ok(t, os.Mkdir(other, 0o700))
	ok(t, unix.Mount(name, other, "btrfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(other, 0) })
	if m := f.mounts(f.staging)[0]; m.Source != name {
		t.Skipf("this kernel shows %s", m.Source)
	}
	r := f.stageRequest("btrfs")
	wantKind(t, f.stage(r), csierr.Conflict, "device is 0:")
	byDevice := func(r *PublishFilesystemRequest) { r.Device.Path = f.dev.Path }
	wantKind(t, f.publish("q", byDevice), csierr.Precondition, name)
	wantKind(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}), csierr.Precondition, f.target("p"), other)
	f.run("btrfs", "device", "scan", f.dev.Path)
	f.mustStage("btrfs")
	ok(t, f.publish("q", byDevice))
	ok(t, unix.Unmount(other, 0))
	// And we make no such mount.
	ok(t, f.unpublish("p"))
	ok(t, f.unpublish("q"))
	f.unstage()
	r.Device.Path = name
	wantKind(t, f.stage(r), csierr.Invalid, "not in /dev")
	// A link to /dev is no such name.
	r.Device.Path = dir + "/by-id"
	ok(t, os.Symlink(f.dev.Path, r.Device.Path))
	for range 2 {
		ok(t, f.stage(r))
	}
}

// mkfs.btrfs writes without holding the device. One that outlives its driver must
// not meet the mkfs of the next.
func TestMkfsOutlivesItsDriver(t *testing.T) {
	f := newFixture(t, 128*mib)
	dir := t.TempDir()
	fifo, path := filepath.Join(dir, "fifo"), os.Getenv("PATH")
	ok(t, unix.Mkfifo(fifo, 0o600))
	script := "#!/bin/sh\nfor dev; do :; done\nprintf x | dd of=$dev bs=1 seek=1000000 conv=notrunc 2>/dev/null\nread line <" + fifo + "\necho done >" + fifo + "\n"
	ok(t, os.WriteFile(dir+"/mkfs.btrfs", []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+path)
	driver := gate.RoleCommand(context.Background(), "stage", f.dev.Path, f.staging, "btrfs")
	ok(t, driver.Start())
	mkfs, err := os.OpenFile(fifo, os.O_WRONLY, 0) // once it reads
	ok(t, err)
	defer mkfs.Close()
	ok(t, driver.Process.Kill())
	_ = driver.Wait()
	t.Setenv("PATH", path)
	wantKind(t, f.stage(f.stageRequest("btrfs")), csierr.Busy, "mkfs of an earlier, interrupted call")
	_, err = mkfs.WriteString("go on\n")
	ok(t, err)
	ok(t, mkfs.Close())
	end, err := os.ReadFile(fifo) // once it has come so far
	if err != nil || !bytes.Equal(end, []byte("done\n")) {
		t.Fatalf("%q, %v", end, err)
	}
	err = f.stage(f.stageRequest("btrfs"))
	for i := 0; err != nil && strings.Contains(err.Error(), "mkfs of an earlier, interrupted call") && i < 1000; i++ { // it ends
		err = f.stage(f.stageRequest("btrfs"))
	}
	ok(t, err)
}
