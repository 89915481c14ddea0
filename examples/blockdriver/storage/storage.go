// Package storage is what the driver needs of a storage system, and what you implement for
// yours: [Backend] for the controller, [Devices] for the nodes, and [Provider] to start
// them. Abilities beyond those are interfaces of their own, such as [Snapshotter]: the
// driver reports the CSI capabilities of those that your Backend implements.
//
// Package storagetest checks an implementation; package memory is a small one to read.
package storage

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/topology"
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
	// DeleteVolume deletes the volume and its data. It is a no-op for a volume that does
	// not exist; [ErrInUse] for one that is attached. An ID must never be
	// reused: a delete may arrive late, when the name has been created again.
	DeleteVolume(ctx context.Context, id string) error
	// ExpandVolume grows the volume into r. It is a no-op for a volume that is large
	// enough. See [Volume.GrownSize].
	ExpandVolume(ctx context.Context, id string, r CapacityRange) (Volume, error)
	// GetVolume returns csierr.NotFound for a volume that does not exist.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// ListVolumes returns at most limit volumes (0: all), from the one after the token.
	// An empty token starts at the beginning; next is empty at the end. A token that is
	// not from this list is [ErrBadToken].
	ListVolumes(ctx context.Context, after string, limit int) (page []Volume, next string, err error)

	// AttachVolume makes the volume available to a.NodeID, and returns what
	// [Devices] needs there; the same for a repeated call. csierr.NotFound is also for a node
	// that does not exist, [ErrInUse] for a volume that is attached to another node,
	// csierr.Conflict for one that is attached to this node otherwise, and
	// csierr.NoSpace for a node that takes no more volumes.
	AttachVolume(ctx context.Context, id string, a Attachment) (publishContext map[string]string, err error)
	// DetachVolume takes the volume from the node, or from every node if nodeID is empty.
	// It is a no-op for a volume that is not attached or does not exist.
	DetachVolume(ctx context.Context, id, nodeID string) error

	// Places returns from where the storage is accessible, and how large a new volume with
	// these parameters may be there. Parameters that CreateVolume refuses are csierr.Invalid.
	Places(ctx context.Context, parameters map[string]string) ([]topology.Candidate, error)
}

// AccessBlock is the access type of a raw block volume. That of any other volume is the
// name of its file system.
const AccessBlock = "block"

// Volume is a volume as the storage knows it. The driver treats maps and pointers in it as
// read-only.
type Volume struct {
	ID            string
	Name          string // the CO's
	CapacityBytes int64
	AccessType    string            // AccessBlock, or a file system; fixed at creation
	Parameters    map[string]string // as in the VolumeSpec
	Context       map[string]string // volume_context, for the nodes; fixed at creation
	Mutable       map[string]string // parameters that [Modifier] changes
	Source        *Source           // what it was created from; nil: nothing
	HoldsData     bool              // it was not blank when it was created: never format it
	Prezeroed     bool              // what was never written reads as zeros: mkfs does not write them
	Attachment    *Attachment       // nil: not attached
	Segments      topology.Segments // from where it is accessible; none: from everywhere
}

// VolumeSpec is a request for CreateVolume.
type VolumeSpec struct {
	Name       string
	Capacity   CapacityRange
	AccessType string
	Parameters map[string]string // of the StorageClass, without those that sidecars add
	Mutable    map[string]string // of the VolumeAttributesClass
	Source     *Source           // nil: an empty volume
	// Requirement is from where the volume has to be accessible, for [topology.Choose]; nil:
	// from anywhere.
	Requirement *csi.TopologyRequirement
	Secrets     map[string]string
}

// Source names a volume or a snapshot.
type Source struct {
	VolumeID   string `json:"volume_id,omitempty"`
	SnapshotID string `json:"snapshot_id,omitempty"`
}

// String returns what the source is, for messages; a nil one is "nothing".
func (s *Source) String() string {
	switch {
	case s == nil:
		return "nothing"
	case s.VolumeID != "":
		return "volume " + s.VolumeID
	}
	return "snapshot " + s.SnapshotID
}

// Attachment is to which node a volume is attached, and how. There is at most one, because
// the driver offers no access mode for several nodes.
type Attachment struct {
	NodeID     string `json:"node_id"`
	ReadOnly   bool   `json:"readonly"`
	AccessMode string `json:"access_mode"` // the spec's name, such as SINGLE_NODE_WRITER
}
