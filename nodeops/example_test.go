package nodeops_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/status"
)

// node is the node service of a driver for disks that show up under their serial
// number. The errors of nodeops carry the code that the CO is to get, so they are
// returned as they are.
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
		FSType: mount.GetFsType(), MountFlags: mount.GetMountFlags(), MountGroup: mount.GetVolumeMountGroup(),
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

// The node service of a driver for block devices. Give it to package csiserver, with
// the interceptor of package volumelock: nodeops keeps two calls for one path apart, and
// not two calls for one volume.
func Example() {
	ops, err := nodeops.New(nodeops.Config{Logger: slog.Default()})
	if err != nil {
		fmt.Println(err)
		return
	}
	var service csi.NodeServer = &node{ops: ops}
	_ = service
}

// A target that is not what was asked for is a conflict, and the error says in what.
func ExampleError() {
	err := error(&nodeops.Error{
		Op: "publish", VolumeID: "vol-1", Path: "/pods/a/mount", Kind: nodeops.KindConflict,
		Diff: []nodeops.Difference{{What: "read-only", Have: "false", Want: "true"}},
		Err:  errors.New("another publication is there"),
	})
	fmt.Println(status.Code(err))
	var e *nodeops.Error
	if errors.As(err, &e) {
		for _, d := range e.Diff {
			fmt.Printf("%s: %v\n", e.Path, d)
		}
	}
	// Output:
	// AlreadyExists
	// /pods/a/mount: read-only is false, want true
}

// A share is mounted at the pod's path without staging. The helper's error, a timeout
// and a dead server each have their code; a password is in none of the texts.
func ExampleNode_PublishShare() {
	publish := func(ctx context.Context, ops *nodeops.Node, target, credentials string) error {
		ctx, cancel := context.WithTimeout(ctx, 110*time.Second) // kubelet's are 120
		defer cancel()
		return ops.PublishShare(ctx, nodeops.PublishShareRequest{
			VolumeID: "vol-1", Source: "//files.example.com/homes", FSType: "cifs", TargetPath: target,
			MountFlags: []string{"vers=3.1.1", "credentials=" + credentials},
		})
	}
	_ = publish
}

// A SCSI disk that was enlarged shows its size only when the kernel is told to look.
func ExampleNode_Expand() {
	rescan := func(devicePath string) error {
		path, err := filepath.EvalSymlinks(devicePath)
		if err != nil {
			return err
		}
		return os.WriteFile("/sys/class/block/"+filepath.Base(path)+"/device/rescan", []byte("1"), 0)
	}
	expand := func(ctx context.Context, ops *nodeops.Node, req *csi.NodeExpandVolumeRequest) (int64, error) {
		return ops.Expand(ctx, nodeops.ExpandRequest{
			VolumeID: req.GetVolumeId(), VolumePath: req.GetVolumePath(),
			RequiredBytes: req.GetCapacityRange().GetRequiredBytes(), Rescan: rescan,
		})
	}
	_ = expand
}

// What hangs in the kernel, and since when: for a page that is looked at when a server
// is dead.
func ExampleNode_InFlight() {
	report := func(ops *nodeops.Node) {
		for _, work := range ops.InFlight() {
			fmt.Printf("%+v\n", work)
		}
	}
	_ = report
}
