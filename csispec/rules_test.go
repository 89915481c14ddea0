package csispec

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestRulesNameFields finds typos in the table, and rules that do not apply to the kind of
// their field.
func TestRulesNameFields(t *testing.T) {
	known := map[protoreflect.FullName]protoreflect.FieldDescriptor{}
	var walk func(ms protoreflect.MessageDescriptors)
	walk = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			fs := ms.Get(i).Fields()
			for j := range fs.Len() {
				known[fs.Get(j).FullName()] = fs.Get(j)
			}
			walk(ms.Get(i).Messages())
		}
	}
	walk(csi.File_csi_proto.Messages())
	for name, r := range rules {
		fd, ok := known[name]
		if !ok {
			t.Errorf("no field %s", name)
			continue
		}
		text := fd.Kind() == protoreflect.StringKind
		integer := fd.Kind() == protoreflect.Int32Kind || fd.Kind() == protoreflect.Int64Kind
		wrapper := fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Int64Value"
		switch {
		case (r.path || r.noControls || r.max != 0) && !text,
			(r.nonNegative || r.positive) && !integer && !wrapper,
			r.required && (integer || fd.Kind() == protoreflect.BoolKind),
			r == rule{}:
			t.Errorf("%s (%v) has the rule %+v", name, fd.Kind(), r)
		}
	}
}

// TestRequestRulesAgreeByName checks that the table follows the specification.s pattern:
// an ID is required in every request except in filters.
func TestRequestRulesAgreeByName(t *testing.T) {
	optional := map[protoreflect.FullName]bool{
		"csi.v1.ListSnapshotsRequest.snapshot_id":                true,
		"csi.v1.ListSnapshotsRequest.source_volume_id":           true,
		"csi.v1.ControllerUnpublishVolumeRequest.node_id":        true,
		"csi.v1.NodePublishVolumeRequest.staging_target_path":    true,
		"csi.v1.NodeGetVolumeStatsRequest.staging_target_path":   true,
		"csi.v1.NodeExpandVolumeRequest.staging_target_path":     true,
		"csi.v1.NodeGetVolumeHealthRequest.staging_target_path":  true,
		"csi.v1.NodeGetVolumeHealthRequest.volume_publish_path":  true,
		"csi.v1.NodeExpandVolumeRequest.volume_capability":       true,
		"csi.v1.ControllerExpandVolumeRequest.volume_capability": true,
		"csi.v1.GetCapacityRequest.volume_capabilities":          true,
	}
	names := map[protoreflect.Name]bool{
		"name": true, "volume_id": true, "node_id": true, "snapshot_id": true, "source_volume_id": true, "group_snapshot_id": true,
		"base_snapshot_id": true, "target_snapshot_id": true, "source_volume_ids": true, "snapshot_ids": true,
		"staging_target_path": true, "target_path": true, "volume_path": true, "volume_publish_path": true,
		"volume_capability": true, "volume_capabilities": true,
	}
	paths := 0
	for i := range csi.File_csi_proto.Services().Len() {
		ms := csi.File_csi_proto.Services().Get(i).Methods()
		for j := range ms.Len() {
			fs := ms.Get(j).Input().Fields()
			for k := range fs.Len() {
				fd := fs.Get(k)
				r := rules[fd.FullName()]
				if want := names[fd.Name()] && !optional[fd.FullName()]; names[fd.Name()] && r.required != want {
					t.Errorf("%s: required is %v, want %v", fd.FullName(), r.required, want)
				}
				if r.path {
					paths++
				}
			}
		}
	}
	if paths != 11 {
		t.Errorf("%d path fields, want 11", paths)
	}
}
