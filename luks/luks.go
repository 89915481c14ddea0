package luks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/status"
)

// Config configures a [Mapper]. Prefix is required.
type Config struct {
	// Prefix is the beginning of the names of the mappings, such as the name of the driver: 1
	// to 47 letters, digits, '.', '_' and '-'. It has to be the same for the life of a volume
	// on a node, and of one driver alone.
	Prefix string

	// PBKDF is the options of cryptsetup for the key derivation of new keys. nil means
	// argon2id with 64 MiB of memory, the second choice of RFC 9106: the default of
	// cryptsetup, up to 1 GiB for each open, exceeds the memory limit of most containers.
	// A passphrase that was generated with 128 bits or more needs no slow derivation.
	PBKDF []string

	// Logger gets a warning before each format, and every command line at debug level. nil
	// discards the log.
	Logger *slog.Logger

	// Blocking runs the operations, of which the kernel may block each; share one to list all
	// calls in flight in one place. nil creates one for this Mapper.
	Blocking *blocking.Group
}

// Mapper opens encrypted volumes as devices of device-mapper. Create one with [New].
type Mapper struct {
	prefix string
	pbkdf  []string
	log    *slog.Logger

	group              *blocking.Group
	mounting, teardown *blocking.Lane
}

var prefixes = regexp.MustCompile(`^[A-Za-z0-9._-]{1,47}$`)

// New checks the configuration and returns a Mapper. It has no side effects.
func New(cfg Config) (*Mapper, error) {
	if !prefixes.MatchString(cfg.Prefix) {
		return nil, fmt.Errorf("luks: Prefix is %q, want 1 to 47 letters, digits, '.', '_' and '-'", cfg.Prefix)
	}
	m := &Mapper{prefix: cfg.Prefix, pbkdf: cfg.PBKDF, log: cfg.Logger, group: cfg.Blocking}
	if m.pbkdf == nil {
		m.pbkdf = []string{"--pbkdf", "argon2id", "--pbkdf-memory", "65536"}
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.group == nil {
		m.group = new(blocking.Group)
	}
	m.mounting, m.teardown = m.group.Lane(max(m.group.Limit, 0)), m.group.Lane(blocking.NoLimit)
	return m, nil
}

// ErrNotOpen means that no mapping of the volume exists on this node. It is csierr.NotFound.
var ErrNotOpen = csierr.NotFound.New("the volume is not open")

// Error is the error type of every operation. If the caller's context ended while work was
// in flight, errors.As finds an interface{ Pending() <-chan struct{} } in it, whose channel
// is closed when the work ends; the code is DEADLINE_EXCEEDED then.
//
// The kinds, with examples:
//   - [csierr.Invalid]: no passphrase, or two equal ones.
//   - [csierr.Unauthenticated]: a wrong passphrase. Nothing is open that was not before, so
//     it may be final: kubelet repeats the stage with the secret that it reads again.
//   - [csierr.Precondition]: the device does not exist, has another size, holds data, LUKS1 or
//     the header of another volume; a mapping of this name belongs to another device.
//   - [csierr.Conflict]: the volume is open read-only in place of writable, or vice versa.
//   - [csierr.Busy]: the device or the mapping is mounted or in use.
//   - [csierr.NotFound]: the volume is not open (Resize, Find).
//   - [csierr.DataLoss]: both copies of the header are damaged.
//   - [csierr.Uncertain]: a format that failed; a repeat continues.
//   - [csierr.Unknown]: any other error, such as too little memory for the key derivation.
type Error struct {
	Op       string // "open", "close", "resize", "find", "change passphrase of"
	VolumeID string
	Err      error
}

func (e *Error) Error() string { return fmt.Sprintf("%s LUKS volume %s: %v", e.Op, e.VolumeID, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus returns the gRPC status of the error: the code of [csierr.CodeOf], and its text
// as the message.
func (e *Error) GRPCStatus() *status.Status { return status.New(csierr.CodeOf(e.Err), e.Error()) }

// kindf returns an error of a kind.
func kindf(kind csierr.Kind, format string, args ...any) error {
	return &fault{kind, fmt.Errorf(format, args...)}
}

type fault struct {
	kind csierr.Kind
	err  error
}

func (f *fault) Error() string   { return f.err.Error() }
func (f *fault) Unwrap() []error { return []error{f.kind, f.err} }

// Passphrase is the secret that opens a volume: any bytes, compared as they are, so that a
// newline at the end is part of it. It prints as "(hidden)" with every verb.
type Passphrase []byte

// Format implements fmt.Formatter.
func (Passphrase) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// LogValue implements slog.LogValuer.
func (Passphrase) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText keeps the passphrase out of JSON.
func (Passphrase) MarshalText() ([]byte, error) { return []byte(hidden), nil }

const hidden = "(hidden)"

// Mapping is an open volume.
type Mapping struct {
	Name     string // of device-mapper
	Path     string // /dev/mapper/Name: the device with the decrypted data
	Size     int64  // bytes
	ReadOnly bool   // it refuses writes
	Opened   bool   // by this call; false if it was open already
}

// OpenRequest is the parameter of [Mapper.Open].
type OpenRequest struct {
	VolumeID   string
	Device     string // path of the encrypted block device; symbolic links are followed
	Size       int64  // bytes; must equal the size of the device, unless it is 0
	Passphrase Passphrase

	// ReadOnly makes the mapping refuse writes. A blank device is refused then.
	ReadOnly bool

	// MustHoldData states that the volume was formatted before: a blank device is refused.
	MustHoldData bool

	// Copy states that the volume is a copy of another one, such as a clone or a restored
	// snapshot: a blank device is refused, and a header with the label of another volume gets
	// that of this one, if the passphrase opens it.
	Copy bool
}

// Open opens the volume, and formats its device before if that is proven blank. It is
// idempotent: a volume that is open already on this device is returned, without a use of the
// passphrase.
//
// A device is proven blank as in nodeops: everything that could be a signature is read and is
// zero, and blkid finds none. A mark is on the device until the format is complete, so that an
// interrupted one is repeated, on another node as well. The header has the volume's ID as its
// label, and one with another label is refused.
//
// A new volume's mapping is written with zeros wherever a signature could be, and so is blank to
// nodeops: the rest of it reads as noise, which has no meaning. For the same reason
// StageFilesystemRequest.Prezeroed must not be set for it.
//
// If ctx ends, cryptsetup is killed, and what this call has opened is closed. A repeated
// call finds what is left.
func (m *Mapper) Open(ctx context.Context, r OpenRequest) (Mapping, error) {
	if len(r.Passphrase) == 0 {
		return Mapping{}, &Error{"open", r.VolumeID, kindf(csierr.Invalid, "the passphrase is empty")}
	}
	r.Passphrase = bytes.Clone(r.Passphrase) // the operation may outlive the call
	v, err := m.serialized(ctx, m.mounting, "open", r.VolumeID, func() (any, error) { return m.open(ctx, r) })
	opened, _ := v.(Mapping)
	return opened, err
}

// Close closes the volume. It is idempotent: a volume that is not open is no error. It needs
// neither the device nor the passphrase, and works if the device is gone. A mapping that is
// mounted or open is csierr.Busy: unmount it first.
func (m *Mapper) Close(ctx context.Context, volumeID string) error {
	_, err := m.serialized(ctx, m.teardown, "close", volumeID, func() (any, error) { return nil, m.close(ctx, nameOf(m.prefix, volumeID)) })
	return err
}

// Find returns the open volume: ErrNotOpen if it is not open. It reads only sysfs.
func (m *Mapper) Find(volumeID string) (Mapping, error) {
	found, err := m.find(volumeID)
	if err != nil {
		return Mapping{}, &Error{"find", volumeID, err}
	}
	return found, nil
}

// Resize lets the open volume use the size that its device has now, and returns the size of
// the mapping in bytes. It is idempotent. A smaller device is not a smaller volume: that is
// csierr.Precondition.
//
// The passphrase is needed if the mapping has to grow, because the kernel does not return the
// key: in Kubernetes, it is in the secret for the expansion on the node. A volume that is not
// open needs no Resize: Open always uses the whole device.
func (m *Mapper) Resize(ctx context.Context, volumeID string, p Passphrase) (size int64, err error) {
	p = bytes.Clone(p)
	v, err := m.serialized(ctx, m.mounting, "resize", volumeID, func() (any, error) { return m.resize(ctx, volumeID, p) })
	size, _ = v.(int64)
	return size, err
}

// ChangeRequest is the parameter of [Mapper.ChangePassphrase].
type ChangeRequest struct {
	VolumeID string
	Device   string // path of the encrypted block device
	Old, New Passphrase
}

// ChangePassphrase replaces a passphrase: it adds the new one, verifies that it opens the
// volume, and removes the old one. Other passphrases of the volume are not changed. The volume
// may be open, on this node. A header that cannot be used is the same error as for Open.
//
// It is idempotent: interrupted at any point, the volume opens with the old, the new or both,
// and a repeated call continues. If neither opens the volume, the error is
// csierr.Unauthenticated. A removal that is interrupted after it has destroyed the old key may
// leave its slot, one of 32, in use and without effect: nothing tells it from that of another
// passphrase, so it is not removed. The volume key does not change: who has read that, or an old
// copy of the header with the old passphrase, can still decrypt the data.
func (m *Mapper) ChangePassphrase(ctx context.Context, r ChangeRequest) error {
	r.Old, r.New = bytes.Clone(r.Old), bytes.Clone(r.New)
	_, err := m.serialized(ctx, m.mounting, "change passphrase of", r.VolumeID, func() (any, error) { return nil, m.change(ctx, r) })
	return err
}

// InFlight lists the operations in flight, oldest first.
func (m *Mapper) InFlight() []blocking.Call { return m.group.Snapshot() }

// serialized runs fn as the only operation on the volume. A call that finds another one in
// flight waits for it and then runs its own.
func (m *Mapper) serialized(ctx context.Context, lane *blocking.Lane, op, volumeID string, fn func() (any, error)) (any, error) {
	if volumeID == "" {
		return nil, &Error{op, volumeID, kindf(csierr.Invalid, "the volume ID is empty")}
	}
	for {
		v, joined, err := lane.Do(ctx, "luks "+volumeID, fn)
		var pending *blocking.PendingError
		if joined && !errors.As(err, &pending) {
			if err = ctx.Err(); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, &Error{op, volumeID, err}
		}
		return v, nil
	}
}
