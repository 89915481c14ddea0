package luks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// dataOffset is where the data begins on a volume that this package formats: what is before
// that are the two headers and the areas of the keys.
const dataOffset = 16 << 20

// header is what is used of a LUKS2 header, as the LUKS2 On-Disk Format Specification 1.1
// describes it.
type header struct {
	sequence uint64
	label    string
	uuid     string
	slots    []int // that hold a key, in ascending order
}

// binaryHeader is the part before the JSON, big endian.
type binaryHeader struct {
	Magic     [6]byte
	Version   uint16
	Size      uint64 // with the JSON
	Sequence  uint64 // the header with the higher one is newer
	Label     [48]byte
	Algorithm [32]byte
	Salt      [64]byte
	UUID      [40]byte
	Subsystem [48]byte
	Offset    uint64
	_         [184]byte
	Sum       [64]byte
	_         [7 * 512]byte
}

const (
	firstMagic  = "LUKS\xba\xbe"
	secondMagic = "SKUL\xba\xbe"
	sumAt       = 448
)

var (
	errNoHeader = errors.New("no LUKS header")
	errVersion  = errors.New("the header is not LUKS2")
	errDamaged  = errors.New("the LUKS2 header is damaged, and so is its copy: restore it from a backup (cryptsetup luksHeaderRestore)")
)

// readHeader reads the newer one of the two headers, as cryptsetup does: one of them may be
// damaged by a write that was interrupted. It runs no program.
func readHeader(r io.ReaderAt) (header, error) {
	start := make([]byte, 8)
	if err := readFull(r, start, 0); err != nil {
		return header{}, err
	}
	first := string(start[:6]) == firstMagic
	if first && binary.BigEndian.Uint16(start[6:]) != 2 {
		return header{}, errVersion
	}
	found, err := parseHeader(r, 0, firstMagic)
	if err != nil && !errors.Is(err, errDamaged) {
		return header{}, err
	}
	// The second header is behind the first, which has one of these sizes.
	for size := int64(16 << 10); size <= 4<<20; size *= 2 {
		second, e := parseHeader(r, size, secondMagic)
		if e != nil && !errors.Is(e, errDamaged) {
			return header{}, e
		}
		if e == nil && (err != nil || second.sequence > found.sequence) {
			found, err = second, nil
		}
	}
	if err != nil && !first {
		return header{}, errNoHeader
	}
	return found, err
}

// parseHeader reads the header at an offset: errDamaged if there is none with a valid sum.
func parseHeader(r io.ReaderAt, at int64, magic string) (header, error) {
	block := make([]byte, binary.Size(binaryHeader{}))
	if err := readFull(r, block, at); err != nil {
		return header{}, err
	}
	var b binaryHeader
	_, _ = binary.Decode(block, binary.BigEndian, &b) // fails only if the buffer is too small
	if string(b.Magic[:]) != magic || b.Version != 2 || b.Offset != uint64(at) ||
		b.Size < 16<<10 || b.Size > 4<<20 || b.Size&(b.Size-1) != 0 || text(b.Algorithm[:]) != "sha256" {
		return header{}, errDamaged
	}
	all := make([]byte, b.Size)
	if err := readFull(r, all, at); err != nil {
		return header{}, err
	}
	clear(all[sumAt:][:len(b.Sum)])
	if sum := sha256.Sum256(all); !bytes.Equal(sum[:], b.Sum[:len(sum)]) {
		return header{}, errDamaged
	}
	var meta struct {
		Keyslots map[string]json.RawMessage `json:"keyslots"`
	}
	if err := json.Unmarshal([]byte(text(all[len(block):])), &meta); err != nil {
		return header{}, errDamaged
	}
	h := header{sequence: b.Sequence, label: text(b.Label[:]), uuid: text(b.UUID[:])}
	for slot := range meta.Keyslots {
		n, err := strconv.Atoi(slot)
		if err != nil {
			return header{}, errDamaged
		}
		h.slots = append(h.slots, n)
	}
	slices.Sort(h.slots)
	return h, nil
}

func readFull(r io.ReaderAt, b []byte, off int64) error {
	if n, err := r.ReadAt(b, off); n != len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read the LUKS header (%d bytes at %d): %w", len(b), off, err)
	}
	return nil
}

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// mapperUUID is the UUID that cryptsetup gives a mapping.
func (h header) mapperUUID(name string) string {
	return "CRYPT-LUKS2-" + strings.ReplaceAll(h.uuid, "-", "") + "-" + name
}

// labelOf returns the label of a volume's header: its ID, or a hash of it if it is longer than
// the 47 bytes of a label or has characters other than those of most IDs. A hash is
// distinguished from an ID by its colon.
func labelOf(volumeID string) string { return safe(volumeID, 47) }

// nameOf returns the name of a volume's mapping, of at most the 127 bytes of a name, without
// characters that libdevmapper encodes.
func nameOf(prefix, volumeID string) string {
	return prefix + "-" + safe(volumeID, 127-len(prefix)-1)
}

func safe(id string, limit int) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	}
	if len(id) <= limit && strings.IndexFunc(id, func(c rune) bool { return !plain(c) }) < 0 {
		return id
	}
	const head = "sha256:"
	sum := sha256.Sum256([]byte(id))
	hash := head + hex.EncodeToString(sum[:])
	return hash[:min(limit, len(hash))]
}
