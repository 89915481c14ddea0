package csispec

import "google.golang.org/protobuf/reflect/protoreflect"

// A rule is the rules for a field, as read in the comments of csi.proto.
type rule struct {
	required    bool // must be set; an element of a list must not be empty
	path        bool // an absolute path of the file system that the plugin sees
	nonNegative bool
	positive    bool
	noControls  bool     // a name: no control characters
	max         int      // limit in bytes where it is not the general one
	gate        features // the capability that it needs
}

const (
	unlimited = -1 // the elements of a list that has a limit as a whole
	nodeIDMax = 256
)

// rules are the rules for the fields of CSI v1.13, collected by hand and so independent
// of what the generator reads in the same comments. Required bools and numbers
// are omitted: their zero value is valid and cannot be distinguished from absence.
var rules = map[protoreflect.FullName]rule{
	"csi.v1.GetPluginInfoResponse.name":           {required: true, max: 63},
	"csi.v1.GetPluginInfoResponse.vendor_version": {required: true},

	"csi.v1.CreateVolumeRequest.name":                {required: true, noControls: true},
	"csi.v1.CreateVolumeRequest.volume_capabilities": {required: true},

	"csi.v1.VolumeContentSource.SnapshotSource.snapshot_id": {required: true},

	"csi.v1.VolumeContentSource.VolumeSource.volume_id": {required: true},

	"csi.v1.CreateVolumeResponse.volume": {required: true},

	"csi.v1.VolumeCapability.MountVolume.mount_flags": {max: unlimited},

	"csi.v1.VolumeCapability.AccessMode.mode": {required: true},

	"csi.v1.VolumeCapability.access_mode": {required: true},

	"csi.v1.CapacityRange.required_bytes": {nonNegative: true},
	"csi.v1.CapacityRange.limit_bytes":    {nonNegative: true},

	"csi.v1.Volume.capacity_bytes": {nonNegative: true},
	"csi.v1.Volume.volume_id":      {required: true},

	"csi.v1.DeleteVolumeRequest.volume_id": {required: true},

	"csi.v1.ControllerPublishVolumeRequest.volume_id":         {required: true},
	"csi.v1.ControllerPublishVolumeRequest.node_id":           {required: true, max: nodeIDMax},
	"csi.v1.ControllerPublishVolumeRequest.volume_capability": {required: true},

	"csi.v1.ControllerUnpublishVolumeRequest.volume_id": {required: true},
	"csi.v1.ControllerUnpublishVolumeRequest.node_id":   {max: nodeIDMax},

	"csi.v1.ValidateVolumeCapabilitiesRequest.volume_id":           {required: true},
	"csi.v1.ValidateVolumeCapabilitiesRequest.volume_capabilities": {required: true},

	"csi.v1.ValidateVolumeCapabilitiesResponse.Confirmed.volume_capabilities": {required: true},

	"csi.v1.ListVolumesRequest.max_entries": {nonNegative: true},

	"csi.v1.ListVolumesResponse.VolumeStatus.published_node_ids": {max: nodeIDMax},

	"csi.v1.ListVolumesResponse.Entry.volume": {required: true},

	"csi.v1.ControllerListVolumeHealthRequest.max_entries": {nonNegative: true},

	"csi.v1.VolumeHealth.VolumeHealthEntry.status": {required: true},
	"csi.v1.VolumeHealth.VolumeHealthEntry.reason": {required: true},

	"csi.v1.VolumeHealth.volume_id": {required: true},

	"csi.v1.ControllerGetVolumeHealthRequest.volume_id": {required: true},

	"csi.v1.ControllerGetVolumeHealthResponse.volume_health": {required: true},

	"csi.v1.ControllerGetVolumeRequest.volume_id": {required: true},

	"csi.v1.ControllerGetVolumeResponse.VolumeStatus.published_node_ids": {max: nodeIDMax},

	"csi.v1.ControllerGetVolumeResponse.volume": {required: true},
	"csi.v1.ControllerGetVolumeResponse.status": {required: true},

	"csi.v1.ControllerModifyVolumeRequest.volume_id":          {required: true},
	"csi.v1.ControllerModifyVolumeRequest.mutable_parameters": {required: true},

	"csi.v1.GetCapacityResponse.available_capacity":  {nonNegative: true},
	"csi.v1.GetCapacityResponse.maximum_volume_size": {nonNegative: true},
	"csi.v1.GetCapacityResponse.minimum_volume_size": {nonNegative: true},

	"csi.v1.CreateSnapshotRequest.source_volume_id": {required: true},
	"csi.v1.CreateSnapshotRequest.name":             {required: true, noControls: true},

	"csi.v1.CreateSnapshotResponse.snapshot": {required: true},

	"csi.v1.Snapshot.size_bytes":       {nonNegative: true},
	"csi.v1.Snapshot.snapshot_id":      {required: true},
	"csi.v1.Snapshot.source_volume_id": {required: true},
	"csi.v1.Snapshot.creation_time":    {required: true},

	"csi.v1.DeleteSnapshotRequest.snapshot_id": {required: true},

	"csi.v1.ListSnapshotsRequest.max_entries": {nonNegative: true},

	"csi.v1.ListSnapshotsResponse.Entry.snapshot": {required: true},

	"csi.v1.GetSnapshotRequest.snapshot_id": {required: true},

	"csi.v1.GetSnapshotResponse.snapshot": {required: true},

	"csi.v1.ControllerExpandVolumeRequest.volume_id":      {required: true},
	"csi.v1.ControllerExpandVolumeRequest.capacity_range": {required: true},

	"csi.v1.ControllerExpandVolumeResponse.capacity_bytes": {nonNegative: true},

	"csi.v1.NodeStageVolumeRequest.volume_id":           {required: true},
	"csi.v1.NodeStageVolumeRequest.staging_target_path": {required: true, path: true},
	"csi.v1.NodeStageVolumeRequest.volume_capability":   {required: true},

	"csi.v1.NodeUnstageVolumeRequest.volume_id":           {required: true},
	"csi.v1.NodeUnstageVolumeRequest.staging_target_path": {required: true, path: true},

	"csi.v1.NodePublishVolumeRequest.volume_id":           {required: true},
	"csi.v1.NodePublishVolumeRequest.staging_target_path": {path: true},
	"csi.v1.NodePublishVolumeRequest.target_path":         {required: true, path: true},
	"csi.v1.NodePublishVolumeRequest.volume_capability":   {required: true},

	"csi.v1.NodeUnpublishVolumeRequest.volume_id":   {required: true},
	"csi.v1.NodeUnpublishVolumeRequest.target_path": {required: true, path: true},

	"csi.v1.NodeGetVolumeStatsRequest.volume_id":           {required: true},
	"csi.v1.NodeGetVolumeStatsRequest.volume_path":         {required: true, path: true},
	"csi.v1.NodeGetVolumeStatsRequest.staging_target_path": {path: true},

	"csi.v1.VolumeUsage.available": {nonNegative: true},
	"csi.v1.VolumeUsage.total":     {nonNegative: true},
	"csi.v1.VolumeUsage.used":      {nonNegative: true},
	"csi.v1.VolumeUsage.unit":      {required: true},

	"csi.v1.NodeGetVolumeHealthRequest.volume_id":           {required: true},
	"csi.v1.NodeGetVolumeHealthRequest.volume_publish_path": {path: true},
	"csi.v1.NodeGetVolumeHealthRequest.staging_target_path": {path: true},

	"csi.v1.NodeGetVolumeHealthResponse.volume_health": {required: true},

	"csi.v1.NodeGetStorageHealthResponse.StorageBackendHealth.status": {required: true},
	"csi.v1.NodeGetStorageHealthResponse.StorageBackendHealth.reason": {required: true},

	"csi.v1.NodeGetInfoResponse.node_id":              {required: true, max: nodeIDMax},
	"csi.v1.NodeGetInfoResponse.max_volumes_per_node": {nonNegative: true},

	"csi.v1.NodeExpandVolumeRequest.volume_id":           {required: true},
	"csi.v1.NodeExpandVolumeRequest.volume_path":         {required: true, path: true},
	"csi.v1.NodeExpandVolumeRequest.staging_target_path": {path: true},

	"csi.v1.NodeExpandVolumeResponse.capacity_bytes": {nonNegative: true},

	"csi.v1.CreateVolumeGroupSnapshotRequest.name":              {required: true, noControls: true},
	"csi.v1.CreateVolumeGroupSnapshotRequest.source_volume_ids": {required: true},

	"csi.v1.CreateVolumeGroupSnapshotResponse.group_snapshot": {required: true},

	"csi.v1.VolumeGroupSnapshot.group_snapshot_id": {required: true},
	"csi.v1.VolumeGroupSnapshot.snapshots":         {required: true},
	"csi.v1.VolumeGroupSnapshot.creation_time":     {required: true},

	"csi.v1.DeleteVolumeGroupSnapshotRequest.group_snapshot_id": {required: true},
	"csi.v1.DeleteVolumeGroupSnapshotRequest.snapshot_ids":      {required: true},

	"csi.v1.GetVolumeGroupSnapshotRequest.group_snapshot_id": {required: true},
	"csi.v1.GetVolumeGroupSnapshotRequest.snapshot_ids":      {required: true},

	"csi.v1.GetVolumeGroupSnapshotResponse.group_snapshot": {required: true},

	"csi.v1.BlockMetadata.byte_offset": {nonNegative: true},
	"csi.v1.BlockMetadata.size_bytes":  {positive: true},

	"csi.v1.GetMetadataAllocatedRequest.snapshot_id":     {required: true},
	"csi.v1.GetMetadataAllocatedRequest.starting_offset": {nonNegative: true},
	"csi.v1.GetMetadataAllocatedRequest.max_results":     {nonNegative: true},

	"csi.v1.GetMetadataAllocatedResponse.block_metadata_type":   {required: true},
	"csi.v1.GetMetadataAllocatedResponse.volume_capacity_bytes": {nonNegative: true},

	"csi.v1.GetMetadataDeltaRequest.base_snapshot_id":   {required: true},
	"csi.v1.GetMetadataDeltaRequest.target_snapshot_id": {required: true},
	"csi.v1.GetMetadataDeltaRequest.starting_offset":    {nonNegative: true},
	"csi.v1.GetMetadataDeltaRequest.max_results":        {nonNegative: true},

	"csi.v1.GetMetadataDeltaResponse.block_metadata_type":   {required: true},
	"csi.v1.GetMetadataDeltaResponse.volume_capacity_bytes": {nonNegative: true},

	"csi.v1.PluginCapability.Service.type":             {required: true},
	"csi.v1.PluginCapability.VolumeExpansion.type":     {required: true},
	"csi.v1.ControllerServiceCapability.RPC.type":      {required: true},
	"csi.v1.GroupControllerServiceCapability.RPC.type": {required: true},
	"csi.v1.NodeServiceCapability.RPC.type":            {required: true},

	"csi.v1.CreateVolumeRequest.accessibility_requirements":       {gate: volumeTopology},
	"csi.v1.CreateVolumeRequest.mutable_parameters":               {gate: modifyVolume},
	"csi.v1.ValidateVolumeCapabilitiesRequest.mutable_parameters": {gate: modifyVolume},
	"csi.v1.VolumeContentSource.snapshot":                         {gate: createSnapshot},
	"csi.v1.VolumeContentSource.volume":                           {gate: cloneVolume},
	"csi.v1.VolumeCapability.MountVolume.volume_mount_group":      {gate: mountGroup},
	"csi.v1.ControllerPublishVolumeRequest.readonly":              {gate: attachReadonly},
	"csi.v1.NodeStageVolumeRequest.publish_context":               {gate: attach},
	"csi.v1.NodePublishVolumeRequest.publish_context":             {gate: attach},
	"csi.v1.GetCapacityRequest.accessible_topology":               {gate: volumeTopology},
	"csi.v1.CreateSnapshotRequest.accessibility_requirements":     {gate: snapshotTopology},
	"csi.v1.Volume.accessible_topology":                           {gate: volumeTopology},
	"csi.v1.Snapshot.accessible_topology":                         {gate: snapshotTopology},
	"csi.v1.NodeGetInfoResponse.accessible_topology":              {gate: volumeTopology},
}
