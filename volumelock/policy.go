package volumelock

import (
	"path"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Policy returns the keys that a call needs, nil for none. fullMethod is gRPC's name
// of the method, req its request message. A driver that needs other keys for some
// RPCs returns those and delegates the rest to [DefaultPolicy].
type Policy func(fullMethod string, req any) []Request

// DefaultPolicy implements the table in this package's documentation, with
// every RPC of CSI v1.13; a method outside CSI needs no keys.
// It panics when req is not the request of that method. A key whose ID is empty
// in the request is omitted: such a request is invalid, not busy.
//
// Reads take no key: they must not be refused, and what they return may change
// right after anyway. The streams of SnapshotMetadata are reads as well, and may
// take hours; for a snapshot that is being read, the backend refuses deletion with
// FAILED_PRECONDITION, or your own Policy adds a key: [Interceptor] holds it during the
// stream.
//
// CreateVolume locks only the name of its volume, DeleteVolume only the ID: the
// two do not exclude each other, and the same holds for snapshots and groups. A
// driver that derives IDs from names adds the ID's key in its own Policy.
//
// The ID of a KindTarget key is path.Clean of target_path. That is lexical: the file
// system is not read, symbolic links are not resolved, and two paths that lead to one
// directory through a symbolic link have different keys. A CO uses one path for one
// target. The path that is used is serialized where it is resolved: package nodeops runs
// one operation at a time on each resolved path.
func DefaultPolicy(fullMethod string, req any) []Request {
	keys := rules[fullMethod]
	if keys == nil {
		return nil
	}
	return slices.DeleteFunc(keys(req), func(r Request) bool { return r.Key.ID == "" })
}

// rules has one line for every RPC, so that a new RPC in the specification fails a test
// until its keys have been decided.
var rules = map[string]func(req any) []Request{
	csi.Identity_GetPluginInfo_FullMethodName:         none,
	csi.Identity_GetPluginCapabilities_FullMethodName: none,
	csi.Identity_Probe_FullMethodName:                 none,

	csi.Controller_CreateVolume_FullMethodName:               of(createVolume),
	csi.Controller_DeleteVolume_FullMethodName:               of(deleteVolume),
	csi.Controller_ControllerPublishVolume_FullMethodName:    of(controllerPublish),
	csi.Controller_ControllerUnpublishVolume_FullMethodName:  of(controllerUnpublish),
	csi.Controller_ValidateVolumeCapabilities_FullMethodName: none,
	csi.Controller_ListVolumes_FullMethodName:                none,
	csi.Controller_ControllerListVolumeHealth_FullMethodName: none,
	csi.Controller_ControllerGetVolumeHealth_FullMethodName:  none,
	csi.Controller_GetCapacity_FullMethodName:                none,
	csi.Controller_ControllerGetCapabilities_FullMethodName:  none,
	csi.Controller_CreateSnapshot_FullMethodName:             of(createSnapshot),
	csi.Controller_DeleteSnapshot_FullMethodName:             of(deleteSnapshot),
	csi.Controller_ListSnapshots_FullMethodName:              none,
	csi.Controller_GetSnapshot_FullMethodName:                none,
	csi.Controller_ControllerExpandVolume_FullMethodName:     of(controllerExpand),
	csi.Controller_ControllerGetVolume_FullMethodName:        none,
	csi.Controller_ControllerModifyVolume_FullMethodName:     of(controllerModify),

	csi.GroupController_GroupControllerGetCapabilities_FullMethodName: none,
	csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName:      of(createGroupSnapshot),
	csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName:      of(deleteGroupSnapshot),
	csi.GroupController_GetVolumeGroupSnapshot_FullMethodName:         none,

	csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName: none,
	csi.SnapshotMetadata_GetMetadataDelta_FullMethodName:     none,

	csi.Node_NodeStageVolume_FullMethodName:      of(nodeStage),
	csi.Node_NodeUnstageVolume_FullMethodName:    of(nodeUnstage),
	csi.Node_NodePublishVolume_FullMethodName:    of(nodePublish),
	csi.Node_NodeUnpublishVolume_FullMethodName:  of(nodeUnpublish),
	csi.Node_NodeGetVolumeStats_FullMethodName:   none,
	csi.Node_NodeGetVolumeHealth_FullMethodName:  none,
	csi.Node_NodeGetStorageHealth_FullMethodName: none,
	csi.Node_NodeExpandVolume_FullMethodName:     of(nodeExpand),
	csi.Node_NodeGetCapabilities_FullMethodName:  none,
	csi.Node_NodeGetInfo_FullMethodName:          none,
}

func none(any) []Request { return nil }

func of[R any](keys func(R) []Request) func(any) []Request {
	return func(req any) []Request { return keys(req.(R)) }
}

func exclusive(k Kind, id string) Request { return Request{Key{k, id}, Exclusive} }
func shared(k Kind, id string) Request    { return Request{Key{k, id}, Shared} }

// createVolume shares its source, so that clones may be created concurrently while
// the source cannot be deleted.
func createVolume(r *csi.CreateVolumeRequest) []Request {
	source := r.GetVolumeContentSource()
	return []Request{
		exclusive(KindVolumeName, r.GetName()),
		shared(KindVolume, source.GetVolume().GetVolumeId()),
		shared(KindSnapshot, source.GetSnapshot().GetSnapshotId()),
	}
}

func deleteVolume(r *csi.DeleteVolumeRequest) []Request {
	return []Request{exclusive(KindVolume, r.GetVolumeId())}
}

// controllerPublish takes the volume's attachments exclusively where the access mode
// limits the number of nodes: two attaches to different nodes must
// not both find the volume free. It takes those and not the volume exclusively, so that
// a long snapshot or clone does not delay the start of a pod.
func controllerPublish(r *csi.ControllerPublishVolumeRequest) []Request {
	attach := Exclusive
	switch r.GetVolumeCapability().GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		attach = Shared
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		if r.GetReadonly() { // only writers are limited to one node
			attach = Shared
		}
	}
	return []Request{
		shared(KindVolume, r.GetVolumeId()),
		{Key{KindAttachments, r.GetVolumeId()}, attach},
		attachment(r.GetVolumeId(), r.GetNodeId()),
	}
}

// controllerUnpublish does not know the access mode, and concurrent detaches from several
// nodes are safe. Without a node ID it detaches from all of them.
func controllerUnpublish(r *csi.ControllerUnpublishVolumeRequest) []Request {
	attach := Shared
	if r.GetNodeId() == "" {
		attach = Exclusive
	}
	return []Request{
		shared(KindVolume, r.GetVolumeId()),
		{Key{KindAttachments, r.GetVolumeId()}, attach},
		attachment(r.GetVolumeId(), r.GetNodeId()),
	}
}

func attachment(volumeID, nodeID string) Request {
	if volumeID == "" || nodeID == "" {
		return Request{} // omitted
	}
	return Request{AttachmentKey(volumeID, nodeID), Exclusive}
}

func controllerExpand(r *csi.ControllerExpandVolumeRequest) []Request {
	return []Request{exclusive(KindVolume, r.GetVolumeId())}
}

func controllerModify(r *csi.ControllerModifyVolumeRequest) []Request {
	return []Request{exclusive(KindVolume, r.GetVolumeId())}
}

func createSnapshot(r *csi.CreateSnapshotRequest) []Request {
	return []Request{
		exclusive(KindSnapshotName, r.GetName()),
		shared(KindVolume, r.GetSourceVolumeId()),
	}
}

func deleteSnapshot(r *csi.DeleteSnapshotRequest) []Request {
	return []Request{exclusive(KindSnapshot, r.GetSnapshotId())}
}

func createGroupSnapshot(r *csi.CreateVolumeGroupSnapshotRequest) []Request {
	keys := []Request{exclusive(KindGroupSnapshotName, r.GetName())}
	for _, id := range r.GetSourceVolumeIds() {
		keys = append(keys, shared(KindVolume, id))
	}
	return keys
}

// deleteGroupSnapshot deletes the members as well.
func deleteGroupSnapshot(r *csi.DeleteVolumeGroupSnapshotRequest) []Request {
	keys := []Request{exclusive(KindGroupSnapshot, r.GetGroupSnapshotId())}
	for _, id := range r.GetSnapshotIds() {
		keys = append(keys, exclusive(KindSnapshot, id))
	}
	return keys
}

func nodeStage(r *csi.NodeStageVolumeRequest) []Request {
	return []Request{exclusive(KindVolumeOnNode, r.GetVolumeId())}
}

func nodeUnstage(r *csi.NodeUnstageVolumeRequest) []Request {
	return []Request{exclusive(KindVolumeOnNode, r.GetVolumeId())}
}

func nodeExpand(r *csi.NodeExpandVolumeRequest) []Request {
	return []Request{exclusive(KindVolumeOnNode, r.GetVolumeId())}
}

// nodePublish shares the volume, so that the pods of one volume do not get ABORTED because
// of each other. It takes the volume exclusively where the access mode allows a single
// target on the node: the specification requires FAILED_PRECONDITION for the second one,
// and two concurrent calls must not both be the first. An unknown mode is treated
// likewise.
func nodePublish(r *csi.NodePublishVolumeRequest) []Request {
	volume := Exclusive
	switch r.GetVolumeCapability().GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		volume = Shared
	}
	return []Request{
		{Key{KindVolumeOnNode, r.GetVolumeId()}, volume},
		target(r.GetTargetPath()),
	}
}

func nodeUnpublish(r *csi.NodeUnpublishVolumeRequest) []Request {
	return []Request{
		shared(KindVolumeOnNode, r.GetVolumeId()),
		target(r.GetTargetPath()),
	}
}

func target(p string) Request {
	if p == "" {
		return Request{} // omitted; path.Clean would return "."
	}
	return exclusive(KindTarget, path.Clean(p))
}

// isTeardown reports whether an RPC passes any parked keys. These two must reach a
// mount that hangs, because only an unmount can end it.
func isTeardown(rpc string) bool {
	return rpc == "NodeUnpublishVolume" || rpc == "NodeUnstageVolume"
}
