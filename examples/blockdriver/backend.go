package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Backend is the part of the controller that a vendor replaces: the storage
// itself. Every method is idempotent, safe for concurrent use and leaves
// nothing half-created behind an error; a method that has begun to change
// something continues when its context ends, because a CO whose call timed out
// repeats the call and does not undo it.
//
// Errors carry the gRPC code that the CO sees (see backendError): a code other
// than ABORTED, CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE promises that
// nothing was done.
type Backend interface {
	// CreateVolume creates the volume, or returns the one of that name when it
	// fits s. errConflict lists the differences. A copy of a large source may take
	// longer than ctx: see [blocking.PendingError].
	CreateVolume(ctx context.Context, s VolumeSpec) (Volume, error)
	// DeleteVolume removes the volume and its data. An unknown volume is no
	// error; an attached one is errInUse.
	DeleteVolume(ctx context.Context, id string) error
	// ExpandVolume grows the volume into r. A volume that is large enough
	// already is left as it is.
	ExpandVolume(ctx context.Context, id string, r CapacityRange) (Volume, error)
	// AttachVolume attaches the volume to a.NodeID and returns the publish
	// context, which is the same on every repeat.
	AttachVolume(ctx context.Context, id string, a Attachment) (publishContext map[string]string, err error)
	// DetachVolume takes the volume from the node, or from every node when
	// nodeID is empty. What is not attached, or not known at all, is no error.
	DetachVolume(ctx context.Context, id, nodeID string) error
	// GetVolume returns errNotFound for a volume that is not there.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// CreateSnapshot creates the snapshot, or returns the one of that name when it
	// fits s. It returns when the snapshot's point in time has passed: what is
	// written to the volume later is not in it. Of an attached volume the snapshot is
	// atomic, or the error is errInUse.
	CreateSnapshot(ctx context.Context, s SnapshotSpec) (Snapshot, error)
	// DeleteSnapshot removes the snapshot. Volumes created from it, and its source, have
	// nothing to do with that. An unknown snapshot is no error.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot returns errNotFound for a snapshot that is not there.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots is as ListVolumes, for the snapshots of one volume, or of all
	// when sourceVolumeID is empty.
	ListSnapshots(ctx context.Context, sourceVolumeID, after string, limit int) (page []Snapshot, next string, err error)
	// Blocks calls each for all ranges of the snapshot that hold data, or with a base
	// for those that differ from it: in order, and from the offset from on. An error of
	// each ends it and is returned as it is.
	Blocks(ctx context.Context, baseID, id string, from int64, each func(at, size int64) error) error
	// CreateGroup creates snapshots of all the volumes at one point in time, or returns
	// the group of that name. Where the backend cannot do that it is errInUse.
	CreateGroup(ctx context.Context, s GroupSpec) (Group, error)
	// DeleteGroup removes the group and its snapshots, which snapshotIDs lists, if it is
	// not empty. An unknown group is no error.
	DeleteGroup(ctx context.Context, id string, snapshotIDs []string) error
	// GetGroup returns errNotFound for a group that is not there.
	GetGroup(ctx context.Context, id string, snapshotIDs []string) (Group, error)
	// Places returns from where the storage is accessible and what is free there,
	// for the choice of a place and for GetCapacity.
	Places(ctx context.Context) ([]topology.Candidate, error)
	// CheckVolume looks what is wrong with the volume, on the storage and not in what
	// is remembered of it.
	CheckVolume(ctx context.Context, id string) ([]Problem, error)
	// ModifyVolume changes the mutable parameters that are given. They were checked.
	ModifyVolume(ctx context.Context, id string, mutable map[string]string) error
	// ListVolumes returns at most limit volumes (0: all) of those that follow
	// the token after. The empty token is the beginning; next is empty at the
	// end.
	ListVolumes(ctx context.Context, after string, limit int) (page []Volume, next string, err error)
}

// accessBlock is the access type of a raw block volume. That of any other
// volume is the name of its file system.
const accessBlock = "block"

// Volume is a volume as the backend knows it. Maps and pointers in it are
// shared: treat them as read-only.
type Volume struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"` // the CO's name
	CapacityBytes int64             `json:"capacity_bytes"`
	AccessType    string            `json:"access_type"` // accessBlock, "ext4" or "xfs"; fixed at creation
	Parameters    map[string]string `json:"parameters,omitempty"`
	Mutable       map[string]string `json:"mutable,omitempty"`    // parameters that ModifyVolume changes
	Source        *Source           `json:"source,omitempty"`     // what it was created from; nil: nothing
	HoldsData     bool              `json:"holds_data,omitempty"` // the source was not blank
	Attachment    *Attachment       `json:"attachment,omitempty"` // nil: not attached
	Generation    int64             `json:"generation,omitempty"` // differs whenever a node may have written to it
	Segments      topology.Segments `json:"-"`                    // from where it is accessible; none: from everywhere
}

// Source names a volume or a snapshot.
type Source struct {
	VolumeID   string `json:"volume_id,omitempty"`
	SnapshotID string `json:"snapshot_id,omitempty"`
}

func (s *Source) String() string {
	switch {
	case s == nil:
		return "nothing"
	case s.VolumeID != "":
		return "volume " + s.VolumeID
	}
	return "snapshot " + s.SnapshotID
}

// Snapshot is a snapshot as the backend knows it. It is ready to use.
type Snapshot struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"` // the CO's name
	SourceVolumeID string    `json:"source_volume_id"`
	SizeBytes      int64     `json:"size_bytes"`
	AccessType     string    `json:"access_type"` // of the source volume
	CreatedAt      time.Time `json:"created_at"`  // the point in time
	HoldsData      bool      `json:"holds_data,omitempty"`
	GroupID        string    `json:"group_id,omitempty"`
}

// Group is a group snapshot. Its snapshots have one point in time.
type Group struct {
	ID        string        `json:"id"`
	Name      string        `json:"name"` // the CO's name
	CreatedAt time.Time     `json:"created_at"`
	Members   []GroupMember `json:"members"`
	Snapshots []Snapshot    `json:"-"` // those of the members, in this order
}

// GroupMember is a volume of a group and the snapshot of it.
type GroupMember struct {
	VolumeID   string `json:"volume_id"`
	SnapshotID string `json:"snapshot_id"`
}

// GroupSpec is what CreateGroup is asked for.
type GroupSpec struct {
	Name      string
	VolumeIDs []string // sorted, each once
}

// SnapshotSpec is what CreateSnapshot is asked for.
type SnapshotSpec struct {
	Name           string
	SourceVolumeID string
}

// differences lists what keeps s from being the snapshot that is described.
func (s Snapshot) differences(wanted SnapshotSpec) []string {
	var diff []string
	if s.Name != wanted.Name {
		diff = append(diff, fmt.Sprintf("name: snapshot has %q, request wants %q", s.Name, wanted.Name))
	}
	if s.SourceVolumeID != wanted.SourceVolumeID {
		diff = append(diff, fmt.Sprintf("source volume: snapshot has %s, request wants %s", s.SourceVolumeID, wanted.SourceVolumeID))
	}
	if s.GroupID != "" {
		diff = append(diff, fmt.Sprintf("it is a part of the group snapshot %s", s.GroupID))
	}
	return diff
}

// Attachment says to which node a volume is attached, and how. One is enough:
// no multi-node access mode is offered.
type Attachment struct {
	NodeID     string `json:"node_id"`
	ReadOnly   bool   `json:"readonly"`
	AccessMode string `json:"access_mode"` // the spec's name, such as SINGLE_NODE_WRITER
	// Generation is set by AttachVolume: no other attachment of the volume has it.
	Generation int64 `json:"generation,omitempty"`
}

// VolumeSpec is what CreateVolume is asked for.
type VolumeSpec struct {
	Name       string
	Capacity   CapacityRange
	AccessType string
	Parameters map[string]string
	Mutable    map[string]string
	Source     *Source // nil: an empty volume
	// Requirement says from where the volume has to be accessible; nil: from
	// anywhere. It was checked for what the spec forbids.
	Requirement *csi.TopologyRequirement `json:"-"`
}

// CapacityRange holds bytes; 0 means that this end is open.
type CapacityRange struct {
	Required, Limit int64
}

func (r CapacityRange) contains(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// differences lists all that keeps v from being the volume that s describes, so
// that the error shows every mismatch at the first attempt.
func (v Volume) differences(s VolumeSpec) []string {
	var diff []string
	if v.Name != s.Name {
		diff = append(diff, fmt.Sprintf("name: volume has %q, request wants %q", v.Name, s.Name))
	}
	if !s.Capacity.contains(v.CapacityBytes) {
		diff = append(diff, fmt.Sprintf("capacity: volume has %d bytes, request wants %d to %s",
			v.CapacityBytes, s.Capacity.Required, limitText(s.Capacity.Limit)))
	}
	if v.AccessType != s.AccessType {
		diff = append(diff, fmt.Sprintf("access type: volume has %s, request wants %s", v.AccessType, s.AccessType))
	}
	if has, wants := v.Source.String(), s.Source.String(); has != wants {
		diff = append(diff, fmt.Sprintf("source: volume was made from %s, request wants %s", has, wants))
	}
	if ok, err := topology.Satisfies(s.Requirement, v.Segments); !ok {
		diff = append(diff, fmt.Sprintf("accessibility_requirements: the volume is accessible from %s (%v)", v.Segments, err))
	}
	diff = append(diff, parameterDifferences("parameters", v.Parameters, s.Parameters)...)
	return append(diff, parameterDifferences("mutable_parameters", v.Mutable, s.Mutable)...)
}

// checkIs returns errConflict if v is not the volume that s describes.
func (v Volume) checkIs(s VolumeSpec) error {
	if diff := v.differences(s); len(diff) > 0 {
		return fmt.Errorf("volume %s %w: %s; use another name or delete it first", v.ID, errConflict, strings.Join(diff, "; "))
	}
	return nil
}

func parameterDifferences(field string, has, wants map[string]string) (diff []string) {
	keys := map[string]bool{}
	for _, m := range []map[string]string{has, wants} {
		for key := range m {
			keys[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		h, inVolume := has[key]
		w, inSpec := wants[key]
		if inVolume != inSpec || h != w {
			diff = append(diff, fmt.Sprintf("%s[%q]: volume has %q, request wants %q", field, key, h, w))
		}
	}
	return diff
}

func limitText(limit int64) string {
	if limit == 0 {
		return "any"
	}
	return fmt.Sprint(limit)
}

// differences lists what keeps a from being the attachment that is asked for on
// the same node.
func (a Attachment) differences(wanted Attachment) []string {
	var diff []string
	if a.ReadOnly != wanted.ReadOnly {
		diff = append(diff, fmt.Sprintf("readonly: attached with %t, request wants %t", a.ReadOnly, wanted.ReadOnly))
	}
	if a.AccessMode != wanted.AccessMode {
		diff = append(diff, fmt.Sprintf("access mode: attached with %s, request wants %s", a.AccessMode, wanted.AccessMode))
	}
	return diff
}

// The kinds of failure that a caller can act on. Everything else is an I/O
// error.
var (
	errNotFound    = errors.New("not found")
	errConflict    = errors.New("exists with other properties")
	errNoNode      = fmt.Errorf("%w", errNotFound)
	errInUse       = errors.New("in use")
	errUnreachable = errors.New("not accessible")
	errOutOfRange  = errors.New("out of range")
	errFull        = errors.New("no space")
	errBusy        = errors.New("another operation is pending")
	errInvalid     = errors.New("not possible")
	errBadToken    = errors.New("not a token of this list")
	errDamaged     = errors.New("damaged")
)

// codeOf is the one place where failures become gRPC codes.
var codeOf = []struct {
	kind error
	code codes.Code
}{
	{errNotFound, codes.NotFound},
	{errConflict, codes.AlreadyExists},
	{errInUse, codes.FailedPrecondition},
	{errUnreachable, codes.FailedPrecondition},
	{errOutOfRange, codes.OutOfRange},
	{errFull, codes.ResourceExhausted},
	{errBusy, codes.Aborted},
	{errInvalid, codes.InvalidArgument},
	{errBadToken, codes.Aborted},
	{errDamaged, codes.DataLoss},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// backendError is what the backend's methods return.
type backendError struct {
	Op     string // "create volume"
	Object string // the volume's ID or name, the node's ID
	Err    error
}

// fail builds a backendError. To set its kind, format the kind with %w.
func fail(op, object, format string, args ...any) error {
	return &backendError{Op: op, Object: object, Err: fmt.Errorf(format, args...)}
}

// Error quotes the object, because names and unknown IDs come from requests and
// may hold anything.
func (e *backendError) Error() string {
	return fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err)
}

func (e *backendError) Unwrap() error { return e.Err }

// GRPCStatus is the status with the matching code. An I/O error is
// UNAVAILABLE and never INTERNAL: it may have struck after the change became
// visible, and the CO takes INTERNAL as proof that nothing happened and forgets
// the volume.
func (e *backendError) GRPCStatus() *status.Status {
	for _, c := range codeOf {
		if errors.Is(e.Err, c.kind) {
			return status.New(c.code, e.Error())
		}
	}
	return status.New(codes.Unavailable, e.Error())
}
