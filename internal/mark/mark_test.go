package mark

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestMarkRoundTrip(t *testing.T) {
	ids := []string{"", "v", strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("x", 130), "a", "a\x00", "a\x00b", "ü \n"}
	seen := map[string]string{}
	for _, id := range ids {
		m := New(id, "ext4", 1<<40)
		block := m.Encode(4096)
		got, place, ok := Decode(block)
		if !ok || got != m || place != 4096 || len(block) != Size {
			t.Errorf("%q: %+v at %d, %v; want %+v", id, got, place, ok, m)
		}
		if !bytes.Equal(block[512:], make([]byte, Size-512)) {
			t.Errorf("%q: the mark does not fit into 512 bytes", id)
		}
		if other, taken := seen[got.volume]; taken {
			t.Errorf("%q and %q have the same mark", id, other)
		}
		seen[got.volume] = id
	}
	if a, b := New("v", "xfs", 1), New("v", "xfs", 1); a == b {
		t.Error("two attempts have the same mark")
	}
}

func TestMarkDamaged(t *testing.T) {
	block := New("v", "ext4", 1<<30).Encode(4096)
	for i := range block {
		block[i] ^= 0x10
		if _, _, ok := Decode(block); ok {
			t.Errorf("byte %d may be anything", i)
		}
		block[i] ^= 0x10
	}
	for _, b := range [][]byte{nil, block[:512], append(slices.Clone(block), 0)} {
		if _, _, ok := Decode(b); ok {
			t.Errorf("a block of %d bytes is decoded as a mark", len(b))
		}
	}
}

// Another version of this package, on another node, must find the mark and read it.
func TestMarkFormat(t *testing.T) {
	const mib = int64(1) << 20
	m := Mark{volume: "pvc-1", fsType: "xfs", size: 10 << 30, nonce: [16]byte{1, 2, 3}}
	sum := sha256.Sum256(m.Encode(42 << 20))
	if got := hex.EncodeToString(sum[:]); got != "f0095504557aad3a9296384beea2ca117f33ecb3c7ece1878c5fc18f2695b8c6" {
		t.Errorf("the mark has another form: %s", got)
	}
	for size, want := range map[int64]string{
		mib - 1:      "[]",
		mib:          "[778240 811008]",
		16 * mib:     "[12451840 12976128]",
		32*mib - 1:   "[24899584 25948160]",
		32 * mib:     "[14680064 31457280]",
		300 * mib:    "[90177536 249561088]",
		1<<30 + 1234: "[383778816 903872512]",
		100 << 30:    "[31111249920 83053510656]",
		1 << 40:      "[317900980224 850476924928]",
	} {
		if got := fmt.Sprint(Places(size)); got != want {
			t.Errorf("%d: %s, want %s", size, got, want)
		}
	}
}

func TestMarkPlaces(t *testing.T) {
	const mib = int64(1) << 20
	for size := mib; size < 1<<46; size += size/257 + 512 {
		places := Places(size)
		if len(places) != 2 {
			t.Fatalf("%d: %v", size, places)
		}
		for i, place := range places {
			if place%Size != 0 || place < size/4 || place+Size > size-64<<10 || i > 0 && place < places[i-1]+Size {
				t.Fatalf("a device of %d bytes has a mark at %v", size, places)
			}
		}
	}
}

// image is a device in memory.
type image []byte

func (d image) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(d).ReadAt(p, off) }

func TestSearchMark(t *testing.T) {
	const mib = int64(1) << 20
	const size = 2 * mib
	places := Places(size)
	ours, other := New("v", "ext4", size), New("w", "ext4", size)
	xfs, large := New("v", "xfs", size), New("v", "ext4", size+512)
	tests := []struct {
		name          string
		first, second []byte
		ours          int
		whole         bool
		foreign       string
	}{
		{"none", nil, nil, 0, false, ""},
		{"whole", ours.Encode(places[0]), ours.Encode(places[1]), 2, true, ""},
		{"of two attempts", ours.Encode(places[0]), New("v", "ext4", size).Encode(places[1]), 2, true, ""},
		{"half", nil, ours.Encode(places[1]), 1, false, ""},
		{"half, and data", []byte("precious"), ours.Encode(places[1]), 1, false, "unknown kind"},
		{"of two types", ours.Encode(places[0]), xfs.Encode(places[1]), 2, false, ""},
		{"of another type", xfs.Encode(places[0]), xfs.Encode(places[1]), 2, false, ""},
		{"of another volume", other.Encode(places[0]), other.Encode(places[1]), 0, false, `volume "w"`},
		{"of another size", large.Encode(places[0]), large.Encode(places[1]), 0, false, "2097664 bytes"},
		{"in the wrong place", ours.Encode(places[1]), ours.Encode(places[0]), 0, false, "mkfs.ext4"},
		{"truncated", ours.Encode(places[0])[:200], ours.Encode(places[1]), 1, false, "unknown kind"},
	}
	for _, test := range tests {
		dev := make(image, size)
		copy(dev[places[0]:], test.first)
		copy(dev[places[1]:], test.second)
		s, err := Find(dev, "v", size)
		if err != nil || len(s.Ours) != test.ours || s.Whole("ext4") != test.whole || !strings.Contains(s.Foreign, test.foreign) || (s.Foreign == "") != (test.foreign == "") {
			t.Errorf("%s: %d ours, whole %v, foreign %q, %v", test.name, len(s.Ours), s.Whole("ext4"), s.Foreign, err)
		}
		// With our mark masked, the rest is unchanged for any read.
		for _, n := range []int64{1000, Size, 3 * Size, size} {
			for off := int64(0); off < size; off += n {
				p := make([]byte, min(n, size-off))
				want := slices.Clone(dev[off:][:len(p)])
				for place := range s.Ours {
					for i := range want {
						if at := off + int64(i); at >= place && at < place+Size {
							want[i] = 0
						}
					}
				}
				if got, err := s.Masked(dev).ReadAt(p, off); err != nil || got != len(p) || !bytes.Equal(p, want) {
					t.Fatalf("%s: %d bytes at %d read without the mark: %d, %v", test.name, n, off, got, err)
				}
			}
		}
	}
	if _, err := Find(make(image, places[1]), "v", size); err == nil {
		t.Error("a place that cannot be read is no error")
	}
	tiny := make(image, mib/2)
	if s, err := Find(tiny, "v", mib/2); err != nil || s.Whole("ext4") {
		t.Errorf("a device without places: %+v, %v", s, err)
	}
}

func FuzzDecodeMark(f *testing.F) {
	f.Add(New("v", "ext4", 1).Encode(2))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, place, ok := Decode(b); ok && !bytes.Equal(m.Encode(place), b) {
			t.Errorf("%+v at %d", m, place)
		}
	})
}
