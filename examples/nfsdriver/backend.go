package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/csikit/csikit/blocking"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Backend is the part of the controller that a vendor replaces: the storage.
// Every method is idempotent and safe for concurrent use. A method that has begun a
// change continues when its context ends, because a CO whose call timed out retries it
// and does not undo it.
//
// Errors carry the gRPC code that the CO gets (see backendError): a code other
// than ABORTED, CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE means that nothing was
// changed.
type Backend interface {
	// CreateVolume creates the volume, empty or as a copy of s.SourceID, or returns
	// the existing one if it matches s; if not, errConflict with the differences.
	CreateVolume(ctx context.Context, s VolumeSpec) (Volume, error)
	// DeleteVolume deletes, archives or retains the directory, as the ID says. It is a no-op
	// for an ID that is not of this driver, for a volume that does not exist, and for
	// the ID of an earlier volume: a later one with its name stays.
	DeleteVolume(ctx context.Context, id string) error
	// ExpandVolume records a larger capacity.
	ExpandVolume(ctx context.Context, id string, r CapacityRange) (Volume, error)
	// GetVolume returns errNotFound for a volume that does not exist.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// ListVolumes returns at most limit volumes (0: all), from the one after the token.
	// An empty token starts at the beginning; next is empty at the end.
	ListVolumes(ctx context.Context, after string, limit int) (page []Volume, next string, err error)

	// CreateSnapshot copies the volume, or returns the snapshot of that name, or
	// errConflict if that one is of another volume. A volume that changes while it is
	// copied is errInUse, unless inUse allows a copy that is not of one point in time.
	CreateSnapshot(ctx context.Context, name, volumeID string, inUse bool) (Snapshot, error)
	// DeleteSnapshot removes the copy. As for volumes, it is a no-op if there is none.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot returns errNotFound for a snapshot that does not exist.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots is ListVolumes for snapshots.
	ListSnapshots(ctx context.Context, after string, limit int) (page []Snapshot, next string, err error)

	// Capacity returns the free bytes and the size of an export; for the empty export,
	// those of the known export with the most free space.
	Capacity(ctx context.Context, e export) (free, total int64, err error)
}

// Volume is a volume as the backend knows it.
type Volume struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`           // the CO's
	SubDir        string            `json:"sub_dir"`        // relative to the share
	CapacityBytes int64             `json:"capacity_bytes"` // as requested; NFS does not enforce it
	Parameters    map[string]string `json:"parameters,omitempty"`
	SourceID      string            `json:"source_id,omitempty"` // ID of the volume or snapshot it was copied from
}

// VolumeSpec is a request for CreateVolume.
type VolumeSpec struct {
	Name       string
	Ref        volumeRef // becomes the ID, with a nonce
	Access     access
	Capacity   CapacityRange
	Parameters map[string]string // for comparison with those of a repeated request
	SourceID   string            // of a volume or snapshot; "": an empty volume
	CopyInUse  bool              // accept a copy of a source that changes during the copy
}

// Snapshot is a copy of a volume.
type Snapshot struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	VolumeID  string    `json:"volume_id"`
	SizeBytes int64     `json:"size_bytes"` // the volume's capacity
	Created   time.Time `json:"created"`    // the copy's point in time; with copyInUse, the start of the last pass
}

// CapacityRange is in bytes; 0 is no bound.
type CapacityRange struct {
	Required, Limit int64
}

func (r CapacityRange) contains(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// differences lists every mismatch between v and s, so that one error shows them all.
func (v Volume) differences(s VolumeSpec) []string {
	var diff []string
	differ := func(what, has, wants string) {
		if has != wants {
			diff = append(diff, fmt.Sprintf("%s: the volume has %q, the request %q", what, has, wants))
		}
	}
	differ("name", v.Name, s.Name)
	wants := s.Ref
	wants.Nonce = nonceOf(v.ID)
	differ("ID", v.ID, wants.encode())
	differ("source", v.SourceID, s.SourceID)
	if !s.Capacity.contains(v.CapacityBytes) {
		diff = append(diff, fmt.Sprintf("capacity: the volume has %d bytes, the request is for %d to %d (0: any)", v.CapacityBytes, s.Capacity.Required, s.Capacity.Limit))
	}
	keys := map[string]string{}
	maps.Copy(keys, v.Parameters)
	maps.Copy(keys, s.Parameters)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		differ(fmt.Sprintf("parameters[%q]", key), v.Parameters[key], s.Parameters[key])
	}
	return diff
}

// The kinds of failure that a caller can act on. Every other error is an I/O error.
var (
	errNotFound   = errors.New("not found")
	errConflict   = errors.New("exists with other properties")
	errOutOfRange = errors.New("out of range")
	errBusy       = errors.New("another operation is pending")
	errBadToken   = errors.New("not a token of this list")
	errInvalid    = errors.New("invalid")
	errRefused    = errors.New("refused") // an administrator has to act
	errInUse      = errors.New("in use")
	errDamaged    = errors.New("damaged")
	errIncomplete = errors.New("incomplete") // the object exists, and a retry completes it

	// errMounted: the volume is not one file system.
	errMounted = fmt.Errorf("%w: another file system is mounted there, which is not part of the volume; unmount it on the server", errRefused)
)

// codeOf maps errors to gRPC codes. The errnos are those that mean that nothing was
// changed.
var codeOf = []struct {
	kind error
	code codes.Code
}{
	{errIncomplete, codes.Unavailable},
	{errNotFound, codes.NotFound},
	{errConflict, codes.AlreadyExists},
	{errOutOfRange, codes.OutOfRange},
	{errBusy, codes.Aborted},
	{errBadToken, codes.Aborted},
	{errInvalid, codes.InvalidArgument},
	{errRefused, codes.FailedPrecondition},
	{errInUse, codes.FailedPrecondition},
	{errDamaged, codes.DataLoss},
	{syscall.EACCES, codes.FailedPrecondition},
	{syscall.EPERM, codes.FailedPrecondition},
	{syscall.EROFS, codes.FailedPrecondition},
	{syscall.ENOSPC, codes.ResourceExhausted},
	{syscall.EDQUOT, codes.ResourceExhausted},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// incomplete wraps an error that occurred after the object came into existence: an errno
// that otherwise means that nothing was changed does not mean so there.
func incomplete(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return fmt.Errorf("%w: %w", errIncomplete, err)
}

// final reports whether the CO takes the error as final: it may not repeat the request,
// so nothing must be left behind.
func final(err error) bool {
	switch status.Code(fail("", "", "%w", err)) {
	case codes.OK, codes.Aborted, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return false
	}
	return true
}

// backendError is what the backend's methods return.
type backendError struct {
	Op     string // "create volume"
	Object string // the ID or name
	Err    error
}

// fail builds a backendError. To give it a kind, format the kind with %w.
func fail(op, object, format string, args ...any) error {
	return &backendError{Op: op, Object: object, Err: fmt.Errorf(format, args...)}
}

// Error quotes the object, because names and unknown IDs come from requests and may
// contain any characters.
func (e *backendError) Error() string {
	text := fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err)
	if errors.Is(e.Err, syscall.EACCES) || errors.Is(e.Err, syscall.EPERM) {
		text += "; the driver acts as root: export with no_root_squash"
	}
	if errors.Is(e.Err, syscall.EROFS) {
		text += "; export it read-write"
	}
	return text
}

func (e *backendError) Unwrap() error { return e.Err }

// GRPCStatus returns the status for grpc. An error that has a code already, such as
// a mount that failed, keeps it. An I/O error is UNAVAILABLE and never INTERNAL:
// it may have occurred after the change became visible, and the CO takes INTERNAL as
// final and forgets the volume.
func (e *backendError) GRPCStatus() *status.Status {
	var pending *blocking.PendingError
	if errors.As(e.Err, &pending) { // whatever ended the wait: the operation continues
		return status.New(codes.DeadlineExceeded, e.Error())
	}
	for _, c := range codeOf {
		if errors.Is(e.Err, c.kind) {
			return status.New(c.code, e.Error())
		}
	}
	var coded interface{ GRPCStatus() *status.Status }
	if errors.As(e.Err, &coded) && coded.GRPCStatus().Code() != codes.Internal {
		return status.New(coded.GRPCStatus().Code(), e.Error())
	}
	return status.New(codes.Unavailable, e.Error())
}
