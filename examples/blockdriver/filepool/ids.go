package filepool

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// The ID of an object says what it is, begins with a digest of its name and ends
// with a random part:
//
//	vol-0f1e2d3c4b5a6978 0123456789abcdef (without the space)
//
// By the first half, its key, an object is found by its name, and so is what was
// begun of one, without another file that could disagree and though its metadata
// cannot be read. The second half is new each time: a call that comes late, for what
// was deleted, never hits what was created again under the name.
//
// IDs of earlier versions continue with the digest, and so have the same key.

const (
	volumeKind   = "vol"
	snapshotKind = "snap"
	groupKind    = "group"

	halfID = 16 // hexadecimal digits
)

// IDs arrive in requests and become file names: only what these match ever does.
var (
	volumeIDPattern   = regexp.MustCompile(`^vol-[0-9a-f]{32}$`)
	snapshotIDPattern = regexp.MustCompile(`^snap-[0-9a-f]{32}$`)
	groupIDPattern    = regexp.MustCompile(`^group-[0-9a-f]{32}$`)

	anyIDPattern = regexp.MustCompile(`^[a-z]+-[0-9a-f]{32}$`)
)

// keyOfName returns what the IDs of all objects of this kind and name begin with.
func keyOfName(kind, name string) string { return kind + "-" + digest(name)[:halfID] }

// keyOf returns the key of an ID; what is no ID is its own.
func keyOf(id string) string {
	if anyIDPattern.MatchString(id) {
		return id[:len(id)-halfID]
	}
	return id
}

func newID(kind, name string) string {
	random := make([]byte, halfID/2)
	rand.Read(random) // never fails
	return keyOfName(kind, name) + hex.EncodeToString(random)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
