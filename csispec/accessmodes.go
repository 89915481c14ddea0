package csispec

import "github.com/container-storage-interface/spec/lib/go/csi"

// IsSinglePublish reports whether an access mode allows a volume to be published at only
// one target path of a node: SINGLE_NODE_WRITER, SINGLE_NODE_READER_ONLY and
// SINGLE_NODE_SINGLE_WRITER. A NodePublishVolume for a second target path is
// FAILED_PRECONDITION then (the table at NodePublishVolume in the specification). A plugin
// that enforces it reports SINGLE_NODE_MULTI_WRITER: without that capability kubelet sends
// SINGLE_NODE_WRITER for ReadWriteOnce, which two pods of a node may share. It is
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
