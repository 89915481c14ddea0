package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"
)

// sparse is a device of zeros with a few bytes set, and optionally an unreadable range.
type sparse struct {
	size  int64
	bytes map[int64]byte
	bad   int64 // offset whose reading fails; -1: none
}

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > s.size {
		return 0, io.EOF
	}
	if s.bad >= off && s.bad < off+int64(len(p)) {
		return 0, errors.New("input/output error")
	}
	clear(p)
	for at, b := range s.bytes {
		if at >= off && at < off+int64(len(p)) {
			p[at-off] = b
		}
	}
	return len(p), nil
}

// ydb-platform/nbs#7207: an error of the probe was treated as "no file system".
func TestBlankMustBeProven(t *testing.T) {
	const size = 10 * gib
	places := map[string]int64{
		"first byte": 0, "MBR": 510, "GPT": 512, "swap": 4086, "ext superblock": 1080, "btrfs superblock": 64*kib + 0x40,
		"ZFS label": 128 * kib, "2 MiB": 2 * mib, "end of the head": 4*mib - 1,
		"ext backup of 1 KiB blocks": 8*mib + 1024, "ext backup of 4 KiB blocks": 128 * mib, "ext backup group 49": 49 * 128 * mib,
		"btrfs mirror": 64*mib + 0x40, "xfs second group": size / 4, "xfs last group": size / 4 * 3,
		"ZFS label at the end": size - 256*kib, "MD superblock 1.0": size - 8*kib, "backup GPT": size - 512, "last byte": size - 1,
	}
	dev := sparse{size: size, bad: -1}
	if r, err := Probe(dev, size); err != nil || r.Kind != Blank {
		t.Fatalf("zeros are %v, %v", r, err)
	}
	for name, off := range places {
		dev := sparse{size: size, bytes: map[int64]byte{off: 1}, bad: -1}
		if r, err := Probe(dev, size); err != nil || r.Kind != Foreign {
			t.Errorf("a byte at %s (%d): %v, %v; want foreign", name, off, r, err)
		}
		dev = sparse{size: size, bad: off}
		if r, err := Probe(dev, size); !errors.Is(err, ErrUnreadable) {
			t.Errorf("a bad spot at %s (%d): %v, %v; want unreadable", name, off, r, err)
		}
	}
	for _, size := range []int64{0, -1} {
		if r, err := Probe(dev, size); !errors.Is(err, ErrUnreadable) {
			t.Errorf("size %d: %v, %v; want unreadable", size, r, err)
		}
	}
	if r, err := Probe(sparse{size: 100, bad: -1}, 200); !errors.Is(err, ErrUnreadable) {
		t.Errorf("a short device: %v, %v; want unreadable", r, err)
	}
	for _, size := range []int64{1, 511, 4096, 5000, mib, 4*mib + 1, 9 * mib} {
		if r, err := Probe(sparse{size: size, bad: -1}, size); err != nil || r.Kind != Blank {
			t.Errorf("%d zeros: %v, %v", size, r, err)
		}
	}
}

// The copies of superblocks that remain after the head of a device was wiped.
func TestBackupSuperblocks(t *testing.T) {
	for _, size := range []int64{300 * mib, gib, gib + 4*kib, 10*gib + 12*kib, 10*gib + 8*kib + 512, 3<<40 + 4*kib} {
		places := map[string]int64{"btrfs": 64*mib + 0x40, "last byte": size - 1}
		for i := range int64(3) {
			group := (size/(4*kib) + 3) / 4 * 4 * kib // as mkfs.xfs divides it by default
			places[fmt.Sprint("xfs group ", i+1)] = (i + 1) * group
		}
		for _, group := range []int64{3, 5, 7, 9, 25, 49} {
			places[fmt.Sprint("ext of 1 KiB blocks, group ", group)] = group*8*mib + kib
			places[fmt.Sprint("ext of 4 KiB blocks, group ", group)] = group * 128 * mib
		}
		for name, off := range places {
			if off < head || off >= size {
				continue
			}
			if r, err := Probe(sparse{size: size, bytes: map[int64]byte{off: 1}, bad: -1}, size); err != nil || r.Kind != Foreign {
				t.Errorf("%d bytes, %s at %d: %v, %v; want foreign", size, name, off, r, err)
			}
		}
	}
}

// The concurrent functions have returned when Probe does, and are called only if there is
// much to read.
func TestConcurrentFunctions(t *testing.T) {
	for _, test := range []struct {
		bytes map[int64]byte
		bad   int64
		want  bool
	}{{nil, -1, true}, {nil, mib, true}, {map[int64]byte{mib: 1}, -1, true}, {map[int64]byte{5: 1}, -1, false}, {nil, 5, false}} {
		done := false
		r, err := Probe(sparse{size: gib, bytes: test.bytes, bad: test.bad}, gib, func() { done = true })
		if done != test.want {
			t.Errorf("%v, bad at %d: %v, %v: done beside it: %v, want %v", test.bytes, test.bad, r, err, done, test.want)
		}
	}
	for _, first := range []time.Duration{0, time.Second} {
		if ok, err := allZero(sparse{size: gib, bad: -1}, zones(gib), readers(first)); !ok || err != nil {
			t.Errorf("%d readers: %v, %v", readers(first), ok, err)
		}
	}
}

// Real file systems, created in image files: no privilege is needed.
func TestFilesystems(t *testing.T) {
	const id = "12345678-1234-1234-1234-123456789abc"
	tests := []struct {
		fsType string
		size   int64
		mkfs   []string
	}{
		{"ext2", 16 * mib, []string{"mke2fs", "-q", "-t", "ext2", "-U", id, "-L", "label"}},
		{"ext3", 16 * mib, []string{"mke2fs", "-q", "-t", "ext3", "-U", id, "-L", "label"}},
		{"ext4", 16 * mib, []string{"mke2fs", "-q", "-t", "ext4", "-U", id, "-L", "label"}},
		{"ext4", 300 * mib, []string{"mke2fs", "-q", "-t", "ext4", "-O", "^64bit,^metadata_csum", "-U", id, "-L", "label"}},
		{"xfs", 300 * mib, []string{"mkfs.xfs", "-q", "-m", "uuid=" + id, "-L", "label"}},
		{"btrfs", 120 * mib, []string{"mkfs.btrfs", "-q", "-U", id, "-L", "label"}},
		{"btrfs", 120*mib + 512, []string{"mkfs.btrfs", "-q", "-U", id, "-L", "label"}},
	}
	for _, test := range tests {
		t.Run(test.fsType, func(t *testing.T) {
			mkfs, err := exec.LookPath(test.mkfs[0])
			if err != nil {
				if mkfs = "/usr/sbin/" + test.mkfs[0]; !exists(mkfs) {
					t.Skipf("%s is not installed", test.mkfs[0])
				}
			}
			path := filepath.Join(t.TempDir(), "image")
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, test.size)); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(mkfs, append(test.mkfs[1:], path)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := Probe(f, test.size)
			if err != nil || r.Kind != Filesystem || r.Type != test.fsType || r.UUID != id || r.Label != "label" || !r.Clean || r.Incomplete || r.Size != test.size&^4095 {
				t.Errorf("%+v, %v", r, err)
			}
			if (r.Devices == 1) != (r.Type == "btrfs") || r.Devices > 1 {
				t.Errorf("consists of %d devices", r.Devices)
			}
			if !r.Full {
				t.Error("a fresh file system does not count as using all of its device")
			}
			if err := os.Truncate(path, test.size+64*mib); err != nil {
				t.Fatal(err)
			}
			if r, err := Probe(f, test.size+64*mib); err != nil || r.Full {
				t.Errorf("64 MiB more and still full: %+v, %v", r, err)
			}
		})
	}
}

// The last write of mkfs is reverted: the file system must not be mounted.
func TestInterruptedMkfs(t *testing.T) {
	head := make([]byte, 128*kib)
	copy(head, "XFSB\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00")
	head[126] = 1
	btrfs := make([]byte, 128*kib)
	copy(btrfs[64*kib+0x40:], "!BHRfS_M")
	btrfs[64*kib+0x70] = 1
	for _, head := range [][]byte{head, btrfs} {
		if r, err := Probe(padded(head), gib); err != nil || r.Kind != Filesystem || !r.Incomplete || r.Clean {
			t.Errorf("%+v, %v; want an unfinished file system", r, err)
		}
	}
}

func place(at int64, text string) map[int64]byte {
	m := make(map[int64]byte)
	for i := range len(text) {
		m[at+int64(i)] = text[i]
	}
	return m
}

func TestSignatures(t *testing.T) {
	const size = 10*gib + 3*512 // no multiple of anything larger
	const raid, zfs = "\xfc\x4e\x2b\xa9", "\x0c\xb1\xba\x00\x00\x00\x00\x00"
	tests := []struct {
		name  string
		at    int64
		magic string
	}{
		{"crypto_LUKS", 0, "LUKS\xba\xbe"},
		{"crypto_LUKS", 16 * kib, "SKUL\xba\xbe"},
		{"crypto_LUKS", 4 * mib, "SKUL\xba\xbe"},
		{"LVM2_member", 512, "LABELONE"},
		{"BitLocker", 0, "\xeb\x52\x90-FVE-FS-"},
		{"bcache", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
		{"linux_raid_member", 0, raid},
		{"linux_raid_member", 4096, raid},
		{"linux_raid_member", 10*gib - 64*kib, raid},
		{"linux_raid_member", 10*gib - 64*kib, "\xa9\x2b\x4e\xfc"},
		{"linux_raid_member", 10*gib - 8*kib, raid},
		{"drbd", 10*gib - 4*kib + 60, "\x83\x74\x02\x6b"},
		{"drbd", 10*gib - 4*kib + 60, "\x83\x74\x02\x6d"},
		{"zfs_member", 128 * kib, zfs},
		{"zfs_member", 512*kib - kib, "\x00\x00\x00\x00\x00\xba\xb1\x0c"},
		{"zfs_member", 10*gib - 384*kib, zfs},
		{"zfs_member", 10*gib - 128*kib + 4*kib, zfs},
		{"ntfs", 3, "NTFS    "},
		{"exfat", 3, "EXFAT   "},
		{"vfat", 82, "FAT32   "},
		{"f2fs", 1024, "\x10\x20\xf5\xf2"},
		{"erofs", 1024, "\xe2\xe1\xf5\xe0"},
		{"squashfs", 0, "hsqs"},
		{"swap", 4086, "SWAPSPACE2"},
		{"swap", 64*kib - 10, "SWAPSPACE2"},
		{"gpt", 512, "EFI PART"},
		{"gpt", size - 512, "EFI PART"},
		{"dos", 510, "\x55\xaa"},
		{"btrfs", 64*mib + 64, "_BHRfS_M"},
		{"ext", 128*mib + 56, "\x53\xef"},
		{"", 4*mib - 100, "precious"},
		{"", size - 100, "precious"},
	}
	for _, test := range tests {
		dev := sparse{size: size, bytes: place(test.at, test.magic), bad: -1}
		if r, err := Probe(dev, size); err != nil || r.Kind != Foreign || r.Type != test.name {
			t.Errorf("%q at %d: %+v, %v; want %q", test.magic, test.at, r, err, test.name)
		}
		// The name is optional; a read error is still an error.
		dev.bad = test.at
		if r, err := Probe(dev, size); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q at %d, bad: %+v, %v; want unreadable", test.magic, test.at, r, err)
		}
	}
	for size := int64(1); size < 5000; size += 13 { // no place is outside of the device
		if r, err := Probe(sparse{size: size, bytes: place(size-1, "x"), bad: -1}, size); err != nil || r.Kind != Foreign {
			t.Fatalf("%d bytes: %+v, %v", size, r, err)
		}
	}
}

// Half of a mirror looks like a file system from the start.
func TestFilesystemInAContainer(t *testing.T) {
	image := func(blocks int) map[int64]byte {
		dev := make(map[int64]byte)
		dev[1024+0x38], dev[1024+0x39] = 0x53, 0xef
		dev[1024+0x18] = 2 // blocks of 4 KiB
		for i := range 4 {
			dev[1024+4+int64(i)] = byte(blocks >> (8 * i))
		}
		return dev
	}
	const size = 64 * mib
	with := func(dev map[int64]byte, at int64, magic string) map[int64]byte {
		for k, v := range place(at, magic) {
			dev[k] = v
		}
		return dev
	}
	const raid = "\xfc\x4e\x2b\xa9"
	tests := []struct {
		name string
		dev  map[int64]byte
		want string
	}{
		{"alone", image(16384), ""},
		{"mirrored, metadata at the end", with(image(16000), size-8*kib, raid), "linux_raid_member"},
		{"mirrored, old metadata at the end", with(image(16000), size-64*kib, raid), "linux_raid_member"},
		{"replicated", with(image(16000), size-4*kib+60, "\x83\x74\x02\x6b"), "drbd"},
		{"a user's bytes at the end of the file system", with(image(16384), size-8*kib, raid), ""},
		{"mirrored, metadata in front", with(image(16000), 4096, raid), "linux_raid_member"},
		{"encrypted over an old file system", with(image(16384), 0, "LUKS\xba\xbe"), "crypto_LUKS"},
		{"over old swap", with(image(16384), 4086, "SWAPSPACE2"), ""},
		{"over an old partition table", with(image(16384), 510, "\x55\xaa"), ""},
	}
	for _, test := range tests {
		r, err := Probe(sparse{size: size, bytes: test.dev, bad: -1}, size)
		if want := kindOf(test.want); err != nil || r.Kind != want || (want == Foreign && r.Type != test.want) {
			t.Errorf("%s: %+v, %v; want %q", test.name, r, err, test.want)
		}
	}
}

func kindOf(foreign string) Kind {
	if foreign != "" {
		return Foreign
	}
	return Filesystem
}

// direct fails as a file opened with O_DIRECT does.
type direct struct {
	t     *testing.T
	data  []byte
	block int64
}

func (d direct) ReadAt(p []byte, off int64) (int, error) {
	if address := uintptr(unsafe.Pointer(&p[0])); off%d.block != 0 || int64(len(p))%d.block != 0 || address%page != 0 {
		d.t.Errorf("%d bytes at %d to address %x", len(p), off, address)
	}
	return bytes.NewReader(d.data).ReadAt(p, off)
}

func alignedSlice(n int) []byte {
	b := make([]byte, n+page)
	return b[-uintptr(unsafe.Pointer(&b[0]))&(page-1):][:n]
}

func TestAligned(t *testing.T) {
	data := make([]byte, 5*4096)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	for _, block := range []int64{512, 4096} {
		r := Aligned(direct{t, data, block}, int64(len(data)), block)
		for _, off := range []int64{0, 1, 511, 512, 513, 4095, 4096, 3 * 4096, int64(len(data)) - 1, int64(len(data)), int64(len(data)) + 1} {
			for _, n := range []int{0, 1, 2, 511, 512, 513, 4095, 4096, 4097, 2 * 4096, len(data)} {
				want, got := make([]byte, n), make([]byte, n)
				wantN, wantErr := bytes.NewReader(data).ReadAt(want, off)
				if n%int(block) == 0 && n > 0 { // at times where it needs no copy
					got = alignedSlice(n)
				}
				gotN, gotErr := r.ReadAt(got, off)
				if wantN != gotN || wantErr != gotErr || !bytes.Equal(want, got) {
					t.Errorf("block %d: %d bytes at %d: %d, %v; want %d, %v", block, n, off, gotN, gotErr, wantN, wantErr)
				}
			}
		}
	}
	// A device that is shorter than its size, and one with read errors.
	short := Aligned(direct{t, data, 512}, int64(len(data))+512, 512)
	if n, err := short.ReadAt(make([]byte, 600), int64(len(data))-100); n != 100 || err == nil {
		t.Errorf("%d bytes, %v; want 100 and an error", n, err)
	}
	broken := Aligned(sparse{size: 8192, bad: 4000}, 8192, 4096)
	if n, err := broken.ReadAt(make([]byte, 10), 0); n != 0 || err == nil {
		t.Errorf("%d bytes, %v; want an error", n, err)
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// padded is a device that holds some bytes and then zeros.
type padded []byte

func (d padded) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(d)) {
		copy(p, d[off:])
	}
	return len(p), nil
}

func FuzzProbe(f *testing.F) {
	f.Add([]byte{}, mib)
	for _, magic := range []struct {
		off  int
		text string
	}{{0, "XFSB"}, {1080, "\x53\xef"}, {64<<10 + 0x40, "_BHRfS_M"}, {64<<10 + 0x40, "!BHRfS_M"}, {0, "LUKS\xba\xbe"}, {4096, "\xfc\x4e\x2b\xa9"}} {
		b := make([]byte, 68<<10)
		copy(b[magic.off:], magic.text)
		f.Add(b, int64(len(b)))
	}
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		if size > 8*mib {
			return
		}
		r, err := Probe(padded(head), size)
		if err == nil && r.Kind == Blank && len(bytes.Trim(head[:min(int64(len(head)), size)], "\x00")) > 0 {
			t.Error("not blank, but taken for it")
		}
		if r.Kind == Filesystem && r.Size <= 0 {
			t.Errorf("%+v", r)
		}
	})
}
