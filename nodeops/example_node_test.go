package nodeops_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/nodeops"
)

// node is the node service of a driver for disks that appear in /dev under their serial
// number. The errors of nodeops carry the gRPC code for the CO, so they are returned
// unchanged.
type node struct {
	csi.UnimplementedNodeServer
	ops *nodeops.Node
}

func device(volumeID string) nodeops.Device {
	return nodeops.Device{Path: "/dev/disk/by-id/example-" + volumeID, Serial: volumeID}
}

func (n *node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	mount := req.GetVolumeCapability().GetMount()
	if mount == nil { // raw block is published from the device itself
		return &csi.NodeStageVolumeResponse{}, n.ops.StageBlock(ctx, nodeops.StageBlockRequest{
			VolumeID: req.GetVolumeId(), Device: device(req.GetVolumeId()), StagingTargetPath: req.GetStagingTargetPath(),
		})
	}
	return &csi.NodeStageVolumeResponse{}, n.ops.StageFilesystem(ctx, nodeops.StageFilesystemRequest{
		VolumeID: req.GetVolumeId(), Device: device(req.GetVolumeId()), StagingTargetPath: req.GetStagingTargetPath(),
		FSType: mount.GetFsType(), MountFlags: mount.GetMountFlags(),
		MustHoldData: req.GetVolumeContext()["restored"] == "true", // never formatted, whatever is found
	})
}

func (n *node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		return &csi.NodePublishVolumeResponse{}, n.ops.PublishFilesystem(ctx, nodeops.PublishFilesystemRequest{
			VolumeID: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath(), Device: device(req.GetVolumeId()),
			TargetPath: req.GetTargetPath(), MountFlags: mount.GetMountFlags(), ReadOnly: req.GetReadonly(),
		})
	}
	return &csi.NodePublishVolumeResponse{}, n.ops.PublishBlock(ctx, nodeops.PublishBlockRequest{
		VolumeID: req.GetVolumeId(), Device: device(req.GetVolumeId()), TargetPath: req.GetTargetPath(), ReadOnly: req.GetReadonly(),
	})
}

func (n *node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: req.GetVolumeId(), TargetPath: req.GetTargetPath()})
}

func (n *node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, n.ops.Unstage(ctx, nodeops.UnstageRequest{VolumeID: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath()})
}

// The node service of a driver for block devices. Register it with package csiserver and
// use the interceptor of package volumelock: nodeops serializes the calls for one path,
// not those for one volume.
func Example() {
	ops, err := nodeops.New(nodeops.Config{Logger: slog.Default()})
	if err != nil {
		fmt.Println(err)
		return
	}
	var service csi.NodeServer = &node{ops: ops}
	_, err = service.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "vol-1", TargetPath: "pods/a"})
	fmt.Println(err)
	// Output: unpublish volume vol-1 at pods/a: path "pods/a" is not absolute
}

// Teardown of a volume behind an encryption layer needs only the path.
func ExampleNode_DeviceAt() {
	node, err := nodeops.New(nodeops.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, staging := context.Background(), "/var/lib/kubelet/plugins/kubernetes.io/csi/block.example.com/1/globalmount"
	device, err := node.DeviceAt(ctx, staging)
	if err != nil && !errors.Is(err, csierr.NotFound) { // unmounted by an earlier call
		fmt.Println(err)
		return
	}
	if err := node.Unstage(ctx, nodeops.UnstageRequest{VolumeID: "vol-1", StagingTargetPath: staging}); err != nil {
		fmt.Println(err)
		return
	}
	if device.Path != "" {
		fmt.Println("close", device.Path)
	}
}
