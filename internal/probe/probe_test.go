package probe

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// sparse is a device of zeros with a few bytes set, and perhaps a bad spot.
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

// Real file systems, made in image files: no privilege is needed.
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
			if err != nil || r.Kind != Filesystem || r.Type != test.fsType || r.UUID != id || r.Label != "label" || !r.Clean || r.Size != test.size {
				t.Errorf("%+v, %v", r, err)
			}
			if test.fsType == "btrfs" {
				return
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
	}{{0, "XFSB"}, {1080, "\x53\xef"}, {64<<10 + 0x40, "_BHRfS_M"}} {
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
