// Package storage is what the driver needs of a storage system that serves network shares,
// and what you implement for yours: [Backend] for the controller, [Mounts] for the nodes,
// and [Provider] to start them. Abilities beyond those are interfaces of their own, such as
// [Snapshotter]: the driver reports the CSI capabilities of those that your Backend
// implements.
//
// Package storagetest checks an implementation; package memory is a small one to read.
// Package share has volume IDs, class parameters and mount options for shares that are
// directories of a server's exports; a storage with an API of its own may not need it.
package storage

import (
	"context"
	"fmt"
)

// Backend is the storage as the controller uses it. Every method is idempotent and safe for
// concurrent use. A method that has begun a change continues when its context ends,
// because a CO whose call timed out repeats it and does not undo it.
//
// Errors wrap the kinds of package csierr; one that wraps none is UNAVAILABLE. A
// kind that is final (see csierr.IsFinal) means that nothing was changed: the CO may
// never repeat the call.
type Backend interface {
	// CreateVolume creates an empty volume, or returns the volume with this name if it
	// [Volume.Matches] s. s.Source is nil: see [Snapshotter] and [Cloner].
	CreateVolume(ctx context.Context, s VolumeSpec) (Volume, error)
	// DeleteVolume deletes the volume. It is a no-op for a volume that does not exist and
	// for an ID that this storage never returned. An ID must never be reused: a delete may
	// arrive late, when the name has been created again.
	DeleteVolume(ctx context.Context, id string) error
	// ExpandVolume grows the volume into r. It is a no-op for a volume that is large
	// enough; csierr.OutOfRange if r.Limit is less than its size.
	ExpandVolume(ctx context.Context, id string, r CapacityRange) (Volume, error)
	// GetVolume returns csierr.NotFound for a volume that does not exist.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// Capacity returns the free bytes, and the size of the largest possible volume, where
	// a class with these parameters and mount flags has its volumes; without parameters,
	// where the most bytes are free, or 0 if that is not known.
	Capacity(ctx context.Context, parameters map[string]string, mountFlags []string) (free, largest int64, err error)
}

// FSTypes are the file system types that a request may name; "" leaves it open.
var FSTypes = []string{"", "nfs", "nfs4"}

// ContextMountOptions is the key of volume_context with which the author of a
// PersistentVolume adds mount options. It is not one of a volume's own.
const ContextMountOptions = "mountOptions"

// Volume is a volume as the storage knows it. The driver treats maps and pointers in it as
// read-only.
type Volume struct {
	ID            string
	Name          string // the CO's
	CapacityBytes int64
	Parameters    map[string]string // as in the VolumeSpec
	Context       map[string]string // volume_context, for the nodes; fixed at creation
	Source        *Source           // what it was created from; nil: nothing
}

// VolumeSpec is a request for CreateVolume.
type VolumeSpec struct {
	Name       string
	Capacity   CapacityRange
	Parameters map[string]string // of the StorageClass, without those that sidecars add
	Metadata   map[string]string // those, such as csi.storage.k8s.io/pvc/name
	MountFlags []string          // of all capabilities: the mountOptions of the StorageClass
	Source     *Source           // nil: an empty volume
	Secrets    map[string]string
}

// Source names a volume or a snapshot.
type Source struct {
	VolumeID   string `json:"volume_id,omitempty"`
	SnapshotID string `json:"snapshot_id,omitempty"`
}

// String returns the ID, "" for a nil one.
func (s *Source) String() string {
	if s == nil {
		return ""
	}
	return s.VolumeID + s.SnapshotID
}

// CapacityRange is in bytes; 0 is no bound.
type CapacityRange struct {
	Required, Limit int64
}

// Contains reports whether a volume of size bytes satisfies the range.
func (r CapacityRange) Contains(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// String returns the range for messages.
func (r CapacityRange) String() string {
	if r.Limit == 0 {
		return fmt.Sprintf("%d or more bytes", r.Required)
	}
	return fmt.Sprintf("%d to %d bytes", r.Required, r.Limit)
}
