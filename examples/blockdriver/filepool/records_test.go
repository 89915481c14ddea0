package filepool

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// The records of a pool are as the first versions wrote them, byte by byte: a pool of any
// version opens with any other.
func TestFormat(t *testing.T) {
	b := openBackend(t, filepath.Join(t.TempDir(), "pool"), nil)
	const (
		volumeJSON = `{
  "version": 1,
  "id": "vol-0123456789abcdef0123456789abcdef",
  "name": "pvc-1",
  "capacity_bytes": 67108864,
  "access_type": "ext4",
  "parameters": {
    "tier": "gold"
  },
  "mutable": {
    "readAheadKiB": "64"
  },
  "source": {
    "snapshot_id": "snap-0123456789abcdef0123456789abcdef"
  },
  "holds_data": true,
  "attachment": {
    "node_id": "n1",
    "readonly": true,
    "access_mode": "SINGLE_NODE_WRITER",
    "generation": 7
  },
  "generation": 7
}
`
		snapshotJSON = `{
  "version": 1,
  "id": "snap-0123456789abcdef0123456789abcdef",
  "name": "s",
  "source_volume_id": "vol-0123456789abcdef0123456789abcdef",
  "size_bytes": 67108864,
  "access_type": "ext4",
  "created_at": "2026-01-02T03:04:05Z",
  "holds_data": true,
  "group_id": "group-0123456789abcdef0123456789abcdef"
}
`
		groupJSON = `{
  "version": 1,
  "id": "group-0123456789abcdef0123456789abcdef",
  "name": "g",
  "created_at": "2026-01-02T03:04:05Z",
  "members": [
    {
      "volume_id": "vol-0123456789abcdef0123456789abcdef",
      "snapshot_id": "snap-0123456789abcdef0123456789abcdef"
    }
  ]
}
`
	)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := func(kind string) string { return kind + "-" + strings.Repeat("0123456789abcdef", 2) }
	v := volume{
		ID: id("vol"), Name: "pvc-1", CapacityBytes: 64 * mib, AccessType: "ext4", Parameters: map[string]string{"tier": "gold"},
		Mutable: map[string]string{"readAheadKiB": "64"}, Source: &storage.Source{SnapshotID: id("snap")}, HoldsData: true,
		Attachment: &attachment{storage.Attachment{NodeID: "n1", ReadOnly: true, AccessMode: "SINGLE_NODE_WRITER"}, 7}, Generation: 7,
	}
	s := snapshot{
		ID: id("snap"), Name: "s", SourceVolumeID: id("vol"), SizeBytes: 64 * mib, AccessType: "ext4", CreatedAt: at,
		HoldsData: true, GroupID: id("group"),
	}
	g := group{ID: id("group"), Name: "g", CreatedAt: at, Members: []groupMember{{id("vol"), id("snap")}}}
	for _, x := range []struct {
		dir, text string
		record    object
		read      func(id string) (any, error)
	}{
		{"volumes", volumeJSON, v, func(id string) (any, error) { return b.ReadVolume(id) }},
		{"snapshots", snapshotJSON, s, func(id string) (any, error) { return b.readSnapshot(id) }},
		{"groups", groupJSON, g, func(id string) (any, error) { return b.readGroup(id) }},
	} {
		data, err := encode(x.record.metadata())
		if err != nil || string(data) != x.text {
			t.Errorf("written as %s, %v; want %s", data, err, x.text)
		}
		write(t, b.file(x.dir, x.record.objectID()+extMetadata), x.text)
		if got, err := x.read(x.record.objectID()); err != nil || !reflect.DeepEqual(got, x.record) {
			t.Errorf("read as %+v, %v; want %+v", got, err, x.record)
		}
	}
}
