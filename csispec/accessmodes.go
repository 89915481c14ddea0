package csispec

import "github.com/container-storage-interface/spec/lib/go/csi"

// IsSinglePublish reports whether an access mode allows a volume to be published at only
// one target path of a node: SINGLE_NODE_WRITER, SINGLE_NODE_READER_ONLY and
// SINGLE_NODE_SINGLE_WRITER. A NodePublishVolume for a second target path is
// FAILED_PRECONDITION then (the table at NodePublishVolume in the specification). It is
// false for UNKNOWN and for modes that CSI v1.13 does not declare.
func IsSinglePublish(mode csi.VolumeCapability_AccessMode_Mode) bool {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return true
	}
	return false
}
