package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Snapshotter is a [Backend] with snapshots.
type Snapshotter interface {
	// CreateSnapshot creates the snapshot, or returns the one with this name if
	// [Snapshot.Matches] s. It returns after the point in time of the snapshot. A volume
	// that is attached needs an atomic snapshot, or is [ErrInUse].
	CreateSnapshot(ctx context.Context, s SnapshotSpec) (Snapshot, error)
	// DeleteSnapshot deletes the snapshot. Its source and the volumes created from it stay.
	// It is a no-op for a snapshot that does not exist.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot returns csierr.NotFound for a snapshot that does not exist.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots is as ListVolumes, for the snapshots of one volume, or for all if
	// sourceVolumeID is empty.
	ListSnapshots(ctx context.Context, sourceVolumeID, after string, limit int) (page []Snapshot, next string, err error)
	// RestoreSnapshot is CreateVolume with the data of the snapshot s.Source.SnapshotID; the
	// volume may be larger. One that takes longer than ctx is in progress: see
	// blocking.PendingError.
	RestoreSnapshot(ctx context.Context, s VolumeSpec) (Volume, error)
}

// Cloner is a [Backend] that copies volumes.
type Cloner interface {
	// CloneVolume is CreateVolume with the data of the volume s.Source.VolumeID, as
	// RestoreSnapshot of [Snapshotter]. A source that is attached needs an atomic copy, or is
	// [ErrInUse].
	CloneVolume(ctx context.Context, s VolumeSpec) (Volume, error)
}

// Modifier is a [Backend] whose volumes have parameters that a VolumeAttributesClass
// changes. Its CreateVolume accepts VolumeSpec.Mutable.
type Modifier interface {
	// CheckMutable returns csierr.Invalid for parameters that are unknown or have values
	// that are not possible.
	CheckMutable(parameters map[string]string) error
	// ModifyVolume changes the parameters that are given, which CheckMutable has accepted.
	ModifyVolume(ctx context.Context, id string, parameters map[string]string) error
}

// GroupSnapshotter is a [Snapshotter] that takes snapshots of several volumes at one point
// in time.
type GroupSnapshotter interface {
	Snapshotter
	// CreateGroup creates the snapshots, or returns the group with this name. Where one
	// point in time is not possible it is [ErrInUse].
	CreateGroup(ctx context.Context, s GroupSpec) (Group, error)
	// DeleteGroup deletes the group and its snapshots, which snapshotIDs lists if it is
	// not empty. It is a no-op for a group that does not exist.
	DeleteGroup(ctx context.Context, id string, snapshotIDs []string) error
	// GetGroup returns csierr.NotFound for a group that does not exist.
	GetGroup(ctx context.Context, id string, snapshotIDs []string) (Group, error)
}

// ChangedBlocks is a [Snapshotter] that lists the blocks of its snapshots.
type ChangedBlocks interface {
	Snapshotter
	// Blocks calls each for all ranges of the snapshot that hold data, or with a baseID for
	// those that differ from that snapshot: in order, from the offset from. An error of
	// each ends it and is returned unchanged.
	Blocks(ctx context.Context, baseID, id string, from int64, each func(at, size int64) error) error
}

// HealthReporter finds what is wrong with a volume. A [Backend] may be one, and so may
// [Devices], which then sees what the node sees.
type HealthReporter interface {
	// CheckVolume examines the storage itself, not what is remembered of it. No problem is an
	// empty list; a volume that does not exist is csierr.NotFound.
	CheckVolume(ctx context.Context, id string) ([]Problem, error)
}

// StorageHealthReporter is [Devices] that find what is wrong with the storage as a whole.
type StorageHealthReporter interface {
	// CheckStorage returns the problems, by reason one for each place that has it.
	CheckStorage(ctx context.Context) []StorageProblem
}

// Commander is a [Provider] with commands of its own, such as one that prepares the storage.
type Commander interface {
	// Command runs the command args[0]; ok is false if it is none. [ErrReported] ends the
	// process with status 1 and no further message.
	Command(args []string, getenv func(string) string, stdout io.Writer) (ok bool, err error)
	// CommandUsage is the part of -h about the commands.
	CommandUsage() string
}

// ErrReported means that a command has printed what is wrong.
var ErrReported = errors.New("problems were reported")

// Problem is what is wrong with a volume.
type Problem struct {
	Severity csi.VolumeHealthErrorType
	Reason   string // in CamelCase
	Text     string
}

// StorageProblem is what is wrong with the storage.
type StorageProblem struct {
	Severity csi.StorageHealthErrorType
	Reason   string // in CamelCase
	Text     string
}

// Snapshot is a snapshot, ready to use.
type Snapshot struct {
	ID             string
	Name           string // the CO's
	SourceVolumeID string
	SizeBytes      int64
	CreatedAt      time.Time // the point in time
	GroupID        string    // of the group that it belongs to; empty: none
}

// Matches returns csierr.Conflict if s is not the snapshot that wanted describes.
func (s Snapshot) Matches(wanted SnapshotSpec) error {
	var d differences
	d.add("name", s.Name, wanted.Name)
	d.add("source volume", s.SourceVolumeID, wanted.SourceVolumeID)
	if s.GroupID != "" {
		d = append(d, "it is a part of the group snapshot "+s.GroupID)
	}
	return d.conflict("snapshot " + s.ID)
}

// Message returns the snapshot as the CO sees it.
func (s Snapshot) Message() *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.SourceVolumeID, SizeBytes: s.SizeBytes,
		CreationTime: timestamppb.New(s.CreatedAt), ReadyToUse: true, GroupSnapshotId: s.GroupID,
	}
}

// SnapshotSpec is a request for CreateSnapshot.
type SnapshotSpec struct {
	Name           string
	SourceVolumeID string
	Parameters     map[string]string // of the VolumeSnapshotClass
	Secrets        map[string]string
}

// Group is a group snapshot. Its snapshots have one point in time.
type Group struct {
	ID        string
	Name      string // the CO's
	CreatedAt time.Time
	Snapshots []Snapshot
}

// GroupSpec is a request for CreateGroup.
type GroupSpec struct {
	Name       string
	VolumeIDs  []string // sorted, each once
	Parameters map[string]string
	Secrets    map[string]string
}

// ParamEncryption is the parameter of a StorageClass by which the volumes are encrypted on
// the node, by driver/encryption.go. The size of an encrypted volume includes the header.
const (
	ParamEncryption = "encryption"
	EncryptionLUKS2 = "luks2"
)

// minimum is the smallest size in bytes. Package luks needs 64 MiB, of which it takes 16.
func (s VolumeSpec) minimum() int64 {
	minimum := MinimumSizes[s.AccessType]
	if s.Parameters[ParamEncryption] != "" {
		minimum = max(minimum+16<<20, 64<<20)
	}
	return minimum
}

// Parameters are the parameters of StorageClasses that the driver implements above the
// storage, with the values of each. A Backend accepts them in CreateVolume and Places beside
// its own, and keeps them in [Volume.Parameters].
type Parameters map[string][]string

// Check returns csierr.Invalid, with all their names, for parameters that are not in p or
// have other values.
func (p Parameters) Check(parameters map[string]string) error {
	var bad []string
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch values := p[key]; {
		case values == nil:
			bad = append(bad, fmt.Sprintf("%q is unknown", key))
		case !slices.Contains(values, parameters[key]):
			bad = append(bad, fmt.Sprintf("%s is %q, want %s", key, parameters[key], strings.Join(values, " or ")))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("%w: parameters: %s; correct the class", csierr.Invalid, strings.Join(bad, "; "))
}
