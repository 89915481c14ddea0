package probe

import (
	"io"
	"unsafe"
)

// page is at least the buffer alignment that any device requires.
const page = 4096

// Aligned returns a reader of r, of size bytes, that reads whole blocks into page-aligned
// memory, as a file opened with O_DIRECT requires. block is the logical block size of the
// device: a power of two that divides size.
func Aligned(r io.ReaderAt, size, block int64) io.ReaderAt {
	return aligned{r, size, block}
}

type aligned struct {
	r           io.ReaderAt
	size, block int64
}

func (a aligned) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= a.size {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	want := min(int64(len(p)), a.size-off)
	from := off &^ (a.block - 1)
	to := (off + want + a.block - 1) &^ (a.block - 1)
	if from == off && to == off+int64(len(p)) && uintptr(unsafe.Pointer(&p[0]))%page == 0 {
		return a.r.ReadAt(p, off)
	}
	buf := make([]byte, to-from+page)
	buf = buf[-uintptr(unsafe.Pointer(&buf[0]))&(page-1):][:to-from]
	n, err := a.r.ReadAt(buf, from)
	if int64(n) < to-from && err == nil {
		err = io.ErrUnexpectedEOF
	}
	have := max(int64(n)-(off-from), 0)
	n = copy(p[:want], buf[off-from:][:min(have, want)])
	switch {
	case int64(n) < want:
		return n, err
	case want < int64(len(p)):
		return n, io.EOF
	}
	return n, nil
}
