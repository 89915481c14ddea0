package csispec_test

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/status"
)

func ExampleControllerCapabilities() {
	resp := &csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	)}
	for _, c := range resp.GetCapabilities() {
		fmt.Println(c.GetRpc().GetType())
	}
	// Output:
	// CREATE_DELETE_VOLUME
	// EXPAND_VOLUME
}

func ExampleGroupControllerCapabilities() {
	list := csispec.GroupControllerCapabilities(csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT)
	fmt.Println(list[0].GetRpc().GetType())
	// Output: CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
}

func ExampleNodeCapabilities() {
	list := csispec.NodeCapabilities(
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	)
	fmt.Println(list[0].GetRpc().GetType(), list[1].GetRpc().GetType())
	// Output: STAGE_UNSTAGE_VOLUME GET_VOLUME_STATS
}

// The numbers usually come from statfs(2), as nodeops.Stats returns them.
func ExampleVolumeUsage() {
	for _, u := range csispec.VolumeUsage(
		csispec.Usage{Total: 10 << 30, Available: 6 << 30, Used: 4 << 30},
		csispec.Usage{Total: 1000, Available: 900, Used: 100},
	) {
		fmt.Println(u.GetUnit(), u.GetTotal(), u.GetAvailable(), u.GetUsed())
	}
	// Output:
	// BYTES 10737418240 6442450944 4294967296
	// INODES 1000 900 100
}

// CreateVolume of a driver whose volumes are multiples of 4 MiB, 16 MiB at least.
func ExampleRoundCapacity() {
	for _, r := range []*csi.CapacityRange{
		{RequiredBytes: 1},
		{RequiredBytes: 100_000_000},
		{RequiredBytes: 1, LimitBytes: 1 << 20},
		nil,
	} {
		bytes, err := csispec.RoundCapacity(r, 16<<20, 4<<20, csispec.WithDefaultCapacity(1<<30))
		fmt.Println(bytes, status.Code(err))
	}
	// Output:
	// 16777216 OK
	// 100663296 OK
	// 0 OutOfRange
	// 1073741824 OK
}

func ExampleIsSinglePublish() {
	fmt.Println(csispec.IsSinglePublish(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER))
	fmt.Println(csispec.IsSinglePublish(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER))
	// Output:
	// true
	// false
}

// A driver rejects unknown parameters, but not those of the sidecars.
func ExampleIsKubernetesKey() {
	req := &csi.CreateVolumeRequest{Parameters: map[string]string{
		"pool":                   "ssd",
		csispec.ParameterPVCName: "data",
	}}
	for key := range req.GetParameters() {
		if !csispec.IsKubernetesKey(key) {
			fmt.Println("parameter:", key)
		}
	}
	fmt.Println("claim:", req.GetParameters()[csispec.ParameterPVCName])
	// Output:
	// parameter: pool
	// claim: data
}
