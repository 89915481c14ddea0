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

// Backend is the part of the controller that a vendor replaces: the storage
// itself. Every method is idempotent and safe for concurrent use; a method that has
// begun to change something goes on when its context ends, because a CO that gave up
// repeats the call and does not undo it.
//
// Errors carry the gRPC code that the CO sees (see backendError): a code other
// than ABORTED, CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE promises that
// nothing was done.
type Backend interface {
	// CreateVolume makes the volume, empty or as a copy of s.Source, or returns
	// the one that is there when it is what s asks for. errConflict lists the
	// differences.
	CreateVolume(ctx context.Context, s VolumeSpec) (Volume, error)
	// DeleteVolume does what the ID says about the directory. An ID that is not
	// one of this driver, and a volume that is not there, are no error, and nor is the ID
	// of an earlier volume of that name: what has the name now stays.
	DeleteVolume(ctx context.Context, id string) error
	// ExpandVolume promises more capacity.
	ExpandVolume(ctx context.Context, id string, r CapacityRange) (Volume, error)
	// GetVolume returns errNotFound for a volume that is not there.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// ListVolumes returns at most limit volumes (0: all) of those that follow the
	// token after. The empty token is the beginning; next is empty at the end.
	ListVolumes(ctx context.Context, after string, limit int) (page []Volume, next string, err error)

	// CreateSnapshot copies the volume, or returns the snapshot of that name if it
	// is one of that volume, else errConflict. A volume that changes while it is copied
	// is errInUse, unless inUse allows a copy that is of no one moment.
	CreateSnapshot(ctx context.Context, name, volumeID string, inUse bool) (Snapshot, error)
	// DeleteSnapshot removes the copy. What is not there is no error, as for volumes.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot returns errNotFound for a snapshot that is not there.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots is as ListVolumes.
	ListSnapshots(ctx context.Context, after string, limit int) (page []Snapshot, next string, err error)

	// Capacity returns what is free on an export, and its size. Of the empty
	// export it returns those of the one that has the most room.
	Capacity(ctx context.Context, e export) (free, total int64, err error)
}

// Volume is a volume as the backend knows it.
type Volume struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`           // the CO's
	SubDir        string            `json:"sub_dir"`        // relative to the share
	CapacityBytes int64             `json:"capacity_bytes"` // what was asked for; NFS enforces nothing
	Parameters    map[string]string `json:"parameters,omitempty"`
	SourceID      string            `json:"source_id,omitempty"` // of the volume or snapshot that it is a copy of
}

// VolumeSpec is what CreateVolume is asked for.
type VolumeSpec struct {
	Name       string
	Ref        volumeRef // becomes the ID, with a nonce
	Access     access
	Capacity   CapacityRange
	Parameters map[string]string // for comparison with those of a repeated request
	SourceID   string            // of a volume or snapshot; "" makes an empty volume
	CopyInUse  bool              // even if the source changes meanwhile
}

// Snapshot is a copy of a volume.
type Snapshot struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	VolumeID  string    `json:"volume_id"`
	SizeBytes int64     `json:"size_bytes"` // the volume's capacity
	Created   time.Time `json:"created"`    // the moment that the copy is of, or, of what was in use, of its last pass
}

// CapacityRange holds bytes; 0 means that this end is open.
type CapacityRange struct {
	Required, Limit int64
}

func (r CapacityRange) contains(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// differences lists all that keeps v from being the volume that s describes, so
// that whoever reads the error need not find out one mismatch per attempt.
func (v Volume) differences(s VolumeSpec) []string {
	var diff []string
	differ := func(what, has, wants string) {
		if has != wants {
			diff = append(diff, fmt.Sprintf("%s: volume has %q, request wants %q", what, has, wants))
		}
	}
	differ("name", v.Name, s.Name)
	wants := s.Ref
	wants.Nonce = nonceOf(v.ID)
	differ("ID", v.ID, wants.encode())
	differ("source", v.SourceID, s.SourceID)
	if !s.Capacity.contains(v.CapacityBytes) {
		diff = append(diff, fmt.Sprintf("capacity: volume has %d bytes, request wants %d to %d (0: any)", v.CapacityBytes, s.Capacity.Required, s.Capacity.Limit))
	}
	keys := map[string]string{}
	maps.Copy(keys, v.Parameters)
	maps.Copy(keys, s.Parameters)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		differ(fmt.Sprintf("parameters[%q]", key), v.Parameters[key], s.Parameters[key])
	}
	return diff
}

// The kinds of failure that a caller can act on. Everything else is an I/O
// error.
var (
	errNotFound   = errors.New("not found")
	errConflict   = errors.New("exists with other properties")
	errOutOfRange = errors.New("out of range")
	errBusy       = errors.New("another operation is pending")
	errBadToken   = errors.New("not a token of this list")
	errInvalid    = errors.New("invalid")
	errRefused    = errors.New("refused") // somebody has to act
	errInUse      = errors.New("in use")
	errDamaged    = errors.New("damaged")
	errUnsettled  = errors.New("not finished") // it is there, and goes on with the next attempt

	// errMounted: the volume is no whole.
	errMounted = fmt.Errorf("%w: something else is mounted there, which is not the volume's; unmount it on the server", errRefused)
)

// codeOf is the one place where failures become gRPC codes. The errnos are those that
// promise that nothing was done.
var codeOf = []struct {
	kind error
	code codes.Code
}{
	{errUnsettled, codes.Unavailable},
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

// unsettled is for what fails behind the point from which on something exists: an
// errno that otherwise promises that nothing was done does not do so there.
func unsettled(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnsettled, err)
}

// final reports whether the CO takes an error as the end of the request: it may forget
// what it asked for, so nothing must be left.
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

// Error quotes the object, because names and unknown IDs come from requests and
// may hold anything.
func (e *backendError) Error() string {
	text := fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err)
	if errors.Is(e.Err, syscall.EACCES) || errors.Is(e.Err, syscall.EPERM) {
		text += "; the driver works as root: export with no_root_squash"
	}
	if errors.Is(e.Err, syscall.EROFS) {
		text += "; export it read-write"
	}
	return text
}

func (e *backendError) Unwrap() error { return e.Err }

// GRPCStatus makes grpc answer with the code that fits. What has a code already, such
// as a mount that failed, keeps it. An I/O error is UNAVAILABLE and never INTERNAL:
// it may have struck after the change became visible, and the CO takes INTERNAL as
// proof that nothing happened and forgets the volume.
func (e *backendError) GRPCStatus() *status.Status {
	var pending *blocking.PendingError
	if errors.As(e.Err, &pending) { // whatever ended the wait: the work goes on
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
