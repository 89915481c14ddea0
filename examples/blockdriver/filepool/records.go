package filepool

import (
	"slices"
	"time"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

// The records of the pool: what the JSON files contain. They have fields that package
// storage does not, and their format is that of all earlier versions.

// volume is the record of a volume. Maps and pointers in it are shared: treat them as
// read-only.
type volume struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"` // the CO's name
	CapacityBytes int64             `json:"capacity_bytes"`
	AccessType    string            `json:"access_type"` // of storage.MinimumSizes; fixed at creation
	Parameters    map[string]string `json:"parameters,omitempty"`
	Mutable       map[string]string `json:"mutable,omitempty"`    // parameters that ModifyVolume changes
	Source        *storage.Source   `json:"source,omitempty"`     // what it was created from; nil: nothing
	HoldsData     bool              `json:"holds_data,omitempty"` // the source was not blank
	Attachment    *attachment       `json:"attachment,omitempty"` // nil: not attached
	Generation    int64             `json:"generation,omitempty"` // differs whenever a node may have written to it
	Segments      topology.Segments `json:"-"`                    // of the pool
}

// attachment is to which node a volume is attached. No other attachment of the volume has
// its generation.
type attachment struct {
	storage.Attachment
	Generation int64 `json:"generation,omitempty"`
}

// snapshot is the record of a snapshot.
type snapshot struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"` // the CO's name
	SourceVolumeID string    `json:"source_volume_id"`
	SizeBytes      int64     `json:"size_bytes"`
	AccessType     string    `json:"access_type"` // of the source volume
	CreatedAt      time.Time `json:"created_at"`  // the point in time
	HoldsData      bool      `json:"holds_data,omitempty"`
	GroupID        string    `json:"group_id,omitempty"`
}

// group is the record of a group snapshot.
type group struct {
	ID        string        `json:"id"`
	Name      string        `json:"name"` // the CO's name
	CreatedAt time.Time     `json:"created_at"`
	Members   []groupMember `json:"members"`
	Snapshots []snapshot    `json:"-"` // those of the members, in this order
}

// groupMember is a volume of a group and the snapshot of it.
type groupMember struct {
	VolumeID   string `json:"volume_id"`
	SnapshotID string `json:"snapshot_id"`
}

// The contents of <id>.json.
type (
	volumeMetadata struct {
		Version int `json:"version"`
		volume
	}
	snapshotMetadata struct {
		Version int `json:"version"`
		snapshot
	}
	groupMetadata struct {
		Version int `json:"version"`
		group
	}
)

func (v volume) objectID() string   { return v.ID }
func (v volume) metadata() any      { return volumeMetadata{formatVersion, v} }
func (s snapshot) objectID() string { return s.ID }
func (s snapshot) metadata() any    { return snapshotMetadata{formatVersion, s} }
func (g group) objectID() string    { return g.ID }
func (g group) metadata() any       { return groupMetadata{formatVersion, g} }

func (v volume) storage() storage.Volume {
	s := storage.Volume{
		ID: v.ID, Name: v.Name, CapacityBytes: v.CapacityBytes, AccessType: v.AccessType, Parameters: v.Parameters,
		Mutable: v.Mutable, Source: v.Source, HoldsData: v.HoldsData, Prezeroed: true, Segments: v.Segments, // a sparse file reads as zeros
	}
	if v.Attachment != nil {
		s.Attachment = &v.Attachment.Attachment
	}
	return s
}

func (s snapshot) storage() storage.Snapshot {
	return storage.Snapshot{ID: s.ID, Name: s.Name, SourceVolumeID: s.SourceVolumeID, SizeBytes: s.SizeBytes, CreatedAt: s.CreatedAt, GroupID: s.GroupID}
}

func (g group) storage() storage.Group {
	return storage.Group{ID: g.ID, Name: g.Name, CreatedAt: g.CreatedAt, Snapshots: storageOf(g.Snapshots, snapshot.storage)}
}

func storageOf[T, S any](list []T, storage func(T) S) []S {
	all := make([]S, len(list))
	for i, v := range list {
		all[i] = storage(v)
	}
	return all
}

func (g group) volumeIDs() (ids []string) {
	for _, m := range g.Members {
		ids = append(ids, m.VolumeID)
	}
	return ids
}

func (g group) snapshotIDs() (ids []string) {
	for _, m := range g.Members {
		ids = append(ids, m.SnapshotID)
	}
	slices.Sort(ids)
	return ids
}
