// Package mark is what is written to a blank device before it is formatted, so that an
// interrupted attempt can be repeated without taking data for its remains. It is pure.
package mark

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/csikit/csikit/internal/probe"
)

// A Mark is on a device from before mkfs until the file system is complete. It records that
// the device held nothing of the volume, so that anything else on it was left by an
// interrupted mkfs. Without it the remains of a mkfs cannot be distinguished from data: neither a superblock
// nor blkid nor samples of zeros show which of the two it is.
//
// Why a mark that is found can be trusted:
//
//   - It is written only to a device that is proven blank, or of which the driver's record
//     says that the volume has written nothing to it (NeverUsed), made durable and read
//     back in all its places before mkfs starts, and cleared in all of them before the file
//     system is mounted for the first time. So while it is intact, no file system has
//     existed that data of the volume could have been written to.
//   - It is trusted only if it is intact. mkfs writes to none of its places (see
//     Places), so a place that differs shows that another program has written, or that
//     clearing had begun, which happens after mkfs has succeeded.
//   - mkfs is repeated only if there is no complete file system. A user's file with the
//     bytes of a mark, even in all the right places, is in a complete one. It loses no
//     data: before such a file system is mounted, a block is cleared only if it is a mark
//     of this volume for this place.
//   - It contains volume, size and type. A clone, a copy by dd or a device that was
//     reassigned to another volume has the mark of another volume: that is data.
//
// Not detected: a file system whose mark was not cleared is mounted without csikit,
// written to, and its superblock is destroyed after that.
type Mark struct {
	volume string // as volumeText returns it
	fsType string
	size   int64 // of the device

	// nonce identifies the attempt to format: two nodes that format one device, which
	// should be attached to only one of them, detect that before they mount it.
	nonce [16]byte
}

const (
	// Size is the bytes of a mark: the largest logical block size, since nothing smaller can
	// be written.
	Size = 4096

	magic = "csikit: mkfs has not finished 1\n"
)

// record is a mark on a device, little endian, and zeros up to Size. It
// fits into 512 bytes, which a device writes as a whole or not at all.
type record struct {
	Magic  [len(magic)]byte
	Size   int64
	Place  int64 // offset of this record
	FSType [16]byte
	Nonce  [16]byte
	Volume [128]byte // the specification's limit for an ID
	Sum    [sha256.Size]byte
}

// New returns the mark of a new attempt to format.
func New(volumeID, fsType string, size int64) Mark {
	m := Mark{volume: volumeText(volumeID), fsType: fsType, size: size}
	rand.Read(m.nonce[:]) // never fails
	return m
}

// volumeText returns the volume ID, or its hash if it is longer than the specification
// allows or contains a NUL byte, after which IDs would not be distinguished.
func volumeText(id string) string {
	if len(id) <= 128 && !bytes.Contains([]byte(id), []byte{0}) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Encode returns the block for the place.
func (m Mark) Encode(place int64) []byte {
	r := record{Size: m.size, Place: place, Nonce: m.nonce}
	copy(r.Magic[:], magic)
	copy(r.FSType[:], m.fsType)
	copy(r.Volume[:], m.volume)
	block := make([]byte, Size)
	n, _ := binary.Encode(block, binary.LittleEndian, r) // fails only if the buffer is too small
	sum := sha256.Sum256(block[:n-sha256.Size])
	copy(block[n-sha256.Size:], sum[:])
	return block
}

// Blocks returns the mark for each of its places.
func (m Mark) Blocks() map[int64][]byte {
	blocks := make(map[int64][]byte)
	for _, place := range Places(m.size) {
		blocks[place] = m.Encode(place)
	}
	return blocks
}

// Decode decodes the mark in a block, if it is one.
func Decode(block []byte) (m Mark, place int64, ok bool) {
	var r record
	if len(block) != Size || string(block[:len(magic)]) != magic {
		return Mark{}, 0, false
	}
	if _, err := binary.Decode(block, binary.LittleEndian, &r); err != nil {
		return Mark{}, 0, false
	}
	m = Mark{
		volume: string(bytes.TrimRight(r.Volume[:], "\x00")),
		fsType: string(bytes.TrimRight(r.FSType[:], "\x00")),
		size:   r.Size,
		nonce:  r.Nonce,
	}
	// Encoding it again checks the sum and that nothing else is in the block.
	return m, r.Place, bytes.Equal(m.Encode(r.Place), block)
}

// Places returns the offsets of the mark on a device of that size; none if it is below
// 1 MiB, where mkfs leaves no room.
//
// They were found by recording every write of mke2fs 1.47 (eleven sets of features
// and options for ext4), mkfs.xfs 6.1 (five) and mkfs.btrfs 6.2 (three) to 2000
// devices from 1 MiB to 8 TiB, with sectors of 512 and 4096 bytes, without discard.
// None wrote within 1 KiB of a place; from 32 MiB on, within 36 KiB. The reason:
//
//   - ext4 writes at the start of block groups (of 8 MiB below 512 MiB, then of 128
//     MiB), inode tables behind that in each sixteenth group, and a journal of up to
//     1 GiB before or around the middle. 6 MiB behind a multiple of 8 MiB in the upper
//     half of 128 MiB, away from the middle, there is none of that.
//   - xfs writes at the start of allocation groups, which are a quarter or a
//     sixteenth of the device or 1 TiB, and a log of up to 2 GiB in the middle one.
//   - btrfs writes to the first 70 MiB, to a few blocks that begin below a tenth of
//     the device behind that, at 256 GiB, and to the last 2 MiB.
//   - Below 32 MiB bitmaps, inode tables and journal take more than half; they are before
//     the places, and what is wiped at the end is behind them.
//
// TestMarkSurvivesMkfs repeats it with the installed programs.
func Places(size int64) []int64 {
	const mib = int64(1) << 20
	var places []int64
	switch {
	case size < mib:
	case size < 32*mib:
		for _, k := range []int64{95, 99} {
			places = append(places, size/128*k&^(Size-1))
		}
	default:
		var upper int64
		if size >= 256*mib {
			upper = 64 * mib
		}
		for _, k := range []int64{37, 99} {
			places = append(places, (size/128*k&^(8*mib-1)|upper)+6*mib)
		}
	}
	return places
}

// A Search is what was found in the places of a mark.
type Search struct {
	Places  []int64
	Ours    map[int64][]byte // marks of this volume and size, by place
	fsTypes map[string]bool  // of ours

	// Foreign describes one of the places that holds neither zeros nor our mark.
	Foreign string
	Another bool // one of the places has the mark of another volume or of another size
}

// Find reads the places of a volume's mark on the device behind r.
func Find(r io.ReaderAt, volumeID string, size int64) (Search, error) {
	s := Search{Places: Places(size), Ours: make(map[int64][]byte), fsTypes: make(map[string]bool)}
	for _, place := range s.Places {
		block := make([]byte, Size)
		if _, err := r.ReadAt(block, place); err != nil {
			return s, fmt.Errorf("%w: %d bytes at %d: %w", probe.ErrUnreadable, Size, place, err)
		}
		m, at, ok := Decode(block)
		switch {
		case ok && at == place && m.size == size && m.volume == volumeText(volumeID):
			s.Ours[place] = block
			s.fsTypes[m.fsType] = true
		case ok:
			s.Another = true
			s.Foreign = fmt.Sprintf("the csikit mark of an interrupted mkfs.%s for volume %q on a device of %d bytes", m.fsType, m.volume, m.size)
		case !bytes.Equal(block, make([]byte, Size)) && s.Foreign == "":
			s.Foreign = fmt.Sprintf("data of an unknown kind (at byte %d)", place)
		}
	}
	return s, nil
}

// Zeros returns the zeros that clear the mark.
func (s Search) Zeros() map[int64][]byte {
	zeros := make(map[int64][]byte)
	for place := range s.Ours {
		zeros[place] = make([]byte, Size)
	}
	return zeros
}

// Whole reports whether the mark is intact, for a file system of this type.
func (s Search) Whole(fsType string) bool {
	return len(s.Places) > 0 && len(s.Ours) == len(s.Places) && len(s.fsTypes) == 1 && s.fsTypes[fsType]
}

// Interrupted reports whether the device holds what an interrupted mkfs of this type
// left. The mark records that it was blank before; anything that mkfs does not write was
// written later, and is data.
func (s Search) Interrupted(found probe.Result, fsType string) bool {
	if !s.Whole(fsType) {
		return false
	}
	switch found.Kind {
	case probe.Filesystem:
		return found.Incomplete && found.Type == fsType
	case probe.Foreign:
		return strings.HasPrefix(fsType, found.Type) // "", or "ext" for ext4: parts of one
	}
	return false
}

// CheckAttempt checks that what was found was written by the attempt that wrote m.
func (s Search) CheckAttempt(m Mark) error {
	for place, block := range s.Ours {
		if !bytes.Equal(block, m.Encode(place)) {
			return errors.New("another node formats the device concurrently: attach it to one node only")
		}
	}
	return nil
}

// Masked returns the device with zeros in place of our mark.
func (s Search) Masked(r io.ReaderAt) io.ReaderAt { return unmarked{r, s.Ours} }

type unmarked struct {
	io.ReaderAt
	ours map[int64][]byte
}

func (u unmarked) ReadAt(p []byte, off int64) (int, error) {
	n, err := u.ReaderAt.ReadAt(p, off)
	for place := range u.ours {
		from, to := max(place-off, 0), min(place+Size-off, int64(n))
		if from < to {
			clear(p[from:to])
		}
	}
	return n, err
}
