package volumelock

import (
	"cmp"
	"fmt"
	"strconv"
)

// Kind is the kind of object that a key locks. Keys of different kinds never conflict.
type Kind uint8

// The controller's work on a volume and the node's have separate kinds,
// because one process may serve both from one table: sidecars and kubelet are
// independent callers, and an expansion by kubelet must not be refused
// because external-attacher attaches the volume to another node. The CO orders calls
// between the two sides where that is necessary.
const (
	KindVolume            Kind = iota + 1 // a volume ID, for the controller service
	KindVolumeName                        // the name in CreateVolume, before there is an ID
	KindAttachments                       // a volume ID: all attachments of the volume, that is the set of nodes
	KindAttachment                        // the attachment of a volume to one node; see AttachmentKey
	KindVolumeOnNode                      // a volume ID, for the node service: the volume on this node
	KindTarget                            // a target path on this node, cleaned; see DefaultPolicy
	KindSnapshot                          // a snapshot ID
	KindSnapshotName                      // the name in CreateSnapshot
	KindGroupSnapshot                     // a group snapshot ID
	KindGroupSnapshotName                 // the name in CreateVolumeGroupSnapshot
)

var kindNames = [...]string{
	KindVolume:            "volume",
	KindVolumeName:        "volume_name",
	KindAttachments:       "attachments",
	KindAttachment:        "attachment",
	KindVolumeOnNode:      "volume_on_node",
	KindTarget:            "target_path",
	KindSnapshot:          "snapshot",
	KindSnapshotName:      "snapshot_name",
	KindGroupSnapshot:     "group_snapshot",
	KindGroupSnapshotName: "group_snapshot_name",
}

// String returns the name of the kind, as in "volume_on_node".
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "kind_" + strconv.Itoa(int(k))
}

// Key identifies what is locked.
type Key struct {
	Kind Kind
	ID   string
}

// AttachmentKey returns the key of the attachment of a volume to a node. Both
// IDs may hold any character, and different pairs have different keys.
func AttachmentKey(volumeID, nodeID string) Key {
	// The length says where the volume ID ends; no separator could, since CSI
	// leaves the content of both to the plugin.
	return Key{KindAttachment, strconv.Itoa(len(volumeID)) + ":" + volumeID + "@" + nodeID}
}

// String returns the kind and the quoted ID.
func (k Key) String() string { return fmt.Sprintf("%s %q", k.Kind, k.ID) }

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.ID, other.ID))
}

// Mode is shared or exclusive.
type Mode uint8

const (
	Exclusive Mode = iota // conflicts with every other holder
	Shared                // conflicts with Exclusive only
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// Request is a key to be taken. The zero Mode is Exclusive, and so is every value other
// than Shared.
type Request struct {
	Key  Key
	Mode Mode
}
