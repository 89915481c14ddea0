package csispec_test

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestWithCapabilities(t *testing.T) {
	type (
		controller = csi.ControllerServiceCapability_RPC_Type
		node       = csi.NodeServiceCapability_RPC_Type
		plugin     = csi.PluginCapability_Service_Type
	)
	capability := func(mode csi.VolumeCapability_AccessMode_Mode, group string) *csi.VolumeCapability {
		c := mountCapability()
		c.AccessMode.Mode = mode
		c.GetMount().VolumeMountGroup = group
		return c
	}
	const multi = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	create := func(change func(*csi.CreateVolumeRequest)) proto.Message {
		m := &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: caps(mountCapability())}
		change(m)
		return m
	}
	zone := segments("zone", "z1")
	for _, tt := range []struct {
		name       string
		m          proto.Message
		controller controller // what m needs; only one of the three is set
		node       node
		plugin     plugin
		want       string
	}{
		{name: "requirements", plugin: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, want: "accessibility_requirements capability",
			m: create(func(m *csi.CreateVolumeRequest) {
				m.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{zone}}
			})},
		{name: "mutable parameters", controller: csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, want: "mutable_parameters capability",
			m: create(func(m *csi.CreateVolumeRequest) { m.MutableParameters = map[string]string{"a": "b"} })},
		{name: "from snapshot", controller: csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, want: "volume_content_source.snapshot capability",
			m: create(func(m *csi.CreateVolumeRequest) {
				m.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}
			})},
		{name: "clone", controller: csi.ControllerServiceCapability_RPC_CLONE_VOLUME, want: "volume_content_source.volume capability",
			m: create(func(m *csi.CreateVolumeRequest) {
				m.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}}
			})},
		{name: "controller mode", controller: csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, want: "volume_capabilities[0].access_mode.mode capability",
			m: create(func(m *csi.CreateVolumeRequest) { m.VolumeCapabilities = caps(capability(multi, "")) })},
		{name: "mount group at the controller", node: csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, want: "volume_capabilities[0].mount.volume_mount_group capability",
			m: create(func(m *csi.CreateVolumeRequest) { m.VolumeCapabilities = caps(capability(1, "1000")) })},
		{name: "readonly", controller: csi.ControllerServiceCapability_RPC_PUBLISH_READONLY, want: "readonly capability",
			m: &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: blockCapability(), Readonly: true}},
		{name: "validate mutable parameters", controller: csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, want: "mutable_parameters capability",
			m: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "v", VolumeCapabilities: caps(capability(multi, "1000")), MutableParameters: map[string]string{"a": "b"}}},
		{name: "capacity", plugin: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, want: "accessible_topology capability",
			m: &csi.GetCapacityRequest{AccessibleTopology: zone}},
		{name: "snapshot requirements", plugin: csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, want: "accessibility_requirements capability",
			m: &csi.CreateSnapshotRequest{Name: "n", SourceVolumeId: "v", AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{zone}}}},
		{name: "node mode", node: csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, want: "volume_capability.access_mode.mode capability",
			m: &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s", VolumeCapability: capability(multi, "")}},
		{name: "mount group", node: csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, want: "volume_capability.mount.volume_mount_group capability",
			m: &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s", VolumeCapability: capability(1, "1000")}},
		{name: "stage context", controller: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, want: "publish_context capability",
			m: &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s", VolumeCapability: mountCapability(), PublishContext: map[string]string{"a": "b"}}},
		{name: "publish context", controller: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, want: "publish_context capability",
			m: &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/s", VolumeCapability: mountCapability(), PublishContext: map[string]string{"a": "b"}}},
		{name: "volume topology", plugin: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, want: "volume.accessible_topology capability Internal",
			m: &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", AccessibleTopology: []*csi.Topology{zone}}}},
		{name: "node topology", plugin: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, want: "accessible_topology capability Internal",
			m: &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: zone}},
		{name: "snapshot topology", plugin: csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, want: "snapshot.accessible_topology capability Internal",
			m: func() proto.Message {
				s := snapshot("")
				s.AccessibleTopology = []*csi.Topology{zone}
				return &csi.GetSnapshotResponse{Snapshot: s}
			}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const service = csi.PluginCapability_Service_CONTROLLER_SERVICE
			without := csispec.Capabilities{Plugin: []plugin{service}, Controller: []controller{}, Node: []node{}}
			with := csispec.Capabilities{Plugin: []plugin{service, tt.plugin}, Controller: []controller{tt.controller}, Node: []node{tt.node}}
			elsewhere := csispec.Capabilities{Plugin: []plugin{service, tt.plugin}}
			if got := broken(csispec.Validate(tt.m, csispec.WithCapabilities(without))); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("without: got %q, want %q", got, tt.want)
			}
			if err := csispec.Validate(tt.m, csispec.WithCapabilities(with)); err != nil {
				t.Errorf("with: %v", err)
			}
			if err := csispec.Validate(tt.m, csispec.WithCapabilities(elsewhere)); err != nil {
				t.Errorf("elsewhere: %v", err)
			}
			if err := csispec.Validate(tt.m); err != nil {
				t.Errorf("not known: %v", err)
			}
		})
	}
	t.Run("topologies without segments", func(t *testing.T) {
		// external-provisioner's --enable-capacity sends the first one for nodes whose
		// driver reports no segments.
		lacks := csispec.WithCapabilities(csispec.Capabilities{Plugin: []plugin{csi.PluginCapability_Service_CONTROLLER_SERVICE}, Controller: []controller{}, Node: []node{}})
		for _, m := range []proto.Message{
			&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}},
			&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{}}},
			create(func(m *csi.CreateVolumeRequest) {
				m.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{}}, Preferred: []*csi.Topology{{}}}
			}),
			&csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{}},
		} {
			if err := csispec.Validate(m, lacks); err != nil {
				t.Errorf("%T: %v", m, err)
			}
		}
		one := create(func(m *csi.CreateVolumeRequest) {
			m.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{}, zone}}
		})
		if got := broken(csispec.Validate(one, lacks)); !slices.Equal(got, []string{"accessibility_requirements capability"}) {
			t.Errorf("one with segments: %q", got)
		}
	})
	t.Run("no controller anywhere", func(t *testing.T) {
		m := &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s", VolumeCapability: mountCapability(), PublishContext: map[string]string{"a": "b"}}
		if got := broken(csispec.Validate(m, csispec.WithCapabilities(csispec.Capabilities{Node: []node{}}))); !slices.Equal(got, []string{"publish_context capability"}) {
			t.Error(got)
		}
	})
	t.Run("published nodes", func(t *testing.T) {
		c := csispec.WithCapabilities(csispec.Capabilities{Controller: []controller{csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES}})
		e := &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: "v"}}
		m := &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{e}}
		if got := broken(csispec.Validate(m, c)); !slices.Equal(got, []string{"entries[0].status required Internal"}) {
			t.Error(got)
		}
		e.Status = &csi.ListVolumesResponse_VolumeStatus{}
		if err := csispec.Validate(m, c); err != nil {
			t.Error(err)
		}
	})
	t.Run("staging", func(t *testing.T) {
		c := csispec.WithCapabilities(csispec.Capabilities{Node: []node{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}})
		m := &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/t", VolumeCapability: mountCapability()}
		if got := status.Code(csispec.Validate(m, c)); got != codes.FailedPrecondition {
			t.Error(got)
		}
		m.StagingTargetPath = "/s"
		if err := csispec.Validate(m, c); err != nil {
			t.Error(err)
		}
	})
}

func TestRefuseAlpha(t *testing.T) {
	mode := mountCapability()
	mode.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	for _, tt := range []struct {
		m    proto.Message
		want string
	}{
		{&csi.GetSnapshotRequest{}, " alpha Unimplemented"},
		{&csi.GetMetadataDeltaRequest{}, " alpha Unimplemented"},
		{&csi.NodeGetVolumeHealthRequest{VolumeId: "v"}, " alpha Unimplemented"},
		{&csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/p", Secrets: map[string]string{"a": "b"}}, "secrets alpha"},
		{&csi.GetCapacityResponse{MinimumVolumeSize: wrapperspb.Int64(1)}, "minimum_volume_size alpha Internal"},
		{&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: mode}, "volume_capability.access_mode.mode alpha"},
		{&csi.DeleteVolumeRequest{VolumeId: "v"}, ""},
	} {
		got := broken(csispec.Validate(tt.m, csispec.WithAlphaRejected()))
		if tt.want == "" && got != nil || tt.want != "" && !slices.Equal(got, []string{tt.want}) {
			t.Errorf("%T: got %q, want %q", tt.m, got, tt.want)
		}
	}
}

func TestAllowUnknown(t *testing.T) {
	m := &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{}, {Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: 99}}}}}
	if got := broken(csispec.Validate(m)); len(got) != 2 {
		t.Error(got)
	}
	if err := csispec.Validate(m, csispec.WithUnknownValuesAllowed()); err != nil {
		t.Error(err)
	}
}

func TestValidateDoesNotAllocate(t *testing.T) {
	opts := []csispec.Option{csispec.WithCSISanity(), csispec.WithCapabilities(csispec.Capabilities{})}
	m := typical()
	m.PublishContext = nil
	if n := testing.AllocsPerRun(100, func() {
		if err := csispec.Validate(m, opts...); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
