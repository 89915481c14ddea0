package csispec_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
)

func TestCapabilityLists(t *testing.T) {
	for _, m := range []proto.Message{
		&csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)},
		&csi.GroupControllerGetCapabilitiesResponse{Capabilities: csispec.GroupControllerCapabilities(
			csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT)},
		&csi.NodeGetCapabilitiesResponse{Capabilities: csispec.NodeCapabilities(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)},
	} {
		if err := csispec.Validate(m); err != nil {
			t.Error(err)
		}
	}
	list := csispec.ControllerCapabilities(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	if len(list) != 2 || list[0].GetRpc().GetType() != csi.ControllerServiceCapability_RPC_EXPAND_VOLUME ||
		list[1].GetRpc().GetType() != csi.ControllerServiceCapability_RPC_LIST_VOLUMES {
		t.Errorf("got %v", list)
	}
	if list := csispec.NodeCapabilities(); len(list) != 0 {
		t.Errorf("got %v for no types", list)
	}
}

func TestVolumeUsage(t *testing.T) {
	for _, tt := range []struct {
		name          string
		bytes, inodes csispec.Usage
		want          []*csi.VolumeUsage
	}{
		{"file system", csispec.Usage{Total: 10, Available: 6, Used: 4}, csispec.Usage{Total: 5, Available: 2, Used: 3}, []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: 10, Available: 6, Used: 4},
			{Unit: csi.VolumeUsage_INODES, Total: 5, Available: 2, Used: 3},
		}},
		{"block", csispec.Usage{Total: 10}, csispec.Usage{}, []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 10}}},
		{"above a quota", csispec.Usage{Total: 10, Available: -2, Used: 12}, csispec.Usage{Total: -1}, []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: 10, Used: 12},
		}},
	} {
		got := &csi.NodeGetVolumeStatsResponse{Usage: csispec.VolumeUsage(tt.bytes, tt.inodes)}
		if !proto.Equal(got, &csi.NodeGetVolumeStatsResponse{Usage: tt.want}) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		if err := csispec.Validate(got); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestIsSinglePublish(t *testing.T) {
	single := map[string]bool{"SINGLE_NODE_WRITER": true, "SINGLE_NODE_READER_ONLY": true, "SINGLE_NODE_SINGLE_WRITER": true}
	for number, name := range csi.VolumeCapability_AccessMode_Mode_name {
		if got := csispec.IsSinglePublish(csi.VolumeCapability_AccessMode_Mode(number)); got != single[name] {
			t.Errorf("%s: %v", name, got)
		}
	}
	if csispec.IsSinglePublish(99) {
		t.Error("an undeclared mode")
	}
}

func TestIsKubernetesKey(t *testing.T) {
	for key, want := range map[string]bool{
		csispec.ParameterPVCName: true, csispec.ParameterSnapshotContent: true, csispec.ParameterGroupSnapshotName: true,
		csispec.VolumeContextPodUID: true, csispec.VolumeContextProvisionerIdentity: true,
		"": false, "csi.storage.k8s.io": false, "pool": false, "csi.storage.k8s.io.example.com/pool": false,
	} {
		if got := csispec.IsKubernetesKey(key); got != want {
			t.Errorf("%q: %v", key, got)
		}
	}
}
