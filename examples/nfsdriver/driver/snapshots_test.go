package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A storage without snapshots has no capability and no RPC for them.
func TestWithoutSnapshots(t *testing.T) {
	all := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	}
	with := NewController(memory.New()).(*controller)
	without := NewController(struct{ storage.Backend }{memory.New()}).(*controller)
	for _, rpc := range all {
		if !with.has(rpc) || without.has(rpc) {
			t.Errorf("%v: %t with a storage that has it, %t with one that has not", rpc, with.has(rpc), without.has(rpc))
		}
	}
	for name, call := range map[string]func() error{
		"CreateSnapshot": func() error { _, err := without.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{}); return err },
		"DeleteSnapshot": func() error { _, err := without.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{}); return err },
		"GetSnapshot":    func() error { _, err := without.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{}); return err },
		"ListSnapshots":  func() error { _, err := without.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{}); return err },
	} {
		if err := call(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := without.CreateVolume(t.Context(), &csi.CreateVolumeRequest{VolumeContentSource: &csi.VolumeContentSource{
		Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "x"}}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a clone: %v", err)
	}
}
