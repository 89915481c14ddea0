package csispec_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/status"
)

func ExampleValidate() {
	err := csispec.Validate(&csi.NodePublishVolumeRequest{
		TargetPath: "pods/1/mount",
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	})
	fmt.Println(status.Code(err))
	violations, _ := errors.AsType[*csispec.Violations](err)
	for _, v := range violations.All {
		fmt.Printf("%-29s %-13s %s\n", v.Field, v.Rule, v.Text)
	}
	// Output:
	// InvalidArgument
	// volume_id                     required      is required
	// target_path                   path-absolute is "pods/1/mount" and must be an absolute path
	// volume_capability.access_type oneof         needs exactly one of block, mount
}

func ExampleWithCapabilities() {
	// Created once; Validate then does not allocate.
	capabilities := csispec.WithCapabilities(csispec.Capabilities{
		Plugin:     []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE},
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
	})
	fmt.Println(csispec.Validate(&csi.ControllerPublishVolumeRequest{
		VolumeId: "vol-1",
		NodeId:   "node-1",
		Readonly: true,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}, capabilities))
	// Output:
	// invalid ControllerPublishVolumeRequest: readonly is set, but this plugin does not have the capability controller.PUBLISH_READONLY
}

func ExampleMetadataStream() {
	stream := csispec.NewMetadataStream(&csi.GetMetadataAllocatedRequest{SnapshotId: "snap-1"})
	for _, offset := range []int64{0, 4096, 4096} {
		fmt.Println(stream.Next(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType:   csi.BlockMetadataType_FIXED_LENGTH,
			VolumeCapacityBytes: 1 << 20,
			BlockMetadata:       []*csi.BlockMetadata{{ByteOffset: offset, SizeBytes: 4096}},
		}))
	}
	// Output:
	// <nil>
	// <nil>
	// invalid GetMetadataAllocatedResponse: block_metadata[0] begins at 4096, before the end 8192 of the previous block
}

func ExampleHistory() {
	var h csispec.History
	for _, pool := range []string{"ssd", "hdd"} {
		fmt.Println(h.Observe(&csi.CreateVolumeRequest{Name: "pvc-1"}, &csi.CreateVolumeResponse{
			Volume: &csi.Volume{VolumeId: "vol-1", VolumeContext: map[string]string{"pool": pool}},
		}))
	}
	// Output:
	// <nil>
	// invalid CreateVolumeResponse: volume.volume_context of volume "vol-1" differs from the previous one in ["pool"]
}

func ExampleRedact() {
	req := &csi.NodeStageVolumeRequest{
		VolumeId: "vol-1",
		Secrets:  map[string]string{"password": "hunter2"},
		VolumeContext: map[string]string{
			"share": "backup",
			"csi.storage.k8s.io/serviceAccount.tokens": `{"":{"token":"eyJhbGciOi"}}`,
		},
	}
	fmt.Println(csispec.Redact(req))

	// In a log nothing is computed unless the line is written.
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	log.Debug("staging", "request", csispec.Redact(req))
	// Output:
	// {"volume_id":"vol-1","secrets":"***stripped***","volume_context":{"csi.storage.k8s.io/serviceAccount.tokens":"***stripped***","share":"backup"}}
}

func ExampleRedacted_RedactText() {
	req := &csi.NodeStageVolumeRequest{Secrets: map[string]string{"password": "hunter2"}}
	err := fmt.Errorf("mount.cifs: cannot log in as backup/hunter2")
	fmt.Println(csispec.Redact(req).RedactText(err.Error()))
	// Output:
	// mount.cifs: cannot log in as backup/***stripped***
}

func ExampleCheckCapabilities() {
	err := csispec.CheckCapabilities(csispec.Capabilities{
		Plugin:     []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE},
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CLONE_VOLUME},
	})
	fmt.Println(err)
	// Output:
	// invalid capabilities: controller.CLONE_VOLUME needs controller.CREATE_DELETE_VOLUME: add that, or drop this (csi.proto: "Plugins reporting CLONE_VOLUME capability MUST support creating a volume from another volume.")
}

// A driver from before v1.13 may still report a capability that was removed.
func ExampleCapabilityWarnings() {
	for _, v := range csispec.CapabilityWarnings(csispec.Capabilities{
		Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, 4},
	}) {
		fmt.Println(v.Field, v.Text)
	}
	// Output:
	// node.4 is VOLUME_CONDITION, which CSI v1.13 removed: drop it, and report GET_VOLUME_HEALTH if there is an RPC for that
}
