package main

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// export is a directory that an NFS server exports, and how the driver reaches it.
// It is comparable: equal exports share one mount.
type export struct {
	Server  string // host name in lower case, or IP address
	Share   string // absolute path on the server
	Options string // the mount options needed to reach the server, such as "port=2050", sorted; usually ""
}

func (e export) String() string { return e.source("") }

// source returns the mount source of a directory of the export.
func (e export) source(subDir string) string {
	server := e.Server
	if strings.Contains(server, ":") {
		server = "[" + server + "]"
	}
	return server + ":" + path.Join(e.Share, subDir)
}

func (e export) options() []string {
	if e.Options == "" {
		return nil
	}
	return strings.Split(e.Options, ",")
}

// onDelete is what DeleteVolume does with the directory.
type onDelete string

const (
	deleteDir  onDelete = "delete"
	retainDir  onDelete = "retain"
	archiveDir onDelete = "archive"
)

// volumeRef is a parsed volume ID. It has all that DeleteVolume needs, which gets no
// parameters.
type volumeRef struct {
	export
	SubDir   string // relative to the share
	Digest   string // of the subDir, in place of it if the ID would be too long
	Nonce    string // distinguishes it from earlier volumes with the subDir; "" of a volume that is not created yet
	OnDelete onDelete
}

// key returns the file name of the volume's records.
func (r volumeRef) key() string {
	if r.Digest != "" {
		return r.Digest
	}
	return digest(r.SubDir)
}

// isAt reports whether a mount source is the volume's, of which only the digest may be known.
func (r volumeRef) isAt(source string) bool {
	subDir, ok := strings.CutPrefix(source, strings.TrimSuffix(r.source(""), "/")+"/")
	return ok && digest(subDir) == r.key()
}

// place identifies the volume's directory, for locks.
func (r volumeRef) place() string { return r.export.String() + separator + r.key() }

// snapshotRef is a parsed snapshot ID.
type snapshotRef struct {
	export
	Key   string // 32 hexadecimal digits, derived from the name
	Nonce string // as in volumeRef
}

// place identifies the snapshot's directory, for locks.
func (r snapshotRef) place() string { return r.export.String() + separator + r.Key }

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
	volumeKind   = "vol1"
	digestKind   = "vol1d"
	snapshotKind = "snap1"
	separator    = "#"
	maxID        = 128 // the spec's limit for a string

	nonceLength = 13 // of 5 bits each
	nonceField  = 4  // of all kinds
)

func newNonce() string { return rand.Text()[:nonceLength] }

// nonceOf returns the nonce of a valid ID.
func nonceOf(id string) string { return strings.Split(id, separator)[nonceField] }

func (r volumeRef) encode() string {
	if r.Digest == "" {
		if id := joinID(volumeKind, r.Server, r.Share, r.SubDir, r.Nonce, string(r.OnDelete), r.Options); len(id) <= maxID {
			return id
		}
	}
	return joinID(digestKind, r.Server, r.Share, r.key(), r.Nonce, string(r.OnDelete), r.Options)
}

func (r snapshotRef) encode() string {
	return joinID(snapshotKind, r.Server, r.Share, r.Key, r.Nonce, r.Options)
}

func joinID(fields ...string) string {
	return strings.TrimSuffix(strings.Join(fields, separator), separator) // without options
}

func parseVolumeID(id string) (volumeRef, error) {
	kind := volumeKind
	if strings.HasPrefix(id, digestKind+separator) {
		kind = digestKind
	}
	fields, err := splitID(id, kind, 6)
	if err != nil {
		return volumeRef{}, err
	}
	r := volumeRef{export: export{fields[1], fields[2], fields[6]}, Nonce: fields[nonceField], OnDelete: onDelete(fields[5])}
	if kind == volumeKind {
		r.SubDir = fields[3]
	} else if r.Digest = fields[3]; r.Digest == "" {
		return volumeRef{}, fmt.Errorf("%q has no digest", id)
	}
	if err := r.check(); err != nil {
		return volumeRef{}, err
	}
	if r.encode() != id {
		return volumeRef{}, fmt.Errorf("%q is not in the canonical form of a volume ID", id)
	}
	return r, nil
}

func parseSnapshotID(id string) (snapshotRef, error) {
	fields, err := splitID(id, snapshotKind, 5)
	if err != nil {
		return snapshotRef{}, err
	}
	r := snapshotRef{export{fields[1], fields[2], fields[5]}, fields[3], fields[nonceField]}
	if err := r.check(); err != nil {
		return snapshotRef{}, err
	}
	if !digestText.MatchString(r.Key) || r.encode() != id {
		return snapshotRef{}, fmt.Errorf("%q is not in the canonical form of a snapshot ID", id)
	}
	return r, nil
}

// splitID returns n+1 fields, the last of which, the options, may be empty. The nonce
// is valid.
func splitID(id, kind string, n int) ([]string, error) {
	fields := strings.Split(id, separator)
	if len(id) > maxID || fields[0] != kind || len(fields) < n || len(fields) > n+1 {
		return nil, fmt.Errorf("%.*q is not an ID of this driver: its fields must be %s#server#/share and those that follow in an ID of this driver", maxID, id, kind)
	}
	if !nonceText.MatchString(fields[nonceField]) {
		return nil, fmt.Errorf("%q has the nonce %q: want %d characters from A to Z and 2 to 7", id, fields[nonceField], nonceLength)
	}
	return append(fields, "")[:n+1], nil
}

func (r volumeRef) check() error {
	if err := r.export.check(); err != nil {
		return err
	}
	if r.Digest == "" {
		if err := checkSubDir(r.SubDir); err != nil {
			return err
		}
	} else if !digestText.MatchString(r.Digest) {
		return fmt.Errorf("digest %q: want 32 hexadecimal digits", r.Digest)
	}
	if !slices.Contains([]onDelete{deleteDir, retainDir, archiveDir}, r.OnDelete) {
		return fmt.Errorf("onDelete %q: want delete, retain or archive", r.OnDelete)
	}
	return nil
}

var (
	hostName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	digestText = regexp.MustCompile(`^[0-9a-f]{32}$`)
	nonceText  = regexp.MustCompile(`^[A-Z2-7]{13}$`)
)

func (e export) check() error {
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
	if want, err := essentialOptions(e.options()); err != nil || want != e.Options {
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
		case strings.HasPrefix(part, storeName):
			return fmt.Errorf("subDir %q: names that begin with %s are reserved", subDir, storeName)
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
