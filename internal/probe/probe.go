// Package probe tells what is on a block device by reading it, and nothing
// else: it is pure, starts no program and writes nothing.
//
// Blank is a claim that must be proven, because a device taken for blank is
// formatted: every place that is looked at must have been read and be zero. A
// device that cannot be read is an error, never blank (kubernetes#142243,
// trident#418).
package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Kind is what a device holds.
type Kind int

// The answers. That it cannot be read is an error instead.
const (
	Blank      Kind = iota // read in every place where something might announce itself, and zero there
	Filesystem             // a file system whose superblock was understood
	Foreign                // anything else: Result.Type names it where it is known
)

// Result describes the contents of a device.
type Result struct {
	Kind      Kind
	Type      string // ext2, ext3, ext4, xfs, btrfs; or what is foreign: crypto_LUKS, LVM2_member, swap, gpt, dos, ""
	UUID      string
	Label     string
	Size      int64 // bytes that the file system claims; 0 where unknown
	BlockSize int64
	Clean     bool // the superblock asks for no check: no error was recorded and mkfs came to its end
	Full      bool // the file system cannot use more of the device than it does
}

func (r Result) String() string {
	switch r.Kind {
	case Blank:
		return "blank"
	case Filesystem:
		return fmt.Sprintf("%s file system (uuid %s, %d bytes)", r.Type, r.UUID, r.Size)
	}
	if r.Type == "" {
		return "data of an unknown kind"
	}
	return r.Type + " data"
}

// ErrUnreadable says that a device or a part of it could not be read. It is not
// known what the device holds.
var ErrUnreadable = errors.New("device cannot be read")

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30

	announced   = 128 * kib // everything that identify looks at
	headAndTail = 4 * mib
	sample      = 64 * kib
	samples     = 64
)

// Probe reads the device behind r, of size bytes.
func Probe(r io.ReaderAt, size int64) (Result, error) {
	if size <= 0 {
		return Result{}, fmt.Errorf("%w: its size is %d bytes", ErrUnreadable, size)
	}
	start, err := read(r, 0, min(announced, size))
	if err != nil {
		return Result{}, err
	}
	if res, ok := identify(start, size); ok {
		return res, nil
	}
	if !zero(start) {
		return Result{Kind: Foreign}, nil
	}
	for _, z := range zones(size) {
		part, err := read(r, z.off, z.n)
		if err != nil {
			return Result{}, err
		}
		if !zero(part) {
			return Result{Kind: Foreign}, nil
		}
	}
	return Result{Kind: Blank}, nil
}

type zone struct{ off, n int64 }

// zones are what must be zero for a device to be blank, besides its first bytes.
func zones(size int64) []zone {
	var z []zone
	stretch := func(from, to int64) {
		for off := from; off < to; off += mib {
			z = append(z, zone{off, min(mib, to-off)})
		}
	}
	stretch(announced, min(headAndTail, size))
	for _, off := range offsets(size) {
		z = append(z, zone{off, min(sample, size-off)})
	}
	stretch(max(size-headAndTail, announced), size)
	return z
}

// offsets lists where, between head and tail, a device whose head was wiped
// still shows that it is in use: backup superblocks and a coarse sample.
func offsets(size int64) []int64 {
	var at []int64
	add := func(off int64) {
		if off >= headAndTail && off < size {
			at = append(at, off)
		}
	}
	add(64 * mib) // btrfs superblock mirrors
	add(256 * gib)
	// ext backups stand in groups 1 and the powers of 3, 5 and 7 (sparse_super);
	// a group is 8 MiB of 1 KiB blocks, 32 MiB of 2 KiB blocks, 128 MiB of 4 KiB blocks.
	for _, group := range []int64{8 * mib, 32 * mib, 128 * mib} {
		add(group)
		for _, base := range []int64{3, 5, 7} {
			for n := base; n < size/group+1 && n < 1<<20; n *= base {
				add(n * group)
			}
		}
	}
	// xfs keeps a superblock at the start of each of its allocation groups, four by default.
	for i := int64(1); i < samples; i++ {
		add(size / samples * i &^ (4*kib - 1))
	}
	slices.Sort(at)
	return slices.Compact(at)
}

func read(r io.ReaderAt, off, n int64) ([]byte, error) {
	buf := make([]byte, n)
	if got, err := r.ReadAt(buf, off); int64(got) != n {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%w: %d bytes at %d: %w", ErrUnreadable, n, off, err)
	}
	return buf, nil
}

func zero(b []byte) bool {
	for len(b) >= 8 {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// identify recognises what announces itself in the first bytes of a device.
func identify(head []byte, size int64) (Result, bool) {
	for _, parse := range []func([]byte, int64) (Result, bool){ext, xfs, btrfs} {
		if r, ok := parse(head, size); ok {
			return r, true
		}
	}
	for _, s := range []struct {
		name  string
		at    int
		magic string
	}{
		{"crypto_LUKS", 0, "LUKS\xba\xbe"},
		{"LVM2_member", 0, "LABELONE"}, {"LVM2_member", 512, "LABELONE"},
		{"LVM2_member", 1024, "LABELONE"}, {"LVM2_member", 1536, "LABELONE"},
		{"swap", 4086, "SWAPSPACE2"}, {"swap", 65526, "SWAPSPACE2"},
		{"linux_raid_member", 0, "\xfc\x4e\x2b\xa9"}, {"linux_raid_member", 4096, "\xfc\x4e\x2b\xa9"},
		{"squashfs", 0, "hsqs"},
		{"gpt", 512, "EFI PART"}, {"gpt", 4096, "EFI PART"},
		{"dos", 510, "\x55\xaa"},
	} {
		if len(head) >= s.at+len(s.magic) && string(head[s.at:s.at+len(s.magic)]) == s.magic {
			return Result{Kind: Foreign, Type: s.name}, true
		}
	}
	return Result{}, false
}

func uuid(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}
