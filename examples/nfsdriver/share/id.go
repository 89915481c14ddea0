// Package share has what follows from a request alone for volumes that are directories of a
// server's exports: volume IDs that say where a volume is, the parameters of a StorageClass,
// and the options to mount with. It is for the implementations of package storage, which
// may use or replace any part of it. Nothing in it does I/O.
package share

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/csikit/csikit/breaker"
)

// Export is a directory that an NFS server exports, and how the driver reaches it.
// It is comparable: equal exports share one mount.
type Export struct {
	Server  string // host name in lower case, or IP address
	Share   string // absolute path on the server
	Options string // the mount options needed to reach the server, such as "port=2050", sorted; usually ""
}

// String returns the mount source of the export.
func (e Export) String() string { return e.Source("") }

// Source returns the mount source of a directory of the export.
func (e Export) Source(subDir string) string {
	server := e.Server
	if strings.Contains(server, ":") {
		server = "[" + server + "]"
	}
	return server + ":" + path.Join(e.Share, subDir)
}

// Compare compares server and share, but not the options.
func (e Export) Compare(b Export) int {
	return cmp.Or(cmp.Compare(e.Server, b.Server), cmp.Compare(e.Share, b.Share))
}

// Breaker returns the export's server, which is dialled before a call that could block in
// the kernel.
func (e Export) Breaker() breaker.Server {
	address := e.address()
	if address == "" {
		return breaker.Server{Name: e.Server}
	}
	return breaker.Server{Name: e.Server, Probe: func(ctx context.Context) error {
		err := breaker.DialTCP(address)(ctx)
		if err != nil {
			err = fmt.Errorf("no response at %s; if the server uses another port for NFS, set the mount option port: %w", address, err)
		}
		return err
	}}
}

// address returns the TCP address of the server, "" if it is not reached by TCP.
func (e Export) address() string {
	port := "2049"
	for _, option := range e.OptionList() {
		key, value := canonical(option)
		switch {
		case key == "port":
			return net.JoinHostPort(e.Server, value)
		case key == "vers" && strings.HasPrefix(value, "3"):
			port = "111" // mount.nfs asks there for the ports
		case key == "proto" && !strings.HasPrefix(value, "tcp"):
			return ""
		}
	}
	return net.JoinHostPort(e.Server, port)
}

// OptionList returns Options, split.
func (e Export) OptionList() []string {
	if e.Options == "" {
		return nil
	}
	return strings.Split(e.Options, ",")
}

// OnDelete is what DeleteVolume does with the directory.
type OnDelete string

// The values of OnDelete.
const (
	Delete  OnDelete = "delete"
	Retain  OnDelete = "retain"
	Archive OnDelete = "archive"
)

// VolumeRef is a parsed volume ID. It has all that DeleteVolume needs, which gets no
// parameters.
type VolumeRef struct {
	Export
	SubDir   string // relative to the share
	Digest   string // of the subDir, in place of it if the ID would be too long
	Nonce    string // distinguishes it from earlier volumes with the subDir; "" of a volume that is not created yet
	OnDelete OnDelete
}

// Key returns 32 hexadecimal digits that stand for the subDir, such as the file name
// of the volume's records.
func (r VolumeRef) Key() string {
	if r.Digest != "" {
		return r.Digest
	}
	return Digest(r.SubDir)
}

// IsAt reports whether a mount source is the volume's, of which only the digest may be known.
func (r VolumeRef) IsAt(source string) bool {
	subDir, ok := strings.CutPrefix(source, strings.TrimSuffix(r.Source(""), "/")+"/")
	return ok && Digest(subDir) == r.Key()
}

// Context returns the volume_context of the volume.
func (r VolumeRef) Context() map[string]string {
	return map[string]string{ParamServer: r.Server, ParamShare: r.Share, ParamSubDir: r.SubDir}
}

// place identifies the volume's directory, for locks.
func (r VolumeRef) place() string { return r.Export.String() + separator + r.Key() }

// SnapshotRef is a parsed snapshot ID.
type SnapshotRef struct {
	Export
	Key   string // 32 hexadecimal digits, derived from the name
	Nonce string // as in VolumeRef
}

// place identifies the snapshot's directory, for locks.
func (r SnapshotRef) place() string { return r.Export.String() + separator + r.Key }

// An ID consists of a prefix for kind and version, and the fields in a fixed order:
//
//	vol1#server#/share#sub/dir#ABCDEFGHIJKLM#delete[#options]
//	vol1d#server#/share#0123456789abcdef0123456789abcdef#ABCDEFGHIJKLM#delete[#options]
//	snap1#server#/share#0123456789abcdef0123456789abcdef#ABCDEFGHIJKLM[#options]
//
// The second form is for a subDir that does not fit into the first: its digest suffices
// to find the record, and a node has the subDir in the volume's attributes.
//
// All fields except the nonce follow from the request, and locate the record. Each
// creation has a new nonce, and the record must contain the same one: a late call for
// a deleted volume never affects a volume that was created in its place. A node does not
// read the records. It mounts what is at the path.
//
// A text is an ID only if it equals what the encoder returns for its fields: a path has
// only one canonical form, and cannot leave the export.
const (
	// MaxID is the spec's limit for a string, in bytes.
	MaxID = 128
	// Reserved begins no name in a subDir: the storage may have files of its own there.
	Reserved = ".csikit-nfs"

	volumeKind   = "vol1"
	digestKind   = "vol1d"
	snapshotKind = "snap1"
	separator    = "#"

	nonceLength = 13 // of 5 bits each
	nonceField  = 4  // of all kinds
)

// NewNonce returns a random nonce.
func NewNonce() string { return rand.Text()[:nonceLength] }

// NonceOf returns the nonce of a valid ID.
func NonceOf(id string) string { return strings.Split(id, separator)[nonceField] }

// Encode returns the ID.
func (r VolumeRef) Encode() string {
	if r.Digest == "" {
		if id := joinID(volumeKind, r.Server, r.Share, r.SubDir, r.Nonce, string(r.OnDelete), r.Options); len(id) <= MaxID {
			return id
		}
	}
	return joinID(digestKind, r.Server, r.Share, r.Key(), r.Nonce, string(r.OnDelete), r.Options)
}

// Encode returns the ID.
func (r SnapshotRef) Encode() string {
	return joinID(snapshotKind, r.Server, r.Share, r.Key, r.Nonce, r.Options)
}

func joinID(fields ...string) string {
	return strings.TrimSuffix(strings.Join(fields, separator), separator) // without options
}

// ParseVolumeID parses a volume ID in its canonical form.
func ParseVolumeID(id string) (VolumeRef, error) {
	kind := volumeKind
	if strings.HasPrefix(id, digestKind+separator) {
		kind = digestKind
	}
	fields, err := splitID(id, kind, 6)
	if err != nil {
		return VolumeRef{}, err
	}
	r := VolumeRef{Export: Export{fields[1], fields[2], fields[6]}, Nonce: fields[nonceField], OnDelete: OnDelete(fields[5])}
	if kind == volumeKind {
		r.SubDir = fields[3]
	} else if r.Digest = fields[3]; r.Digest == "" {
		return VolumeRef{}, fmt.Errorf("%q has no digest", id)
	}
	if err := r.Check(); err != nil {
		return VolumeRef{}, err
	}
	if r.Encode() != id {
		return VolumeRef{}, fmt.Errorf("%q is not in the canonical form of a volume ID", id)
	}
	return r, nil
}

// ParseSnapshotID parses a snapshot ID in its canonical form.
func ParseSnapshotID(id string) (SnapshotRef, error) {
	fields, err := splitID(id, snapshotKind, 5)
	if err != nil {
		return SnapshotRef{}, err
	}
	r := SnapshotRef{Export{fields[1], fields[2], fields[5]}, fields[3], fields[nonceField]}
	if err := r.check(); err != nil {
		return SnapshotRef{}, err
	}
	if !digestText.MatchString(r.Key) || r.Encode() != id {
		return SnapshotRef{}, fmt.Errorf("%q is not in the canonical form of a snapshot ID", id)
	}
	return r, nil
}

// splitID returns n+1 fields, the last of which, the options, may be empty. The nonce
// is valid.
func splitID(id, kind string, n int) ([]string, error) {
	fields := strings.Split(id, separator)
	if len(id) > MaxID || fields[0] != kind || len(fields) < n || len(fields) > n+1 {
		return nil, fmt.Errorf("%.*q is not an ID of this driver: its fields must be %s#server#/share and those that follow in an ID of this driver", MaxID, id, kind)
	}
	if !nonceText.MatchString(fields[nonceField]) {
		return nil, fmt.Errorf("%q has the nonce %q: want %d characters from A to Z and 2 to 7", id, fields[nonceField], nonceLength)
	}
	return append(fields, "")[:n+1], nil
}

// Check returns what is not possible in the ID.
func (r VolumeRef) Check() error {
	if err := r.Export.check(); err != nil {
		return err
	}
	if r.Digest == "" {
		if err := checkSubDir(r.SubDir); err != nil {
			return err
		}
	} else if !digestText.MatchString(r.Digest) {
		return fmt.Errorf("digest %q: want 32 hexadecimal digits", r.Digest)
	}
	if !slices.Contains([]OnDelete{Delete, Retain, Archive}, r.OnDelete) {
		return fmt.Errorf("onDelete %q: want delete, retain or archive", r.OnDelete)
	}
	return nil
}

var (
	hostName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	digestText = regexp.MustCompile(`^[0-9a-f]{32}$`)
	nonceText  = regexp.MustCompile(`^[A-Z2-7]{13}$`)
)

func (e Export) check() error {
	if addr, err := netip.ParseAddr(e.Server); err == nil {
		if addr.String() != e.Server || addr.Zone() != "" {
			return fmt.Errorf("server %q: write the address as %s", e.Server, addr.WithZone(""))
		}
	} else if !hostName.MatchString(e.Server) || len(e.Server) > 253 {
		return fmt.Errorf("server %q: want a host name in lower case, or an IP address without brackets", e.Server)
	}
	if err := checkShare(e.Share); err != nil {
		return err
	}
	if want, err := essentialOptions(e.OptionList()); err != nil || want != e.Options {
		return fmt.Errorf("mount options %q: want only %s, sorted", e.Options, strings.Join(essential, ", "))
	}
	return nil
}

func checkShare(share string) error {
	if !path.IsAbs(share) || path.Clean(share) != share {
		return fmt.Errorf("share %q: want an absolute path without '..', '.' and empty components", share)
	}
	return checkText("share", share)
}

const (
	maxSubDir = 1000 // servers and mount.nfs accept little more
	maxName   = 255
)

// checkSubDir accepts a relative path without empty, '.' and '..' components.
func checkSubDir(subDir string) error {
	if len(subDir) > maxSubDir {
		return fmt.Errorf("subDir %.20q...: has %d bytes, the limit is %d", subDir, len(subDir), maxSubDir)
	}
	for part := range strings.SplitSeq(subDir, "/") {
		switch {
		case part == "":
			return fmt.Errorf("subDir %q: has an empty component", subDir)
		case len(part) > maxName:
			return fmt.Errorf("subDir %.20q...: has a component of %d bytes, the limit is %d", part, len(part), maxName)
		case part == "." || part == "..":
			return fmt.Errorf("subDir %q: has the component %q", subDir, part)
		case strings.HasPrefix(part, Reserved):
			return fmt.Errorf("subDir %q: names that begin with %s are reserved", subDir, Reserved)
		}
	}
	return checkText("subDir", subDir)
}

// checkText refuses characters that would end a field of an ID, or that are ambiguous in
// a log or for a server.
func checkText(what, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s %q: is not UTF-8", what, s)
	}
	for _, r := range s {
		if r == '#' || r == '\\' || !unicode.IsPrint(r) {
			return fmt.Errorf("%s %q: contains the character %q", what, s, r)
		}
	}
	return nil
}
