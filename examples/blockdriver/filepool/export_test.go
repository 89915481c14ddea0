package filepool

import (
	"context"
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// What the tests of the whole driver need of the pools.

const (
	CompareBlock   = compareBlock
	VolumeKind     = volumeKind
	SnapshotKind   = snapshotKind
	GroupKind      = groupKind
	ExtFrozen      = extFrozen
	ExtImage       = extImage
	ContextImage   = contextImage
	ExtTemp        = extTemp
	MarkerName     = markerName
	SpareName      = spareName
	ParamReadAhead = paramReadAhead
	ParamDirectIO  = paramDirectIO
)

var (
	MakePool   = makePool
	IDOnDisk   = idOnDisk
	NewID      = newID
	NextData   = nextData
	VolumeID   = volumeID
	SnapshotID = snapshotID
	GroupID    = groupID
	WriteAt    = writeAt
	ReadAt     = readAt
	WantCode   = wantCode
	Must       = must
)

// RegisterNode registers a node that does not run.
func RegisterNode(t *testing.T, dir, nodeID string, segments map[string]string) {
	t.Helper()
	p, err := openPool(dir)
	must(t, err)
	defer p.Close()
	must(t, p.RegisterNode(nodeID, 0, segments))
}

// FrozenMark is what a node leaves in groups/ while volumes are frozen.
func FrozenMark(t *testing.T, nodeID string, volumeIDs ...string) []byte {
	t.Helper()
	data, err := encode(frozenMark{formatVersion, nodeID, volumeIDs})
	must(t, err)
	return data
}

// OpenDevices opens the pools in dirs, of which some may be missing.
func OpenDevices(t *testing.T, env storage.NodeEnv, dirs ...string) *devices {
	t.Helper()
	var configs []poolConfig
	for _, dir := range dirs {
		configs = append(configs, poolConfig{Name: dir, Dir: dir})
	}
	d, err := openDevices(t.Context(), configs, 0, env)
	must(t, err)
	return d
}

func (d *devices) Freeze(ctx context.Context, volumeID string) (func() error, error) {
	return d.freeze(ctx, volumeID)
}

func (d *devices) OpenAway(ctx context.Context) error { return d.openAway(ctx) }
