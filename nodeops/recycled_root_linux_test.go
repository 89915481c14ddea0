package nodeops

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/probe"
)

// recycle fills the device with what an earlier volume may have left, without a signature.
func (f *fixture) recycle(size int64) {
	f.t.Helper()
	d, err := os.OpenFile(f.dev.Path, os.O_WRONLY, 0)
	ok(f.t, err)
	_, err = io.CopyN(d, rand.NewChaCha8([32]byte{1}), size)
	ok(f.t, err)
	ok(f.t, d.Sync())
	ok(f.t, d.Close())
}

func (f *fixture) sum() string {
	f.t.Helper()
	d, err := os.Open(f.dev.Path)
	ok(f.t, err)
	defer d.Close()
	h := sha256.New()
	_, err = io.Copy(h, d)
	ok(f.t, err)
	return hex.EncodeToString(h.Sum(nil))
}

func neverUsed(r *StageFilesystemRequest) { r.NeverUsed = true }

func (f *fixture) stageAs(fsType string, change func(*StageFilesystemRequest)) error {
	r := f.stageRequest(fsType)
	change(&r)
	return f.stage(r)
}

// Bytes of an earlier volume are formatted only if the caller knows that the volume has
// written none, and once that is done they do not matter.
func TestRecycledExtents(t *testing.T) {
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			f := newFixture(t, c.size)
			f.recycle(c.size)
			before := f.sum()
			wantKind(t, f.stage(f.stageRequest(c.fsType)), csierr.Precondition, "data of an unknown kind", "blkdiscard -z")
			wantKind(t, f.stageAs(c.fsType, func(r *StageFilesystemRequest) { r.NeverUsed, r.ReadOnly = true, true }),
				csierr.Precondition, "a read-only volume is not formatted")
			for _, change := range []func(*StageFilesystemRequest){
				func(r *StageFilesystemRequest) { r.MustHoldData = true },
				func(r *StageFilesystemRequest) { r.Prezeroed = true },
			} {
				wantKind(t, f.stageAs(c.fsType, func(r *StageFilesystemRequest) { neverUsed(r); change(r) }), csierr.Invalid, "NeverUsed")
			}
			if f.sum() != before {
				t.Fatal("the device was written without the assertion")
			}
			ok(t, f.stageAs(c.fsType, neverUsed))
			f.write(f.staging+"/file", "data")
			f.unstage()
			// The record of the driver was not changed, as after a crash.
			ok(t, f.stageAs(c.fsType, neverUsed))
			f.mustRead(f.staging+"/file", "data")
			f.unstage()
			f.converge(c.fsType, "formatted over data")
		})
	}
}

// The assertion is about an earlier volume's bytes, and says nothing against what can be
// recognised: it may be wrong.
func TestSignaturesOnRecycledExtents(t *testing.T) {
	const size = 24 * mib
	f := newFixture(t, size)
	f.recycle(size)
	refused := func(what string) {
		t.Helper()
		for _, fsType := range []string{"ext4", "btrfs"} {
			if err := f.stageAs(fsType, neverUsed); err == nil {
				t.Errorf("%s: formatted as %s", what, fsType)
				f.unstage()
			} else {
				wantKind(t, err, csierr.Precondition)
			}
		}
	}
	before := f.sum()
	for _, s := range []struct {
		at    int64
		magic string
	}{
		{0, "LUKS\xba\xbe"}, {512, "LABELONE"}, {4096, "\xfc\x4e\x2b\xa9"}, {4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
		{0, "\xeb\x52\x90-FVE-FS-"}, {516, "!Stra0tis\x86\xff\x02^\x41rh"}, {0, "dmvdo001"}, {0, "bluestore block device"},
		{0, "hsqs"}, {1024, "\xe2\xe1\xf5\xe0"}, {1024, "\x10\x20\xf5\xf2"}, {32 << 10, "JFS1"}, {64<<10 + 52, "ReIsEr"}, {64 << 10, "\x01\x16\x19\x70"},
		{1024, "OCFSV2"}, {32<<10 + 1, "CD001"}, {32, "NXSB"}, {4086, "SWAPSPACE2"}, {4086, "S1SUSPEND"}, {3, "NTFS    "}, {3, "EXFAT   "},
		{54, "FAT16   "}, {512, "EFI PART"}, {510, "\x55\xaa"}, {1024 + 0x38, "\x53\xef"}, {0, "XFSB"}, {64<<10 + 64, "_BHRfS_M"},
		// At the end, or second copies.
		{size - 64<<10, "\xfc\x4e\x2b\xa9"}, {size - 4096 + 60, "\x83\x74\x02\x6d"}, {128 << 10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{16 << 10, "SKUL\xba\xbe"}, {8*mib + 1024 + 0x38, "\x53\xef"}, {size - 512, "EFI PART"},
		{0, "-rom1fs-"}, // only blkid knows it
	} {
		was := make([]byte, len(s.magic))
		_, err := f.open().file.ReadAt(was, s.at)
		ok(t, err)
		f.put(s.at, []byte(s.magic))
		refused(fmt.Sprintf("%q at %d", s.magic, s.at))
		f.put(s.at, was)
	}
	if f.sum() != before {
		t.Error("the device was written")
	}
	for _, m := range []mark.Mark{mark.New("another", "ext4", size), mark.New("v", "ext4", size/2)} {
		f.putMark(m)
		refused(fmt.Sprintf("%+v", m))
	}
	f.recycle(size)
	f.mkfs("ext4")
	wantKind(t, f.stageAs("btrfs", neverUsed), csierr.Precondition, "ext4", "request the type that it has")
	f.recycle(size)
	ok(t, f.stageAs("ext4", neverUsed)) // what was refused was the signature
}

// Once the mark is written, the device needs no assertion: the driver's record may have been
// changed by then, or be lost.
func TestKilledOnRecycledExtents(t *testing.T) {
	gate.Root(t)
	const fsType, size = "ext4", 24 * mib
	var marked int
	last := 1
	for n := 0; n <= last; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := newFixture(t, size)
			f.recycle(size)
			p, output := f.driver(fsType, "never used")
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
			found := f.probeDevice()
			if found.mark.Whole(fsType) && found.Kind != probe.Filesystem {
				marked++
			} else if found.Kind != probe.Filesystem {
				wantKind(t, f.stage(f.stageRequest(fsType)), csierr.Precondition, "data of an unknown kind")
				ok(t, f.stageAs(fsType, neverUsed))
				f.unstage()
			}
			f.converge(fsType, fmt.Sprintf("killed at %v", p.Calls()[len(p.Calls())-1]))
		})
	}
	if last < 10 || marked == 0 {
		t.Errorf("%d calls, killed %d times between the mark and the file system", last, marked)
	}
}
