package csispec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func snapshot(group string) *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "v", CreationTime: &timestamppb.Timestamp{Seconds: 1}, ReadyToUse: true, GroupSnapshotId: group}
}

func groupSnapshot() *csi.VolumeGroupSnapshot {
	return &csi.VolumeGroupSnapshot{GroupSnapshotId: "g", Snapshots: []*csi.Snapshot{snapshot("g"), snapshot("g")},
		CreationTime: &timestamppb.Timestamp{Seconds: 1}, ReadyToUse: true}
}

func health(reasons ...string) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: "v"}
	for _, r := range reasons {
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: r})
	}
	return h
}

// goodResponses has one valid and rather full example of every response.
func goodResponses() []proto.Message {
	volume := &csi.Volume{VolumeId: "v", CapacityBytes: 1, VolumeContext: map[string]string{"a": "b"},
		AccessibleTopology: []*csi.Topology{segments("example.com/zone", "z1")}}
	blocks := []*csi.BlockMetadata{{ByteOffset: 0, SizeBytes: 1}}
	return []proto.Message{
		&csi.GetPluginInfoResponse{Name: "csi.example.com", VendorVersion: "1", Manifest: map[string]string{"a": "b"}},
		&csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
			{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
			{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
		}},
		&csi.ProbeResponse{Ready: wrapperspb.Bool(true)},
		&csi.CreateVolumeResponse{Volume: volume}, &csi.DeleteVolumeResponse{},
		&csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"a": "b"}}, &csi.ControllerUnpublishVolumeResponse{},
		&csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: caps(mountCapability())}},
		&csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: volume,
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{strings.Repeat("n", 256)}}}}},
		&csi.ControllerListVolumeHealthResponse{Entries: []*csi.VolumeHealth{health("DiskFailing", "Slow"), health()}},
		&csi.ControllerGetVolumeHealthResponse{VolumeHealth: health("Raid5Degraded")},
		&csi.GetCapacityResponse{AvailableCapacity: 1, MaximumVolumeSize: wrapperspb.Int64(1)},
		&csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}}}},
		&csi.CreateSnapshotResponse{Snapshot: snapshot("")}, &csi.DeleteSnapshotResponse{},
		&csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshot("g")}}, NextToken: "1"},
		&csi.GetSnapshotResponse{Snapshot: snapshot("")},
		&csi.ControllerExpandVolumeResponse{CapacityBytes: 1},
		&csi.ControllerGetVolumeResponse{Volume: volume, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}},
		&csi.ControllerModifyVolumeResponse{},
		&csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: 1}}}}},
		&csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: groupSnapshot()}, &csi.DeleteVolumeGroupSnapshotResponse{},
		&csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: groupSnapshot()},
		&csi.GetMetadataAllocatedResponse{BlockMetadataType: 1, VolumeCapacityBytes: 1, BlockMetadata: blocks},
		&csi.GetMetadataDeltaResponse{BlockMetadataType: 2, VolumeCapacityBytes: 1, BlockMetadata: blocks},
		&csi.NodeStageVolumeResponse{}, &csi.NodeUnstageVolumeResponse{}, &csi.NodePublishVolumeResponse{}, &csi.NodeUnpublishVolumeResponse{},
		&csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Total: 1, Unit: csi.VolumeUsage_BYTES}}},
		&csi.NodeGetVolumeHealthResponse{VolumeHealth: health()},
		&csi.NodeGetStorageHealthResponse{BackendHealth: []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Slow", VolumeCapability: mountCapability()},
			{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Slow", VolumeCapability: blockCapability()},
		}},
		&csi.NodeExpandVolumeResponse{CapacityBytes: 1},
		&csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}}}}},
		&csi.NodeGetInfoResponse{NodeId: strings.Repeat("n", 256), MaxVolumesPerNode: 1, AccessibleTopology: segments("example.com/zone", "z1")},
	}
}

func TestValidateAcceptsEveryResponse(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range goodResponses() {
		seen[string(m.ProtoReflect().Descriptor().Name())] = true
		if err := csispec.Validate(m); err != nil {
			t.Error(err)
		}
	}
	for i := range csi.File_csi_proto.Services().Len() {
		ms := csi.File_csi_proto.Services().Get(i).Methods()
		for j := range ms.Len() {
			if out := string(ms.Get(j).Output().Name()); !seen[out] {
				t.Errorf("no example of %s", out)
			}
		}
	}
}

func TestValidateResponses(t *testing.T) {
	long := strings.Repeat("x", 129)
	group := func(change func(*csi.VolumeGroupSnapshot)) proto.Message {
		g := groupSnapshot()
		change(g)
		return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g}
	}
	for _, tt := range []struct {
		name string
		m    proto.Message
		want []string
	}{
		{"no name", &csi.GetPluginInfoResponse{}, []string{"name required", "vendor_version required"}},
		{"manifest size", &csi.GetPluginInfoResponse{Name: "a", VendorVersion: "1", Manifest: map[string]string{"k": strings.Repeat("v", 4096)}}, []string{"manifest size"}},
		{"capability without type", &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
			{}, {Type: &csi.PluginCapability_Service_{}}, {Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: 9}}}}},
			[]string{"capabilities[0].type oneof", "capabilities[1].service.type required", "capabilities[2].volume_expansion.type enum"}},
		{"controller capability taken back", &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: 11}}}}}, []string{"capabilities[0].rpc.type enum"}},
		{"no volume", &csi.CreateVolumeResponse{}, []string{"volume required"}},
		{"bad volume", &csi.CreateVolumeResponse{Volume: &csi.Volume{CapacityBytes: -1, ContentSource: &csi.VolumeContentSource{},
			AccessibleTopology: []*csi.Topology{segments("a/b/c", "d")}}},
			[]string{"volume.capacity_bytes non-negative", "volume.volume_id required", "volume.content_source.type oneof",
				`volume.accessible_topology[0].segments["a/b/c"] topology-key`}},
		{"long id", &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: long}}, []string{"volume.volume_id size"}},
		{"nothing confirmed", &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{}, Message: long},
			[]string{"confirmed.volume_capabilities required", "message size"}},
		{"empty entry", &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{}}, NextToken: long}, []string{"entries[0].volume required", "next_token size"}},
		{"long node", &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: &csi.Volume{VolumeId: "v"},
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n", strings.Repeat("n", 257)}}}}},
			[]string{"entries[0].status.published_node_ids[1] size"}},
		{"capacity", &csi.GetCapacityResponse{AvailableCapacity: -1, MinimumVolumeSize: wrapperspb.Int64(-1)},
			[]string{"available_capacity non-negative", "minimum_volume_size non-negative"}},
		{"empty snapshot", &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SizeBytes: -1}},
			[]string{"snapshot.size_bytes non-negative", "snapshot.snapshot_id required", "snapshot.source_volume_id required", "snapshot.creation_time required"}},
		{"no time", &csi.GetSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "v", CreationTime: &timestamppb.Timestamp{Nanos: -1}}},
			[]string{"snapshot.creation_time timestamp"}},
		{"empty snapshot entry", &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{}}}, []string{"entries[0].snapshot required"}},
		{"expanded", &csi.ControllerExpandVolumeResponse{CapacityBytes: -1}, []string{"capacity_bytes non-negative"}},
		{"node expanded", &csi.NodeExpandVolumeResponse{CapacityBytes: -1}, []string{"capacity_bytes non-negative"}},
		{"get volume", &csi.ControllerGetVolumeResponse{}, []string{"volume required", "status required"}},
		{"group without members", group(func(g *csi.VolumeGroupSnapshot) { g.Snapshots = nil }), []string{"group_snapshot.snapshots required"}},
		{"member of another group", group(func(g *csi.VolumeGroupSnapshot) { g.Snapshots[1].GroupSnapshotId = "h" }),
			[]string{"group_snapshot.snapshots[1].group_snapshot_id group-snapshot"}},
		{"member of no group", group(func(g *csi.VolumeGroupSnapshot) { g.Snapshots[0].GroupSnapshotId = "" }),
			[]string{"group_snapshot.snapshots[0].group_snapshot_id group-snapshot"}},
		{"group ready too soon", group(func(g *csi.VolumeGroupSnapshot) { g.Snapshots[1].ReadyToUse = false }),
			[]string{"group_snapshot.snapshots[1].ready_to_use group-snapshot"}},
		{"group ready late", group(func(g *csi.VolumeGroupSnapshot) { g.ReadyToUse = false }), nil},
		{"no block type", &csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: -1, BlockMetadata: []*csi.BlockMetadata{{ByteOffset: -1, SizeBytes: 1}}},
			[]string{"block_metadata_type required", "volume_capacity_bytes non-negative", "block_metadata[0].byte_offset non-negative"}},
		{"empty block", &csi.GetMetadataDeltaResponse{BlockMetadataType: 1, BlockMetadata: []*csi.BlockMetadata{{}}}, []string{"block_metadata[0].size_bytes positive"}},
		{"usage", &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Available: -1, Total: -1, Used: -1}}},
			[]string{"usage[0].available non-negative", "usage[0].total non-negative", "usage[0].used non-negative", "usage[0].unit required"}},
		{"empty health", &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{}}}},
			[]string{"volume_health.volume_id required", "volume_health.health_statuses[0].status required", "volume_health.health_statuses[0].reason required"}},
		{"reason", &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health("Disk failing", "diskFailing", "Disk_Failing")},
			[]string{"volume_health.health_statuses[0].reason camel-case", "volume_health.health_statuses[1].reason camel-case", "volume_health.health_statuses[2].reason camel-case"}},
		{"health twice", &csi.ControllerListVolumeHealthResponse{Entries: []*csi.VolumeHealth{health("A"), health("A", "B", "A")}},
			[]string{"entries[1].health_statuses[2] duplicate"}},
		{"backend", &csi.NodeGetStorageHealthResponse{BackendHealth: []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			{Status: 1, Reason: "Slow", VolumeCapability: mountCapability()}, {Status: 1, Reason: "slow"}, {Status: 1, Reason: "Slow", VolumeCapability: mountCapability()}}},
			[]string{"backend_health[1].reason camel-case", "backend_health[2] duplicate"}},
		{"node info", &csi.NodeGetInfoResponse{MaxVolumesPerNode: -1}, []string{"node_id required", "max_volumes_per_node non-negative"}},
		{"node id", &csi.NodeGetInfoResponse{NodeId: strings.Repeat("n", 257)}, []string{"node_id size"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, w := range tt.want {
				want = append(want, w+" Internal")
			}
			if got := broken(csispec.Validate(tt.m)); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}
