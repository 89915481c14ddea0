package csispec_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime"}}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	}
}

func caps(c ...*csi.VolumeCapability) []*csi.VolumeCapability { return c }

func segments(kv ...string) *csi.Topology {
	t := &csi.Topology{Segments: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		t.Segments[kv[i]] = kv[i+1]
	}
	return t
}

// good has one valid and rather full example of every request.
func good() []proto.Message {
	const path = "/var/lib/kubelet/plugins/x"
	secrets := map[string]string{"user-key.1_a": "s3cret"}
	return []proto.Message{
		&csi.GetPluginInfoRequest{}, &csi.GetPluginCapabilitiesRequest{}, &csi.ProbeRequest{},
		&csi.ControllerGetCapabilitiesRequest{}, &csi.GroupControllerGetCapabilitiesRequest{},
		&csi.NodeGetCapabilitiesRequest{}, &csi.NodeGetInfoRequest{}, &csi.NodeGetStorageHealthRequest{},
		&csi.CreateVolumeRequest{
			Name: "pvc-1\t\u4e16", CapacityRange: &csi.CapacityRange{RequiredBytes: 1, LimitBytes: 1},
			VolumeCapabilities: caps(mountCapability(), blockCapability()), Parameters: map[string]string{"a": "b"}, Secrets: secrets,
			VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}},
			AccessibilityRequirements: &csi.TopologyRequirement{
				Requisite: []*csi.Topology{segments("topology.example.com/zone", "z1"), segments("topology.example.com/zone", "z2")},
				Preferred: []*csi.Topology{segments("topology.example.com/zone", "z2")},
			},
		},
		&csi.DeleteVolumeRequest{VolumeId: "v"},
		&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: strings.Repeat("n", 256), VolumeCapability: blockCapability()},
		&csi.ControllerUnpublishVolumeRequest{VolumeId: "v"},
		&csi.ValidateVolumeCapabilitiesRequest{VolumeId: "v", VolumeCapabilities: caps(mountCapability())},
		&csi.ListVolumesRequest{}, &csi.ControllerListVolumeHealthRequest{}, &csi.ListSnapshotsRequest{},
		&csi.GetCapacityRequest{AccessibleTopology: segments("zone", "z1")},
		&csi.ControllerGetVolumeRequest{VolumeId: "v"}, &csi.ControllerGetVolumeHealthRequest{VolumeId: "v"},
		&csi.ControllerModifyVolumeRequest{VolumeId: "v", MutableParameters: map[string]string{"iops": "1"}},
		&csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"}, &csi.DeleteSnapshotRequest{SnapshotId: "s"}, &csi.GetSnapshotRequest{SnapshotId: "s"},
		&csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{LimitBytes: 5}},
		&csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: path, VolumeCapability: mountCapability()},
		&csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: path},
		&csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/" + strings.Repeat("p", 4000), VolumeCapability: mountCapability()},
		&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: path},
		&csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: path}, &csi.NodeGetVolumeHealthRequest{VolumeId: "v"},
		&csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: path},
		&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v"}},
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s"}},
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s"}},
		&csi.GetMetadataAllocatedRequest{SnapshotId: "s"}, &csi.GetMetadataDeltaRequest{BaseSnapshotId: "s", TargetSnapshotId: "t"},
	}
}

func example[M proto.Message](t testing.TB) M {
	t.Helper()
	for _, m := range good() {
		if m, ok := m.(M); ok {
			return m
		}
	}
	t.Fatal("no example")
	panic("unreachable")
}

func TestValidateAcceptsEveryRequest(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range good() {
		seen[string(m.ProtoReflect().Descriptor().Name())] = true
		if err := csispec.Validate(m); err != nil {
			t.Error(err)
		}
	}
	for i := range csi.File_csi_proto.Services().Len() {
		ms := csi.File_csi_proto.Services().Get(i).Methods()
		for j := range ms.Len() {
			if in := string(ms.Get(j).Input().Name()); !seen[in] {
				t.Errorf("no example of %s", in)
			}
		}
	}
}

// broken lists violations as "field rule" and "field rule CODE" unless the code
// is INVALID_ARGUMENT.
func broken(err error) []string {
	var v *csispec.Violations
	if !errors.As(err, &v) {
		return nil
	}
	var out []string
	for _, x := range v.All {
		s := x.Field + " " + x.Rule
		if x.Code != codes.InvalidArgument {
			s += " " + x.Code.String()
		}
		out = append(out, s)
	}
	return out
}

func TestValidateRequired(t *testing.T) {
	for _, tt := range []struct {
		m    proto.Message
		want []string
	}{
		{&csi.CreateVolumeRequest{}, []string{"name", "volume_capabilities"}},
		{&csi.DeleteVolumeRequest{}, []string{"volume_id"}},
		{&csi.ControllerPublishVolumeRequest{}, []string{"volume_id", "node_id", "volume_capability"}},
		{&csi.ControllerUnpublishVolumeRequest{}, []string{"volume_id"}},
		{&csi.ValidateVolumeCapabilitiesRequest{}, []string{"volume_id", "volume_capabilities"}},
		{&csi.ControllerGetVolumeRequest{}, []string{"volume_id"}},
		{&csi.ControllerGetVolumeHealthRequest{}, []string{"volume_id"}},
		{&csi.ControllerModifyVolumeRequest{}, []string{"volume_id", "mutable_parameters"}},
		{&csi.CreateSnapshotRequest{}, []string{"source_volume_id", "name"}},
		{&csi.DeleteSnapshotRequest{}, []string{"snapshot_id"}},
		{&csi.GetSnapshotRequest{}, []string{"snapshot_id"}},
		{&csi.ControllerExpandVolumeRequest{}, []string{"volume_id", "capacity_range"}},
		{&csi.NodeStageVolumeRequest{}, []string{"volume_id", "staging_target_path", "volume_capability"}},
		{&csi.NodeUnstageVolumeRequest{}, []string{"volume_id", "staging_target_path"}},
		{&csi.NodePublishVolumeRequest{}, []string{"volume_id", "target_path", "volume_capability"}},
		{&csi.NodeUnpublishVolumeRequest{}, []string{"volume_id", "target_path"}},
		{&csi.NodeGetVolumeStatsRequest{}, []string{"volume_id", "volume_path"}},
		{&csi.NodeGetVolumeHealthRequest{}, []string{"volume_id"}},
		{&csi.NodeExpandVolumeRequest{}, []string{"volume_id", "volume_path"}},
		{&csi.CreateVolumeGroupSnapshotRequest{}, []string{"name", "source_volume_ids"}},
		{&csi.DeleteVolumeGroupSnapshotRequest{}, []string{"group_snapshot_id", "snapshot_ids"}},
		{&csi.GetVolumeGroupSnapshotRequest{}, []string{"group_snapshot_id", "snapshot_ids"}},
		{&csi.GetMetadataAllocatedRequest{}, []string{"snapshot_id"}},
		{&csi.GetMetadataDeltaRequest{}, []string{"base_snapshot_id", "target_snapshot_id"}},
		{(*csi.DeleteVolumeRequest)(nil), []string{"volume_id"}},
	} {
		t.Run(string(tt.m.ProtoReflect().Descriptor().Name()), func(t *testing.T) {
			var want []string
			for _, f := range tt.want {
				want = append(want, f+" required")
			}
			err := csispec.Validate(tt.m)
			if got := broken(err); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			for _, f := range tt.want {
				if !strings.Contains(err.Error(), f) {
					t.Errorf("%q does not name %s", err, f)
				}
			}
		})
	}
}

func TestValidateRules(t *testing.T) {
	create := func(change func(*csi.CreateVolumeRequest)) proto.Message {
		m := example[*csi.CreateVolumeRequest](t)
		change(m)
		return m
	}
	long := strings.Repeat("x", 129)
	tests := []struct {
		name string
		m    proto.Message
		opts []csispec.Option
		want []string
	}{
		{name: "nil", m: nil, want: []string{" required"}},
		{name: "foreign message", m: wrapperspb.String(long)},
		{name: "string size", m: &csi.DeleteVolumeRequest{VolumeId: long}, want: []string{"volume_id size"}},
		{name: "string size reached", m: &csi.DeleteVolumeRequest{VolumeId: long[:128]}},
		{name: "node id size", m: &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: strings.Repeat("n", 257)}, want: []string{"node_id size"}},
		{name: "path size", m: &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/" + strings.Repeat("p", 4095)}, want: []string{"target_path size"}},
		{name: "map size reached", m: create(func(m *csi.CreateVolumeRequest) {
			m.Parameters = map[string]string{"k": strings.Repeat("v", 4095)}
		})},
		{name: "map size", m: create(func(m *csi.CreateVolumeRequest) {
			m.Parameters = map[string]string{"k": strings.Repeat("v", 4000), "l": strings.Repeat("v", 95)}
		}), want: []string{"parameters size"}},
		{name: "map size without what Kubernetes adds", m: &csi.NodePublishVolumeRequest{
			VolumeId: "v", TargetPath: "/t", VolumeCapability: mountCapability(),
			VolumeContext: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": strings.Repeat("t", 9000)},
			Secrets:       map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": strings.Repeat("t", 9000)},
		}},
		{name: "element size", m: &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v", "", long}},
			want: []string{"source_volume_ids[1] required", "source_volume_ids[2] size"}},
		{name: "invalid UTF-8", m: &csi.GetPluginInfoResponse{Name: "a.b", VendorVersion: "\xff", Manifest: map[string]string{"k": "\x80"}},
			want: []string{"vendor_version utf-8 Internal", "manifest utf-8 Internal"}},
		{name: "invalid UTF-8 in a key", m: &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"\x80": "v"}},
			want: []string{"publish_context utf-8 Internal"}},
		{name: "invalid UTF-8 in a list", m: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n", "\xc3"}},
			want: []string{"published_node_ids[1] utf-8"}},
		{name: "invalid UTF-8 in a mount flag", m: &csi.VolumeCapability_MountVolume{MountFlags: []string{"noatime", "password=\xff"}},
			want: []string{"mount_flags[1] utf-8"}},
		{name: "long and relative", m: &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: strings.Repeat("p", 4096)},
			want: []string{"target_path size", "target_path path-absolute"}},
		{name: "control character", m: create(func(m *csi.CreateVolumeRequest) { m.Name = "a\x7fb" }), want: []string{"name control-character"}},
		{name: "control character C1", m: &csi.CreateSnapshotRequest{SourceVolumeId: "v", Name: "\u0085"}, want: []string{"name control-character"}},
		{name: "control character elsewhere", m: &csi.DeleteVolumeRequest{VolumeId: "\x01"}},
		{name: "secret key", m: &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"a b": "x", "": "y"}}, want: []string{"secrets secret-key"}},
		{name: "free key elsewhere", m: create(func(m *csi.CreateVolumeRequest) { m.Parameters = map[string]string{"a b": "x"} })},
		{name: "no access type", m: create(func(m *csi.CreateVolumeRequest) { m.VolumeCapabilities[1].AccessType = nil }),
			want: []string{"volume_capabilities[1].access_type oneof"}},
		{name: "no access mode", m: create(func(m *csi.CreateVolumeRequest) { m.VolumeCapabilities[0].AccessMode = nil }),
			want: []string{"volume_capabilities[0].access_mode required"}},
		{name: "unknown access mode", m: create(func(m *csi.CreateVolumeRequest) { m.VolumeCapabilities[0].AccessMode.Mode = 0 }),
			want: []string{"volume_capabilities[0].access_mode.mode required"}},
		{name: "undeclared access mode", m: create(func(m *csi.CreateVolumeRequest) { m.VolumeCapabilities[0].AccessMode.Mode = 99 }),
			want: []string{"volume_capabilities[0].access_mode.mode enum"}},
		{name: "mount flags", m: create(func(m *csi.CreateVolumeRequest) {
			m.VolumeCapabilities[0].GetMount().MountFlags = []string{strings.Repeat("f", 4000), strings.Repeat("f", 97)}
		}), want: []string{"volume_capabilities[0].mount.mount_flags size"}},
		{name: "mount flags reached", m: create(func(m *csi.CreateVolumeRequest) {
			m.VolumeCapabilities[0].GetMount().MountFlags = []string{strings.Repeat("f", 4096)}
		})},
		{name: "nil arm", m: &csi.VolumeCapability{AccessType: (*csi.VolumeCapability_Mount)(nil), AccessMode: mountCapability().AccessMode}, want: []string{"access_type oneof"}},
		{name: "nil in an arm", m: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{}, AccessMode: mountCapability().AccessMode}},
		{name: "empty content source", m: create(func(m *csi.CreateVolumeRequest) { m.VolumeContentSource = &csi.VolumeContentSource{} }),
			want: []string{"volume_content_source.type oneof"}},
		{name: "empty snapshot source", m: create(func(m *csi.CreateVolumeRequest) {
			m.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{}}}
		}), want: []string{"volume_content_source.snapshot.snapshot_id required"}},
		{name: "empty range", m: create(func(m *csi.CreateVolumeRequest) { m.CapacityRange = &csi.CapacityRange{} }), want: []string{"capacity_range capacity-range"}},
		{name: "negative range", m: create(func(m *csi.CreateVolumeRequest) {
			m.CapacityRange = &csi.CapacityRange{RequiredBytes: -1, LimitBytes: -2}
		}),
			want: []string{"capacity_range.required_bytes non-negative", "capacity_range.limit_bytes non-negative"}},
		{name: "inverted range", m: create(func(m *csi.CreateVolumeRequest) {
			m.CapacityRange = &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}
		}),
			want: []string{"capacity_range capacity-range"}},
		{name: "negative page", m: &csi.ListVolumesRequest{MaxEntries: -1}, want: []string{"max_entries non-negative"}},
		{name: "negative offset", m: &csi.GetMetadataAllocatedRequest{SnapshotId: "s", StartingOffset: -1},
			want: []string{"starting_offset non-negative OutOfRange"}},
		{name: "relative path", m: &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "a/b"}, want: []string{"target_path path-absolute"}},
		{name: "path with NUL", m: &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/pods/1\x00/mount"}, want: []string{"target_path path-absolute"}},
		{name: "volume path with NUL", m: &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p\x00"}, want: []string{"volume_path path-absolute"}},
		{name: "relative optional path", m: &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p", StagingTargetPath: "s"},
			want: []string{"staging_target_path path-absolute"}},
		{name: "empty requirement", m: create(func(m *csi.CreateVolumeRequest) { m.AccessibilityRequirements = &csi.TopologyRequirement{} }),
			want: []string{"accessibility_requirements required"}},
		{name: "preferred outside requisite", m: create(func(m *csi.CreateVolumeRequest) {
			m.AccessibilityRequirements.Preferred = []*csi.Topology{segments("topology.example.com/zone", "z1"), segments("topology.example.com/zone", "z3")}
		}), want: []string{"accessibility_requirements.preferred[1] topology-preferred"}},
		{name: "preferred spelled otherwise", m: create(func(m *csi.CreateVolumeRequest) {
			m.AccessibilityRequirements.Preferred = []*csi.Topology{segments("topology.example.com/Zone", "z2")}
		})},
		{name: "preferred outside many", m: create(func(m *csi.CreateVolumeRequest) {
			r := &csi.TopologyRequirement{}
			for i := range 20 {
				r.Requisite = append(r.Requisite, segments("zone", fmt.Sprint("z", i), "rack", "r"))
				r.Preferred = append(r.Preferred, segments("rack", "r", "zone", fmt.Sprint("z", 19-i)))
			}
			r.Preferred[7] = segments("zone", "z7")
			m.AccessibilityRequirements = r
		}), want: []string{"accessibility_requirements.preferred[7] topology-preferred"}},
		{name: "preferred only", m: create(func(m *csi.CreateVolumeRequest) { m.AccessibilityRequirements.Requisite = nil })},
		{name: "topology", m: &csi.GetCapacityRequest{AccessibleTopology: segments(
			"Zone", "a", "zone", "b", "Example.com/zone", "c", "a/b/c", "d", "a..b/c", "e", "-x", "f", "ok", "-", "nothing", "")},
			want: []string{
				`accessible_topology.segments["-x"] topology-key`,
				`accessible_topology.segments["Example.com/zone"] topology-key`,
				`accessible_topology.segments["a..b/c"] topology-key`,
				`accessible_topology.segments["a/b/c"] topology-key`,
				`accessible_topology.segments["nothing"] topology-value`,
				`accessible_topology.segments["ok"] topology-value`,
				`accessible_topology.segments["zone"] topology-key`,
			}},
		{name: "stage unstage", m: example[*csi.NodePublishVolumeRequest](t), opts: []csispec.Option{csispec.WithStageUnstageVolume()},
			want: []string{"staging_target_path staging-path FailedPrecondition"}},
		{name: "plugin info", m: &csi.GetPluginInfoResponse{Name: "a_b", VendorVersion: long},
			want: []string{"vendor_version size Internal", "name plugin-name Internal"}},
		{name: "plugin name size", m: &csi.GetPluginInfoResponse{Name: strings.Repeat("a", 64), VendorVersion: "1"}, want: []string{"name size Internal"}},
		{name: "wrapped integer", m: &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(-1)}, want: []string{"maximum_volume_size non-negative Internal"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := broken(csispec.Validate(tt.m, tt.opts...)); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestValidatePluginName(t *testing.T) {
	for name, want := range map[string]bool{
		"csi.example.com": true, "csi": true, "a.b-c.D9": true, "1csi.example.com": true, strings.Repeat("a", 63): true,
		"a_b": false, "a..b": false, ".a": false, "a.": false, "-a.b": false, "a-.b": false, "a.-b": false, "a.b-": false, "a b": false, "ä": false,
	} {
		err := csispec.Validate(&csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"})
		if got := err == nil; got != want {
			t.Errorf("%q is valid: %v, want %v (%v)", name, got, want, err)
		}
	}
}

func TestValidateLeniency(t *testing.T) {
	stats := &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "some/path"}
	expand := &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "some/path"}
	modify := &csi.ControllerModifyVolumeRequest{VolumeId: "v"}
	deleteGroup := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g"}
	getGroup := &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g"}
	all := []proto.Message{stats, expand, modify, deleteGroup, getGroup}
	for _, tt := range []struct {
		name   string
		opt    csispec.Option
		passes []proto.Message
	}{
		{"strict", csispec.WithStageUnstageVolume(), nil},
		{"path", csispec.WithRelativeVolumePathAllowed(), []proto.Message{stats, expand}},
		{"mutable parameters", csispec.WithEmptyMutableParametersAllowed(), []proto.Message{modify}},
		{"snapshot ids", csispec.WithEmptySnapshotIDsAllowed(), []proto.Message{deleteGroup, getGroup}},
		{"csi-sanity", csispec.WithCSISanity(), all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, m := range all {
				if got, want := csispec.Validate(m, tt.opt) == nil, slices.Contains(tt.passes, m); got != want {
					t.Errorf("%T passes: %v, want %v", m, got, want)
				}
			}
		})
	}
	t.Run("other fields stay strict", func(t *testing.T) {
		stats := proto.CloneOf(stats)
		stats.StagingTargetPath = "also/relative"
		if got, want := broken(csispec.Validate(stats, csispec.WithCSISanity())), []string{"staging_target_path path-absolute"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestViolationsStatus(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    proto.Message
		opts []csispec.Option
		want codes.Code
	}{
		{"staging path only", example[*csi.NodePublishVolumeRequest](t), []csispec.Option{csispec.WithStageUnstageVolume()}, codes.FailedPrecondition},
		{"malformed too", &csi.NodePublishVolumeRequest{TargetPath: "/t"}, []csispec.Option{csispec.WithStageUnstageVolume()}, codes.InvalidArgument},
		{"offset only", &csi.GetMetadataDeltaRequest{BaseSnapshotId: "a", TargetSnapshotId: "b", StartingOffset: -1}, nil, codes.OutOfRange},
		{"offset and limit", &csi.GetMetadataDeltaRequest{BaseSnapshotId: "a", TargetSnapshotId: "b", StartingOffset: -1, MaxResults: -1}, nil, codes.InvalidArgument},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := csispec.Validate(tt.m, tt.opts...)
			// Wrapped, as an interceptor may return it.
			if got := status.Code(fmt.Errorf("call: %w", err)); got != tt.want {
				t.Errorf("got %v (%v), want %v", got, err, tt.want)
			}
		})
	}
}

func TestViolationsTextIsBounded(t *testing.T) {
	m := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: make([]string, 100000)}
	err := csispec.Validate(m)
	if n := len(broken(err)); n != 256 {
		t.Errorf("%d violations are kept", n)
	}
	if text := err.Error(); len(text) > 8<<10 || !strings.HasSuffix(text, "; and 99968 more") {
		t.Errorf("text of %d bytes ends in %q", len(text), text[len(text)-40:])
	}
}

// The text of 32 violations may exceed the limit of clients.
func TestViolationsTextIsBoundedInBytes(t *testing.T) {
	m := &csi.Topology{Segments: map[string]string{}}
	for i := range 40 {
		m.Segments[fmt.Sprint(i, strings.Repeat("\x01", 100))] = "v"
	}
	if text := csispec.Validate(m).Error(); len(text) > 5<<10 || !strings.Contains(text, " more") {
		t.Errorf("text of %d bytes ends in %q", len(text), text[len(text)-40:])
	}
}

func TestViolationsTextHidesMaps(t *testing.T) {
	const secret = "hunter2hunter2"
	m := &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"bad key " + secret: secret + strings.Repeat("x", 5000)}}
	if err := csispec.Validate(m); len(broken(err)) != 2 || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

func FuzzValidate(f *testing.F) {
	descriptors := slices.Collect(maps.Keys(prototypes()))
	slices.Sort(descriptors)
	f.Add(uint8(0), []byte{})
	f.Fuzz(func(t *testing.T, which uint8, wire []byte) {
		m := prototypes()[descriptors[int(which)%len(descriptors)]].New().Interface()
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		before := proto.Clone(m)
		if err := csispec.Validate(m, csispec.WithStageUnstageVolume()); err != nil {
			s, ok := status.FromError(err)
			if !ok || s.Code() == codes.OK || s.Code() == codes.Unknown || s.Message() == "" {
				t.Errorf("%v has the status %v", err, s)
			}
		}
		_ = csispec.Redact(m).String()
		if !proto.Equal(before, m) {
			t.Error("the message was changed")
		}
	})
}

func prototypes() map[protoreflect.FullName]protoreflect.Message {
	all := map[protoreflect.FullName]protoreflect.Message{}
	for _, m := range good() {
		all[m.ProtoReflect().Descriptor().FullName()] = m.ProtoReflect()
	}
	return all
}
