package volumelock

import (
	"cmp"
	"fmt"
	"strconv"
)

// Kind is what a key stands for. Keys of different kinds never meet.
type Kind uint8

// The controller's work on a volume and the node's have kinds of their own,
// because one process may serve both from one table: sidecars and kubelet are
// independent callers, and kubelet expanding a file system must not be refused
// since external-attacher is busy with another node. What has to be ordered
// between the two sides, the CO orders.
const (
	Volume       Kind = iota + 1 // a volume ID, on the controller's side
	VolumeName                   // the name in CreateVolume, before there is an ID
	VolumeAttach                 // a volume ID: to which nodes the volume is attached
	VolumeNode                   // one attachment; see VolumeNodeKey
	NodeVolume                   // a volume ID, on the side of this node
	Target                       // a target path on this node
	Snapshot                     // a snapshot ID
	SnapshotName                 // the name in CreateSnapshot
	Group                        // a group snapshot ID
	GroupName                    // the name in CreateVolumeGroupSnapshot
)

var kindNames = [...]string{
	Volume:       "volume",
	VolumeName:   "volume_name",
	VolumeAttach: "volume_attach",
	VolumeNode:   "volume_node",
	NodeVolume:   "node_volume",
	Target:       "target_path",
	Snapshot:     "snapshot",
	SnapshotName: "snapshot_name",
	Group:        "group_snapshot",
	GroupName:    "group_snapshot_name",
}

// String returns the name of the kind, as in "node_volume".
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "kind_" + strconv.Itoa(int(k))
}

// Key names what is locked.
type Key struct {
	Kind Kind
	ID   string
}

// VolumeNodeKey returns the key of the attachment of a volume to a node. Both
// IDs may hold any character, and no two pairs share a key.
func VolumeNodeKey(volumeID, nodeID string) Key {
	// The length says where the volume ID ends; no separator could, since CSI
	// leaves the content of both to the plugin.
	return Key{VolumeNode, strconv.Itoa(len(volumeID)) + ":" + volumeID + "@" + nodeID}
}

// String returns the kind and the quoted ID.
func (k Key) String() string { return fmt.Sprintf("%s %q", k.Kind, k.ID) }

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.ID, other.ID))
}

// Mode is how a key is taken.
type Mode uint8

const (
	Exclusive Mode = iota // beside nobody
	Shared                // beside others that are Shared
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// Request asks for a key. The zero Mode is Exclusive, and so is any but Shared.
type Request struct {
	Key  Key
	Mode Mode
}
