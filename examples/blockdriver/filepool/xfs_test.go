package filepool

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/codes"
)

func TestCheckGrown(t *testing.T) {
	const group = 1 << 20
	superblock := func(id byte, blocks uint64, groups, groupBlocks uint32) []byte {
		sb := make([]byte, 512)
		copy(sb, "XFSB")
		be := binary.BigEndian
		be.PutUint32(sb[4:], 4096)
		be.PutUint64(sb[8:], blocks)
		sb[32] = id
		be.PutUint32(sb[84:], groupBlocks)
		be.PutUint32(sb[88:], groups)
		return sb
	}
	sb := func(blocks uint64, groups uint32) []byte { return superblock('a', blocks, groups, group/4096) }
	for _, c := range []struct {
		name   string
		at     map[int64][]byte
		grows  bool
		length int64
	}{
		{name: "blank"},
		{name: "empty", length: -1},
		{name: "another file system", at: map[int64][]byte{0: bytes.Repeat([]byte{1}, 512)}},
		{name: "grown", at: map[int64][]byte{0: sb(512, 2), group: sb(512, 2)}},
		{name: "grown, and there was room for one more group", at: map[int64][]byte{0: sb(512, 2), group: sb(512, 2), 2 * group: bytes.Repeat([]byte{1}, 512)}},
		{name: "the others were never written", at: map[int64][]byte{0: sb(768, 3), group: sb(512, 2), 2 * group: sb(512, 2)}},
		{name: "remains of an earlier one", at: map[int64][]byte{0: sb(512, 2), group: superblock('b', 768, 3, group/4096), 2 * group: superblock('b', 768, 3, group/4096)}},
		{name: "the first is last", at: map[int64][]byte{0: sb(512, 2), group: sb(768, 3), 2 * group: sb(768, 3)}, grows: true},
		{name: "the last group became larger", at: map[int64][]byte{0: sb(300, 2), group: sb(512, 2)}, grows: true},
		{name: "only the new group is there", at: map[int64][]byte{0: sb(512, 2), group: sb(512, 2), 2 * group: sb(512, 2)}, grows: true},
		{name: "damaged: no groups", at: map[int64][]byte{0: sb(512, 0), group: sb(512, 2)}},
		{name: "damaged: huge groups", at: map[int64][]byte{0: superblock('a', 512, math.MaxUint32, math.MaxUint32)}},
		{name: "damaged: groups of nothing", at: map[int64][]byte{0: superblock('a', 512, 2, 0)}},
		{name: "truncated", at: map[int64][]byte{0: sb(512, 2)}, length: group + 100},
	} {
		image := make([]byte, 4*group)
		for at, sb := range c.at {
			copy(image[at:], sb)
		}
		if c.length != 0 {
			image = image[:max(c.length, 0)]
		}
		err := checkGrown(bytes.NewReader(image), "n1")
		if !c.grows && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.grows && (err == nil || csierr.Errorf("clone", "", "%w", err).(*csierr.Error).GRPCStatus().Code() != codes.Aborted || !strings.Contains(err.Error(), `"n1"`)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
