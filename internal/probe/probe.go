// Package probe detects what is on a block device by reading it: it is pure, runs no
// program and writes nothing.
//
// Blank has to be proven, because a device that is considered blank is formatted: every
// place that is checked must have been read and be zero. A device that cannot be read is an
// error, never blank (kubernetes/kubernetes#142243, NetApp/trident#418).
package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Kind is what a device holds.
type Kind int

// The kinds. A device that cannot be read is an error instead.
const (
	Blank      Kind = iota // read in every place where a signature may be, and zero there
	Filesystem             // a file system with a sound superblock

	// Foreign is anything else. Result.Type is blkid's name for it if known (crypto_LUKS,
	// LVM2_member, swap, gpt, dos, ...); ext, xfs or btrfs for one without a sound primary
	// superblock; else "".
	Foreign
)

// Result describes the contents of a device.
type Result struct {
	Kind       Kind
	Type       string // of a file system: ext2, ext3, ext4, xfs, btrfs; or as Foreign says
	UUID       string
	Label      string
	Size       int64 // bytes, as in the superblock; 0 if unknown
	BlockSize  int64
	Incomplete bool // according to the superblock, mkfs was interrupted
	Clean      bool // according to the superblock, no check is needed: complete, and no error was recorded
	Recovery   bool // the journal of an ext4 has to be replayed, by mounting it or by e2fsck
	Full       bool // the file system cannot grow on this device
	Devices    int  // of a btrfs, including this one; else 0
}

func (r Result) String() string {
	switch {
	case r.Kind == Blank:
		return "blank"
	case r.Incomplete:
		return fmt.Sprintf("unfinished %s file system (uuid %s)", r.Type, r.UUID)
	case r.Kind == Filesystem:
		return fmt.Sprintf("%s file system (uuid %s, %d bytes)", r.Type, r.UUID, r.Size)
	case r.Type == "":
		return "data of an unknown kind"
	case r.Type == "ext" || r.Type == "xfs" || r.Type == "btrfs":
		return "parts of a damaged " + r.Type + " file system"
	}
	return r.Type + " data"
}

// ErrUnreadable means that a device or a part of it could not be read, so that it is not
// known what it holds.
var ErrUnreadable = errors.New("device cannot be read")

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30

	// announced contains all signatures of file systems and containers at the start: the
	// last is the superblock of btrfs, 4 KiB at 64 KiB.
	announced = 128 * kib
)

// Probe reads the device behind r, of size bytes, with concurrent reads. If its first bytes
// are blank, which is the longest case, the functions of beside are called concurrently, and
// have returned when Probe does.
func Probe(r io.ReaderAt, size int64, beside ...func()) (Result, error) {
	if size <= 0 {
		return Result{}, fmt.Errorf("%w: its size is %d bytes", ErrUnreadable, size)
	}
	begin := time.Now()
	start, err := read(r, 0, min(announced, size))
	latency := time.Since(begin)
	if err != nil {
		return Result{}, err
	}
	if name := find(containers, start); name != "" {
		return Result{Kind: Foreign, Type: name}, nil
	}
	for _, parse := range []func([]byte, int64) (Result, bool){ext, xfs, btrfs} {
		if res, ok := parse(start, size); ok {
			return inContainer(r, size, res)
		}
	}
	if name := find(others, start); name != "" {
		return Result{Kind: Foreign, Type: name}, nil
	}
	if !zero(start) {
		return unknown(r, size)
	}
	var wg sync.WaitGroup
	for _, f := range beside {
		wg.Go(f)
	}
	blank, err := allZero(r, zones(size), readers(latency))
	wg.Wait()
	if err != nil {
		return Result{}, err
	}
	if !blank {
		return unknown(r, size)
	}
	return Result{Kind: Blank}, nil
}

// inContainer searches behind the file system for containers with a superblock there: half
// of a mirror looks like a file system from the start, and writing to it would break the
// mirror. The contents of the file system are not searched.
func inContainer(r io.ReaderAt, size int64, res Result) (Result, error) {
	if res.Kind != Filesystem {
		return res, nil
	}
	name, err := findFar(r, size, res.Size, func(s signature) bool { return s.container })
	if err != nil || name == "" {
		return res, err
	}
	return Result{Kind: Foreign, Type: name}, nil
}

// unknown names data without a signature at the start of the device.
func unknown(r io.ReaderAt, size int64) (Result, error) {
	name, err := findFar(r, size, 0, func(signature) bool { return true })
	return Result{Kind: Foreign, Type: name}, err
}

type zone struct{ off, n int64 }

// Places calls f for each part of a device of size bytes that must be zero for it to be blank,
// with its offset and length.
func Places(size int64, f func(off, n int64)) {
	f(0, min(announced, size))
	for _, z := range zones(size) {
		f(z.off, z.n)
	}
}

const (
	// head holds the second headers of LUKS2 (the last begins where it ends), the first
	// labels of ZFS, and the beginning of a first partition or logical volume, which is at
	// 1 MiB and has its own file system: with its table wiped, the device still holds data.
	head = 4 * mib

	// tail holds the last labels of ZFS, which begin up to 768 KiB before the end,
	// the second metadata area of LVM (1 MiB), the backup GPT, MD and DRBD.
	tail = 2 * mib

	// sample holds what may be a little behind the offset that it is read at: the
	// backup superblock of an ext of 1 KiB blocks 1 KiB, and the start of an
	// allocation group of xfs, whose size is rounded up to its blocks, three of them,
	// 12 KiB. More would prove no more: a request costs more than its bytes.
	sample  = 16 * kib
	samples = 64 // that many parts of the device begin with one

	stretch = 256 * kib // size of one read; a larger buffer costs more than another request
)

// zones are what must be zero for a device to be blank, besides its first bytes.
func zones(size int64) []zone {
	var z []zone
	all := func(from, to int64) {
		for off := from; off < to; off += stretch {
			z = append(z, zone{off, min(stretch, to-off)})
		}
	}
	all(announced, min(head, size))
	for _, off := range offsets(size) {
		z = append(z, zone{off, min(sample, size-off)})
	}
	all(max(size-tail, announced), size)
	return z
}

// readers returns the number of concurrent reads, from the latency of the first one: on a
// network disk each of a hundred reads is a round trip; on a local one, more readers than
// processors only wait for each other.
func readers(first time.Duration) int {
	if first < 500*time.Microsecond {
		return 2
	}
	return 8
}

func allZero(r io.ReaderAt, zones []zone, readers int) (bool, error) {
	var (
		next  atomic.Int64
		bad   atomic.Bool
		dirty atomic.Bool
		errs  = make([]error, readers)
		wg    sync.WaitGroup
	)
	for i := range errs {
		wg.Go(func() {
			buf := make([]byte, stretch)
			for !bad.Load() {
				k := next.Add(1) - 1
				if k >= int64(len(zones)) {
					return
				}
				part := buf[:zones[k].n]
				if errs[i] = readInto(r, part, zones[k].off); errs[i] != nil {
					bad.Store(true)
				} else if !zero(part) {
					dirty.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return !dirty.Load(), errors.Join(errs...)
}

// offsets lists the places between head and tail that show that a device with a wiped head
// is in use: backup superblocks and a coarse sample.
func offsets(size int64) []int64 {
	var at []int64
	add := func(off int64) {
		if off >= head && off < size {
			at = append(at, off)
		}
	}
	add(4 * mib)  // the last place of the second LUKS2 header
	add(64 * mib) // btrfs superblock mirrors
	add(256 * gib)
	// ext backups are in groups 1 and the powers of 3, 5 and 7 (sparse_super);
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
	return buf, readInto(r, buf, off)
}

func readInto(r io.ReaderAt, buf []byte, off int64) error {
	if n, err := r.ReadAt(buf, off); n != len(buf) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("%w: %d bytes at %d: %w", ErrUnreadable, len(buf), off, err)
	}
	return nil
}

// zero compares each byte with the one before it, which costs no more than reading them.
func zero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

func uuid(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}
