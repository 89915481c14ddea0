package filepool

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FS_IOC_FIEMAP and its structures, of linux/fiemap.h.
const (
	fsIocFiemap    = 0xc020660b
	fiemapFlagSync = 0x1

	// Of extents with one of these the physical place is not known, or is not all
	// that decides the content.
	extentUnknown    = 0x2
	extentDelalloc   = 0x4
	extentEncoded    = 0x8
	extentNotAligned = 0x100
	extentInline     = 0x200
	extentLast       = 0x1
	extentUnsure     = extentUnknown | extentDelalloc | extentEncoded | extentNotAligned | extentInline
)

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

type fiemap struct {
	start, length         uint64
	flags, mapped, count_ uint32
	_                     uint32
	extents               [256]fiemapExtent
}

// sharing knows which parts of two files are the same blocks of the disk. Where the
// file system cannot say it knows of none.
type sharing struct{ one, other extents }

func newSharing(one, other *os.File) *sharing {
	return &sharing{extents{f: one}, extents{f: other}}
}

// until returns up to where both files share their blocks from at on; at: they do
// not. at never goes back.
func (s *sharing) until(at int64) int64 {
	a, okA := s.one.find(at)
	b, okB := s.other.find(at)
	if !okA || !okB || a.flags&extentUnsure != 0 || b.flags&extentUnsure != 0 || a.flags&^extentLast != b.flags&^extentLast {
		return at
	}
	if a.physical-a.logical != b.physical-b.logical {
		return at
	}
	return int64(min(a.logical+a.length, b.logical+b.length))
}

// extents is a window on where a file is on the disk.
type extents struct {
	f      *os.File
	window []fiemapExtent
	failed bool
}

func (e *extents) find(at int64) (fiemapExtent, bool) {
	for range 2 {
		for len(e.window) > 0 && int64(e.window[0].logical+e.window[0].length) <= at {
			e.window = e.window[1:]
		}
		if len(e.window) > 0 {
			x := e.window[0]
			return x, int64(x.logical) <= at
		}
		if e.failed || !e.read(at) {
			return fiemapExtent{}, false
		}
	}
	return fiemapExtent{}, false
}

func (e *extents) read(at int64) bool {
	m := fiemap{start: uint64(at), length: ^uint64(0) - uint64(at), flags: fiemapFlagSync, count_: uint32(len(fiemap{}.extents))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, e.f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&m)))
	if e.failed = errno != 0; e.failed {
		return false
	}
	e.window = append(e.window[:0:0], m.extents[:m.mapped]...)
	return m.mapped > 0
}
