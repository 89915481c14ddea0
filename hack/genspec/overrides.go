package main

import "google.golang.org/protobuf/reflect/protoreflect"

// capabilities are those on which rules depend, with their names in csispec.
var capabilities = map[string]string{
	"VOLUME_ACCESSIBILITY_CONSTRAINTS":   "volumeTopology",
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS": "snapshotTopology",
	"PUBLISH_UNPUBLISH_VOLUME":           "attach",
	"PUBLISH_READONLY":                   "attachReadonly",
	"LIST_VOLUMES_PUBLISHED_NODES":       "publishedNodes",
	"CREATE_DELETE_SNAPSHOT":             "createSnapshot",
	"CLONE_VOLUME":                       "cloneVolume",
	"MODIFY_VOLUME":                      "modifyVolume",
	"VOLUME_MOUNT_GROUP":                 "mountGroup",
}

// handRules are the messages with a rule for more than one field, or with a
// grammar: see csispec/handwritten.go.
var handRules = map[protoreflect.FullName]bool{
	"csi.v1.CapacityRange":                                     true,
	"csi.v1.Topology":                                          true,
	"csi.v1.TopologyRequirement":                               true,
	"csi.v1.VolumeCapability.AccessMode":                       true,
	"csi.v1.NodePublishVolumeRequest":                          true,
	"csi.v1.GetPluginInfoResponse":                             true,
	"csi.v1.VolumeHealth":                                      true,
	"csi.v1.VolumeHealth.VolumeHealthEntry":                    true,
	"csi.v1.NodeGetStorageHealthResponse":                      true,
	"csi.v1.NodeGetStorageHealthResponse.StorageBackendHealth": true,
	"csi.v1.VolumeGroupSnapshot":                               true,
}

// overrides are the rules that the comments of csi.proto do not state in a sentence that
// can be classified. Names are without the prefix csi.v1.
var overrides = []struct {
	fields []string
	set    func(*rule)
	why    string
}{
	{
		fields: []string{"ListSnapshotsResponse.Entry.snapshot"},
		set:    func(r *rule) { r.required = true },
		why:    "the comment says nothing, but an entry without its only field lists nothing; ListVolumesResponse.Entry.volume is REQUIRED",
	},
	{
		fields: []string{"ListVolumesResponse.entries", "ListSnapshotsResponse.entries", "ControllerListVolumeHealthResponse.entries", "Topology.segments"},
		set:    func(r *rule) { r.optional = true },
		why:    "the comment says nothing; an empty list is a legal answer, and a topology without segments is everywhere",
	},
	{
		fields: []string{"PluginCapability.Service.type", "PluginCapability.VolumeExpansion.type", "ControllerServiceCapability.RPC.type",
			"GroupControllerServiceCapability.RPC.type", "NodeServiceCapability.RPC.type"},
		set: func(r *rule) { r.required = true },
		why: "the comment says nothing, but a capability of the type UNKNOWN has no meaning for the CO",
	},
	{
		fields: []string{"NodeExpandVolumeRequest.volume_path"},
		set:    func(r *rule) { r.path = true },
		why:    "it overrides the size limit as paths do and is staged or published like the others, which must be absolute",
	},
	{
		fields: []string{"NodeGetVolumeStatsRequest.volume_path", "NodeExpandVolumeRequest.volume_path"},
		set:    func(r *rule) { r.lenientPath = true },
		why:    "csi-sanity sends a relative one and expects NOT_FOUND",
	},
	{
		fields: []string{"ControllerModifyVolumeRequest.mutable_parameters"},
		set:    func(r *rule) { r.lenientEmpty = "emptyMutableParameters" },
		why:    "csi-sanity sends none unless it is configured with some",
	},
	{
		fields: []string{"DeleteVolumeGroupSnapshotRequest.snapshot_ids", "GetVolumeGroupSnapshotRequest.snapshot_ids"},
		set:    func(r *rule) { r.lenientEmpty = "emptySnapshotIDs" },
		why:    "csi-sanity sends none",
	},
	{
		fields: []string{"ControllerPublishVolumeRequest.node_id", "ControllerUnpublishVolumeRequest.node_id",
			"ListVolumesResponse.VolumeStatus.published_node_ids", "ControllerGetVolumeResponse.VolumeStatus.published_node_ids"},
		set: func(r *rule) { r.max = 256 },
		why: "NodeGetInfoResponse.node_id may have 256 bytes, and these repeat it",
	},
	{
		fields: []string{"ControllerExpandVolumeResponse.capacity_bytes", "NodeExpandVolumeResponse.capacity_bytes",
			"GetMetadataAllocatedRequest.max_results", "GetMetadataDeltaRequest.max_results",
			"GetMetadataAllocatedResponse.volume_capacity_bytes", "GetMetadataDeltaResponse.volume_capacity_bytes",
			"BlockMetadata.byte_offset"},
		set: func(r *rule) { r.nonNegative = true },
		why: "sizes, counts and zero based positions, for which csi.proto says so elsewhere",
	},
	{
		fields: []string{"GetMetadataAllocatedRequest.starting_offset", "GetMetadataDeltaRequest.starting_offset"},
		set:    func(r *rule) { r.nonNegative, r.outOfRange = true, true },
		why:    "the tables of errors of spec.md list a negative offset under OUT_OF_RANGE",
	},
	{
		fields: []string{"VolumeContentSource.snapshot"},
		set:    func(r *rule) { r.gate = "createSnapshot" },
		why:    "the sentence is on SnapshotSource.snapshot_id: volumes from snapshots come with CREATE_DELETE_SNAPSHOT",
	},
	{
		fields: []string{"VolumeContentSource.volume"},
		set:    func(r *rule) { r.gate = "cloneVolume" },
		why:    "the sentence is on VolumeSource.volume_id: volumes from volumes come with CLONE_VOLUME",
	},
	{
		fields: []string{"ValidateVolumeCapabilitiesRequest.mutable_parameters"},
		set:    func(r *rule) { r.gate = "modifyVolume" },
		why:    "its comment refers to CreateVolumeRequest.mutable_parameters",
	},
	{
		fields: []string{"VolumeCapability.MountVolume.volume_mount_group"},
		set:    func(r *rule) { r.gate = "mountGroup" },
		why:    "the comment only says what a plugin with VOLUME_MOUNT_GROUP does with it",
	},
	{
		fields: []string{"ControllerGetVolumeResponse.VolumeStatus.published_node_ids"},
		set:    func(r *rule) { r.requiredWith = "" },
		why:    "a volume that is not published has an empty list, which cannot be distinguished from none",
	},
}
