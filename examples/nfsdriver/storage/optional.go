package storage

import (
	"context"
	"fmt"
	"time"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/volumelock"
)

// Lister is a [Backend] that lists its volumes.
type Lister interface {
	// ListVolumes returns at most limit volumes (0: all), from the one after the token.
	// An empty token starts at the beginning; next is empty at the end. A token that is
	// not from this list is [ErrBadToken].
	ListVolumes(ctx context.Context, after string, limit int) (page []Volume, next string, err error)
}

// Cloner is a [Backend] that copies volumes.
type Cloner interface {
	// CloneVolume is CreateVolume with the data of the volume s.Source.VolumeID. A copy
	// that takes longer than ctx is in progress: see blocking.PendingError.
	CloneVolume(ctx context.Context, s VolumeSpec) (Volume, error)
}

// Snapshotter is a [Backend] with snapshots.
type Snapshotter interface {
	// CreateSnapshot creates the snapshot, or returns the one with this name if
	// [Snapshot.Matches] s. It returns after the point in time of the snapshot. A volume
	// that is written to needs an atomic snapshot, or is [ErrInUse].
	CreateSnapshot(ctx context.Context, s SnapshotSpec) (Snapshot, error)
	// DeleteSnapshot deletes the snapshot. Its source and the volumes created from it stay.
	// It is a no-op for a snapshot that does not exist.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot returns csierr.NotFound for a snapshot that does not exist.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// RestoreSnapshot is CreateVolume with the data of the snapshot s.Source.SnapshotID.
	RestoreSnapshot(ctx context.Context, s VolumeSpec) (Volume, error)
}

// SnapshotLister is a [Snapshotter] that lists its snapshots.
type SnapshotLister interface {
	// ListSnapshots is as ListVolumes of [Lister].
	ListSnapshots(ctx context.Context, after string, limit int) (page []Snapshot, next string, err error)
}

// Snapshot is a snapshot, ready to use.
type Snapshot struct {
	ID             string
	Name           string // the CO's
	SourceVolumeID string
	SizeBytes      int64
	CreatedAt      time.Time // the point in time
}

// SnapshotSpec is a request for CreateSnapshot.
type SnapshotSpec struct {
	Name           string
	SourceVolumeID string
	Parameters     map[string]string // of the VolumeSnapshotClass
	Secrets        map[string]string
}

// Matches returns csierr.Conflict if s is not the snapshot that wanted describes.
func (s Snapshot) Matches(wanted SnapshotSpec) error {
	var d []string
	if s.Name != wanted.Name {
		d = append(d, fmt.Sprintf("name: it has %q, the request %q", s.Name, wanted.Name))
	}
	if s.SourceVolumeID != wanted.SourceVolumeID {
		d = append(d, fmt.Sprintf("source volume: it is of %q, the request of %q", s.SourceVolumeID, wanted.SourceVolumeID))
	}
	return conflict("snapshot "+s.ID, d)
}

// Locker is a [Provider] with a lock policy of its own, in place of
// volumelock.DefaultPolicy: for a storage in which requests with different names or IDs can
// be for the same object.
type Locker interface {
	LockPolicy(fullMethod string, req any) []volumelock.Request
}

// Debugger is a [Provider] with a part of the debug page, or a condition of /readyz.
type Debugger interface {
	// DebugSections is called after OpenBackend and OpenMounts.
	DebugSections() []csiserver.HealthSection
}
