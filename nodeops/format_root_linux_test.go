package nodeops

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/blockdev"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/probe"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

const gib = int64(1) << 30

// open returns the fixture's device.
func (f *fixture) open() *device {
	f.t.Helper()
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(f.t, err)
	f.t.Cleanup(d.close)
	return d
}

func (f *fixture) probeDevice() contents {
	f.t.Helper()
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(f.t, err)
	defer d.close()
	found, err := f.node.probeDevice(f.t.Context(), d, "v", true)
	ok(f.t, err)
	return found
}

// put writes to the device.
func (f *fixture) put(off int64, text []byte) {
	f.t.Helper()
	d, err := os.OpenFile(f.dev.Path, os.O_WRONLY, 0)
	if err == nil {
		_, err = d.WriteAt(text, off)
		err = errors.Join(err, d.Sync(), d.Close())
	}
	ok(f.t, err)
}

func (f *fixture) putMark(m mark.Mark) {
	f.t.Helper()
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(f.t, err)
	defer d.close()
	ok(f.t, d.writeMark(m))
}

// reattach attaches the image again, as another node would.
func (f *fixture) reattach(image string) {
	f.t.Helper()
	ok(f.t, f.dev.Detach(context.Background()))
	dev, err := loopdev.Attach(context.Background(), image)
	ok(f.t, err)
	f.image, f.dev = image, dev
}

func (f *fixture) mkfs(fsType string, more ...string) {
	f.t.Helper()
	args := append(slices.Clone(filesystems[fsType].mkfs), more...)
	status, output, err := f.node.command(f.t.Context(), 0, args[0], append(args[1:], f.dev.Path)...)
	if err != nil || status != 0 {
		f.t.Fatalf("%v: %d, %v: %s", args, status, err, output)
	}
}

func (f *fixture) unstage() {
	f.t.Helper()
	ok(f.t, f.node.Unstage(context.Background(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}))
}

// forKernel is the mkfs, of the version that is installed, for a kernel.
func forKernel(fsType string, kernel version) []string {
	fs := filesystems[fsType]
	out, _ := exec.Command(fs.mkfs[0], "-V").CombinedOutput()
	installed, _ := findVersion(string(out))
	return append(slices.Clone(fs.mkfs), fs.disableArgs(kernel, installed)...)
}

// The installed programs write to no place of the mark: an interrupted mkfs has written a
// part of what a complete one writes.
func TestMarkSurvivesMkfs(t *testing.T) {
	programs := []struct {
		name string
		min  int64
		args []string
	}{
		{"ext4", mib, filesystems["ext4"].mkfs},
		{"ext4 lazy", mib, append(slices.Clone(filesystems["ext4"].mkfs), filesystems["ext4"].prezeroed...)},
		{"ext4 not lazy", mib, []string{"mke2fs", "-q", "-t", "ext4", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"}},
		{"ext4 for old kernels", mib, append(slices.Clone(filesystems["ext4"].mkfs), "-O", "^64bit,^metadata_csum")},
		{"ext4 for the oldest kernel", mib, forKernel("ext4", earliest)},
		{"ext4 with all that is new", mib, append(slices.Clone(filesystems["ext4"].mkfs), "-O", "orphan_file,metadata_csum_seed")},
		{"xfs", 300 * mib, filesystems["xfs"].mkfs},
		{"xfs for 5.4", 300 * mib, forKernel("xfs", version{5, 4})},
		{"xfs for the oldest kernel", 300 * mib, forKernel("xfs", earliest)},
		{"xfs with all that is new", 300 * mib, append(slices.Clone(filesystems["xfs"].mkfs), "-m", "rmapbt=1", "-i", "nrext64=1")},
		{"xfs striped", gib, append(slices.Clone(filesystems["xfs"].mkfs), "-d", "su=64k,sw=4")},
		{"btrfs", 128 * mib, filesystems["btrfs"].mkfs},
	}
	sizes := []int64{
		mib, 2*mib + 512, 5 * mib, 11 * mib, 16 * mib, 24 * mib, 31*mib + 512, 32 * mib, 40 * mib, 64 * mib, 100 * mib,
		128 * mib, 255 * mib, 256 * mib, 300 * mib, 331 * mib, 511 * mib, 512 * mib, gib, gib + 1234*512, 3 * gib, 10 * gib, 100 * gib, 1024 * gib,
	}
	for _, size := range sizes {
		f := newFixture(t, size)
		for _, p := range programs {
			if size < p.min || p.name == "ext4 not lazy" && size > gib {
				continue
			}
			m := mark.New("v", "ext4", size)
			f.putMark(m)
			if out, err := exec.Command(p.args[0], append(p.args[1:], f.dev.Path)...).CombinedOutput(); err != nil {
				t.Fatalf("%s of %d bytes: %v: %s", p.name, size, err, out)
			}
			if found := f.probeDevice(); !found.mark.Whole("ext4") || found.Kind != probe.Filesystem {
				t.Errorf("%s of %d bytes: %d of %d places left; holds %v", p.name, size, len(found.mark.Ours), len(found.mark.Places), found)
			}
			f.erase()
		}
	}
}

// erase makes the device blank.
func (f *fixture) erase() {
	f.t.Helper()
	d, err := os.OpenFile(f.dev.Path, os.O_RDWR, 0)
	ok(f.t, err)
	defer d.Close()
	ok(f.t, unix.Fallocate(int(d.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, f.dev.Size))
}

// What is not ours, or is not whole, is data.
func TestMarkIsNotEnough(t *testing.T) {
	const size = 64 * mib
	places := mark.Places(size)
	debris := func(f *fixture) {
		f.put(20*mib, []byte("as mke2fs might leave it, or precious"))
		f.put(0, []byte("x"))
	}
	tests := []struct {
		name  string
		setup func(*fixture)
		words string
	}{
		{"no mark", debris, "unknown kind"},
		{"another volume's", func(f *fixture) { f.putMark(mark.New("w", "ext4", size)); debris(f) }, `volume "w"`},
		{"another volume's on a blank device", func(f *fixture) { f.putMark(mark.New("w", "ext4", size)) }, `volume "w"`},
		{"another size's", func(f *fixture) { f.putMark(mark.New("v", "ext4", size-512)); debris(f) }, "67108352 bytes"},
		{"another type's", func(f *fixture) { f.putMark(mark.New("v", "xfs", size)); debris(f) }, "unknown kind"},
		{"half of it", func(f *fixture) {
			f.putMark(mark.New("v", "ext4", size))
			debris(f)
			f.put(places[0], make([]byte, mark.Size))
		}, "unknown kind"},
		{"overwritten", func(f *fixture) {
			f.putMark(mark.New("v", "ext4", size))
			debris(f)
			f.put(places[1]+600, []byte("precious"))
		}, "unknown kind"},
		{"data in its place", func(f *fixture) { f.put(places[1], []byte("precious")) }, "unknown kind"},
		{"something that mkfs does not write", func(f *fixture) {
			f.putMark(mark.New("v", "ext4", size))
			f.put(0, []byte("LUKS\xba\xbe"))
		}, "crypto_LUKS"},
		{"another file system", func(f *fixture) {
			f.putMark(mark.New("v", "ext4", size))
			f.put(64<<10+0x40, []byte("_BHRfS_M"))
		}, "parts of a damaged btrfs"},
		{"clone or restore", func(f *fixture) { f.putMark(mark.New("v", "ext4", size)); debris(f) }, "is a copy of data"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, size)
			test.setup(f)
			before, err := os.ReadFile(f.image)
			ok(t, err)
			r := f.stageRequest("ext4")
			r.MustHoldData = test.name == "clone or restore"
			wantKind(t, f.stage(r), csierr.Precondition, test.words)
			after, err := os.ReadFile(f.image)
			ok(t, err)
			if !bytes.Equal(before, after) {
				t.Error("the device was written")
			}
		})
	}
	t.Run("read-only", func(t *testing.T) {
		f := newFixture(t, size)
		f.putMark(mark.New("v", "ext4", size))
		debris(f)
		r := f.stageRequest("ext4")
		r.ReadOnly = true
		wantKind(t, f.stage(r), csierr.Precondition, "stage the volume read-write once")
		ok(t, f.stage(f.stageRequest("ext4"))) // which is the one case where it is formatted
	})
}

// The first call came to its end but for the mark.
func TestCompleteWithMark(t *testing.T) {
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			f := newFixture(t, c.size)
			m := mark.New("v", c.fsType, c.size)
			f.putMark(m)
			f.mkfs(c.fsType)
			uuid := f.probeDevice().UUID

			r := f.stageRequest(c.fsType)
			r.ReadOnly = true
			ok(t, f.stage(r))
			f.unstage()
			if !f.probeDevice().mark.Whole(c.fsType) {
				t.Error("staging read-only wrote to the device")
			}
			f.mustStage(c.fsType)
			f.write(f.staging+"/file", "data")
			f.unstage()
			if found := f.probeDevice(); found.UUID != uuid || len(found.mark.Ours) > 0 {
				t.Errorf("%v, %d places left; want file system %s without a mark", found, len(found.mark.Ours), uuid)
			}

			// A file with the bytes of a mark: no new file system, whatever wrote it.
			for i, m := range []mark.Mark{m, mark.New("w", c.fsType, c.size), mark.New("v", "other", c.size)} {
				f.putMark(m)
				f.mustStage(c.fsType)
				if got, err := os.ReadFile(f.staging + "/file"); string(got) != "data" {
					t.Fatalf("the file holds %q, %v", got, err)
				}
				f.unstage()
				for _, place := range mark.Places(c.size) {
					block := make([]byte, mark.Size)
					_, err := f.open().file.ReadAt(block, place)
					ok(t, err)
					if want := i == 1; bytes.Equal(block, m.Encode(place)) != want {
						t.Errorf("mark %d: still there: %v, want %v", i, !want, want)
					}
				}
			}
			// Half of the mark: clearing was interrupted.
			f.putMark(m)
			f.put(mark.Places(c.size)[0], make([]byte, mark.Size))
			f.mustStage(c.fsType)
			f.unstage()
			if n := len(f.probeDevice().mark.Ours); n > 0 {
				t.Errorf("%d places left", n)
			}
		})
		t.Run(c.fsType+" damaged", func(t *testing.T) {
			f := newFixture(t, c.size)
			f.putMark(mark.New("v", c.fsType, c.size))
			f.mkfs(c.fsType)
			switch c.fsType {
			case "ext4":
				f.put(266240, bytes.Repeat([]byte{0xff}, 8192))
			case "xfs":
				f.put(4096, bytes.Repeat([]byte{0xff}, 8192))
			case "btrfs": // has two of each block: all but superblock and mark
				for from := mib; from < c.size; from += mib {
					if !slices.ContainsFunc(mark.Places(c.size), func(p int64) bool { return p/mib == from/mib }) {
						f.put(from, bytes.Repeat([]byte{0xff}, int(mib)))
					}
				}
			}
			wantKind(t, f.stage(f.stageRequest(c.fsType)), csierr.Precondition, "damaged", "blkdiscard -z")
			if !f.probeDevice().mark.Whole(c.fsType) {
				t.Error("the mark is gone")
			}
		})
	}
}

// A mkfs that refuses leaves the device as blank as it was, for another type.
func TestMkfsRefuses(t *testing.T) {
	f := newFixture(t, 64*mib)
	wantKind(t, f.stage(f.stageRequest("xfs")), csierr.Uncertain, "mkfs.xfs", "300MB")
	wantKind(t, f.stage(f.stageRequest("btrfs")), csierr.Uncertain, "mkfs.btrfs", "too small")
	all, err := os.ReadFile(f.image)
	ok(t, err)
	if len(bytes.Trim(all, "\x00")) > 0 {
		t.Error("something is left on the device")
	}
	f.mustStage("ext4")
}

// A mkfs that the machine kills (for want of memory, say) is repeated.
func TestMkfsKilled(t *testing.T) {
	f := newFixture(t, 64*mib)
	fake := t.TempDir()
	script := `#!/bin/sh
for dev; do :; done
printf x | dd of=$dev bs=1 seek=1000000 conv=notrunc 2>/dev/null
kill -9 $$
`
	ok(t, os.WriteFile(fake+"/mke2fs", []byte(script), 0o755))
	path := os.Getenv("PATH")
	t.Setenv("PATH", fake+":"+path)
	wantKind(t, f.stage(f.stageRequest("ext4")), csierr.Uncertain, "mke2fs")
	t.Setenv("PATH", path)
	f.mustStage("ext4")
}

func TestMaxFormats(t *testing.T) {
	if _, err := New(Config{MaxFormats: -1}); err == nil {
		t.Error("less than none is a limit")
	}
	f := newFixture(t, 64*mib)
	var err error
	f.node, err = New(Config{MaxFormats: 1, DeviceWait: -1})
	ok(t, err)
	done, err := f.node.formatSlot(t.Context()) // another mkfs runs
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	staged := make(chan error)
	go func() { staged <- f.node.StageFilesystem(ctx, f.stageRequest("ext4")) }()
	cancel()
	if err := <-staged; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want that the context ended", err)
	}
	for len(f.node.InFlight()) > 0 {
		runtime.Gosched() // the call lets go of the device after its caller
	}
	if found := f.probeDevice(); found.Kind != probe.Blank || len(found.mark.Ours) > 0 {
		t.Errorf("the device holds %v", found)
	}
	done()
	f.mustStage("ext4")
}

func init() {
	roles = append(roles, gate.WithRole("stage", stageRole))
}

// stageRole is a driver that stages one volume: device, staging path, type, and perhaps that
// the volume was never used. It prints a line when mkfs is about to start.
func stageRole() {
	n, err := New(Config{DeviceWait: -1, Logger: slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err == nil {
		err = n.StageFilesystem(context.Background(), StageFilesystemRequest{
			VolumeID: "v", Device: Device{Path: os.Args[1]}, StagingTargetPath: os.Args[2], FSType: os.Args[3],
			NeverUsed: len(os.Args) > 4,
		})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// driver starts stageRole.
func (f *fixture) driver(fsType string, more ...string) (p *crash.Process, output io.Reader) {
	f.t.Helper()
	cmd := gate.RoleCommand(context.Background(), "stage", append([]string{f.dev.Path, f.staging, fsType}, more...)...)
	r, w, err := os.Pipe()
	ok(f.t, err)
	f.t.Cleanup(func() { r.Close() })
	cmd.Stdout, cmd.Stderr = w, w
	p, err = crash.Start(cmd, crash.WithKillTree())
	w.Close()
	ok(f.t, err)
	return p, r
}

func torture() bool { return os.Getenv("CSIKIT_TORTURE") == "1" }

// The driver and its mkfs are killed at a random time during mkfs, and the volume is staged
// again on another node: always without an operator. In every second round there is a power
// failure too: what was not synced is lost.
func TestKilledWhileFormatting(t *testing.T) {
	rounds := 15
	if torture() {
		rounds = 200
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("CSIKIT_TORTURE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		ok(t, err)
	}
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			t.Logf("CSIKIT_TORTURE_SEED=%d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			var whole time.Duration // of mkfs and what follows
			left, refused := map[string]int{}, 0
			interrupted := func(t *testing.T, round int) {
				f := newFixture(t, c.size)
				open := f.open() // without it, the last close would write everything through
				p, output := f.driver(c.fsType)
				line := make([]byte, 4096)
				if n, _ := output.Read(line); !bytes.Contains(line[:n], []byte("formatting a blank device")) {
					t.Fatalf("the driver says %s", line[:n])
				}
				started := time.Now()
				if round == 0 {
					ok(t, p.Wait())
					whole = time.Since(started)
					f.unstage()
					return
				}
				select {
				case <-p.Done():
				case <-time.After(time.Duration(float64(whole) * random.Float64() * random.Float64())): // mkfs comes first
				}
				p.Kill()
				_ = p.Wait()
				image, power := f.image, "killed"
				if round%2 == 0 {
					image, power = filepath.Join(t.TempDir(), "copy"), "power failed"
					if out, err := exec.Command("cp", "--sparse=always", f.image, image).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				}
				f.unstage() // it may have come that far
				open.close()
				f.reattach(image)
				found := f.probeDevice()
				what := found.String()
				if found.Kind == probe.Filesystem {
					what = found.Type
					if found.Incomplete {
						what = "unfinished " + what
					}
				}
				left[fmt.Sprintf("%s: %s, %d places marked", power, what, len(found.mark.Ours))]++
				err := f.stage(f.stageRequest(c.fsType))
				var e *Error
				if errors.As(err, &e) && e.Kind == csierr.Precondition {
					refused++
					t.Errorf("left %v: %v", found, err)
					return
				}
				f.converge(c.fsType, fmt.Sprintf("left %v", found))
			}
			for round := range rounds + 1 {
				t.Run(fmt.Sprint(round), func(t *testing.T) { interrupted(t, round) })
			}
			for what, n := range left {
				t.Logf("%4d x %s", n, what)
			}
			t.Logf("%4d x an operator must decide", refused)
		})
	}
}

// converge stages the volume, uses it, and checks that what is then on the device is
// sound and without a mark.
func (f *fixture) converge(fsType, what string) {
	f.t.Helper()
	if err := f.stage(f.stageRequest(fsType)); err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
	f.write(f.staging+"/file", "data")
	f.unstage()
	found := f.probeDevice()
	if !found.Clean || len(found.mark.Ours) > 0 || found.mark.Foreign != "" && fsType == "ext4" {
		f.t.Fatalf("%s: now %v, mark %v", what, found, found.mark)
	}
	check := filesystems[fsType].check
	if out, err := exec.Command(check[0], append(check[1:], f.dev.Path)...).CombinedOutput(); err != nil {
		f.t.Fatalf("%s: %v: %s", what, err, out)
	}
}

// The same at every call by which the driver itself changes something, such as
// writing and clearing the mark.
func TestKilledAtEveryCall(t *testing.T) {
	gate.Root(t)
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			last := 1
			killAt := func(t *testing.T, n int) {
				f := newFixture(t, c.size)
				p, output := f.driver(c.fsType)
				p.Arm(n)
				text, _ := io.ReadAll(output)
				err := p.Wait()
				if n == 0 {
					if err != nil {
						t.Fatalf("%v: %s", err, text)
					}
					last = len(p.Calls())
				}
				f.unstage()
				f.reattach(f.image)
				calls := p.Calls()
				f.converge(c.fsType, fmt.Sprintf("killed at %v", calls[len(calls)-1]))
			}
			for n := 0; n <= last; n++ {
				t.Run(fmt.Sprint(n), func(t *testing.T) { killAt(t, n) })
			}
			if last < 10 {
				t.Errorf("only %d calls", last)
			}
		})
	}
}

// The same at every single write of mkfs.
func TestMkfsKilledAtEveryWrite(t *testing.T) {
	gate.Root(t)
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			step := 1
			if !torture() {
				step = 17
			}
			done := false
			killAt := func(t *testing.T, n int) {
				f := newFixture(t, c.size)
				f.putMark(mark.New("v", c.fsType, c.size))
				args := filesystems[c.fsType].mkfs
				mkfs := exec.Command(args[0], append(slices.Clone(args[1:]), f.dev.Path)...)
				p := startArmed(t, mkfs, func(p *crash.Process) { p.Arm(n) })
				if err := p.Wait(); err != nil && !p.Killed() {
					t.Fatal(err)
				}
				if found := f.probeDevice(); !found.mark.Whole(c.fsType) {
					t.Errorf("the mark is not whole: %v", found.mark)
				}
				f.reattach(f.image)
				f.converge(c.fsType, "retry")
				done = !p.Killed()
				if calls := len(p.Calls()); done && calls < 20 {
					t.Errorf("only %d calls", calls)
				}
			}
			for n := 1; !done && !t.Failed(); n += step {
				t.Run(fmt.Sprint(n), func(t *testing.T) { killAt(t, n) })
			}
		})
	}
}

// Data under the mark of another volume is not changed by any number of attempts.
func TestForeignMarkIsNeverTouched(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.mustStage("ext4")
	f.write(f.staging+"/file", strings.Repeat("precious", 1<<17))
	f.unstage()
	f.put(0, make([]byte, 4096)) // its superblock is lost: e2fsck could find another one
	f.putMark(mark.New("source", "ext4", 64*mib))
	before, err := os.ReadFile(f.image)
	ok(t, err)
	for range 3 {
		for _, fsType := range []string{"ext4", "xfs"} {
			wantKind(t, f.stage(f.stageRequest(fsType)), csierr.Precondition, "blkdiscard -z "+f.dev.Path)
		}
		f.reattach(f.image)
	}
	after, err := os.ReadFile(f.image)
	ok(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the device was written")
	}
}

// ceph/ceph-csi#966, hetznercloud/csi-driver#689, kubernetes-sigs/aws-ebs-csi-driver#2121: a
// newer mkfs enabled features that the node's kernel does not support. A volume for an old
// kernel has none of them, although they are mkfs's default.
func TestOldestKernel(t *testing.T) {
	// As e2fsprogs 1.47 has it by default; Debian leaves the new features out.
	conf := filepath.Join(t.TempDir(), "mke2fs.conf")
	ok(t, os.WriteFile(conf, []byte(`[defaults]
	base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
	blocksize = 4096
	inode_size = 256
	inode_ratio = 16384
[fs_types]
	ext4 = {
		features = has_journal,extent,huge_file,flex_bg,metadata_csum,metadata_csum_seed,64bit,dir_nlink,extra_isize,orphan_file
	}
`), 0o644))
	t.Setenv("MKE2FS_CONFIG", conf)
	const (
		orphanFile, csumSeed                          = 0x1000, 0x2000
		reflink, inobtcount, sparse, bigtime, nrext64 = 4, 8, 2, 8, 32
		freeSpaceTree                                 = 1
	)
	ext4 := func(sb []byte) (a, b uint32) {
		le := binary.LittleEndian
		return le.Uint32(sb[1024+0x5c:]) & orphanFile, le.Uint32(sb[1024+0x60:]) & csumSeed
	}
	xfs := func(sb []byte) (a, b uint32) {
		be := binary.BigEndian
		return be.Uint32(sb[212:]) & (reflink | inobtcount), be.Uint32(sb[216:]) & (sparse | bigtime | nrext64)
	}
	btrfs := func(sb []byte) (a, b uint32) {
		return binary.LittleEndian.Uint32(sb[65536+180:]) & freeSpaceTree, 0
	}
	for _, test := range []struct {
		fsType, kernel string
		features       func(sb []byte) (a, b uint32)
		a, b           uint32
	}{
		{"ext4", "", ext4, orphanFile, csumSeed},
		{"ext4", "5.15", ext4, orphanFile, csumSeed},
		{"ext4", "5.4", ext4, 0, csumSeed},
		{"ext4", "3.16", ext4, 0, 0},
		{"xfs", "", xfs, reflink | inobtcount, sparse | bigtime},
		{"xfs", "5.10", xfs, reflink | inobtcount, sparse | bigtime},
		{"xfs", "5.4", xfs, reflink, sparse},
		{"xfs", "4.8", xfs, 0, sparse},
		{"xfs", "3.16", xfs, 0, 0},
		{"btrfs", "", btrfs, freeSpaceTree, 0},
		{"btrfs", "4.9", btrfs, freeSpaceTree, 0},
		{"btrfs", "4.8", btrfs, 0, 0},
	} {
		t.Run(test.fsType+" "+test.kernel, func(t *testing.T) {
			f := newFixture(t, 320*mib)
			r := f.stageRequest(test.fsType)
			r.OldestKernel = test.kernel
			ok(t, f.stage(r))
			sb := make([]byte, 128<<10)
			_, err := f.open().file.ReadAt(sb, 0)
			ok(t, err)
			if a, b := test.features(sb); a != test.a || b != test.b {
				t.Errorf("features are %#x and %#x, want %#x and %#x", a, b, test.a, test.b)
			}
			f.unstage()
			f.converge(test.fsType, "staged again")
		})
	}
	t.Run("interrupted", func(t *testing.T) { // the second mkfs disables it as well
		f := newFixture(t, 320*mib)
		f.putMark(mark.New("v", "ext4", 320*mib))
		f.put(0, []byte("x"))
		r := f.stageRequest("ext4")
		r.OldestKernel = "5.4"
		ok(t, f.stage(r))
		sb := make([]byte, 4096)
		_, err := f.open().file.ReadAt(sb, 0)
		ok(t, err)
		if a, _ := ext4(sb); a != 0 {
			t.Error("it has an orphan file")
		}
	})
}

// For a mkfs that is too old to know a feature there is no argument to disable it; one that
// does not print its version is not run.
func TestOldMkfs(t *testing.T) {
	gate.Tools(t, "mke2fs")
	mke2fs, err := exec.LookPath("mke2fs")
	ok(t, err)
	fake := t.TempDir()
	t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
	program := func(version string) {
		script := fmt.Sprintf(`#!/bin/sh
case "$*" in
-V) echo %q; exit 0 ;;
*orphan_file*) echo "Invalid filesystem option set"; exit 1 ;;
esac
exec %s "$@"
`, version, mke2fs)
		ok(t, os.WriteFile(fake+"/mke2fs", []byte(script), 0o755))
	}
	f := newFixture(t, 64*mib)
	r := f.stageRequest("ext4")
	r.OldestKernel = "5.4"

	program("mke2fs of no version")
	wantKind(t, f.stage(r), csierr.Precondition, "mke2fs -V", "does not print a version")
	if found := f.probeDevice(); found.Kind != probe.Blank || len(found.mark.Ours) > 0 {
		t.Errorf("the device holds %v", found)
	}
	program("mke2fs 1.47.0 (5-Feb-2023)") // this is what a wrong table would do
	wantKind(t, f.stage(r), csierr.Uncertain, "Invalid filesystem option")
	program("mke2fs 1.46.6 (1-Feb-2023)")
	ok(t, f.stage(r))
}

// Programs that are started for one volume do not keep the device of another one busy.
func TestHoldBesideOtherPrograms(t *testing.T) {
	f := newFixture(t, 8*mib)
	d, err := openDevice(Device{Path: f.dev.Path})
	ok(t, err)
	defer d.close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for ctx.Err() == nil {
			_, _, _ = f.node.command(ctx, 0, "true")
		}
	})
	// In turns with a file that is closed at any time, so that the machine's load is in
	// both. Some microseconds of an exec remain, in which the child does have the
	// descriptor. On a machine where few programs start, there are more rounds.
	var rounds, guarded, plain int
	for rounds = 0; rounds < 300 || plain < 20; rounds++ {
		claim, err := d.claim(t.Context())
		ok(t, err)
		time.Sleep(time.Millisecond)
		ok(t, claim.Close())
		if release, err := d.hold(); err != nil {
			plain++
		} else {
			release()
		}
		if claim, err = d.claim(t.Context()); err != nil {
			continue // the child of just now still has it
		}
		time.Sleep(time.Millisecond)
		blockdev.CloseWithoutFork(claim.Close)
		if release, err := d.hold(); err != nil {
			guarded++
		} else {
			release()
		}
	}
	if 2*guarded > plain {
		t.Errorf("the device was busy in %d of %d rounds, and in %d where the file was just closed", guarded, rounds, plain)
	}
}
