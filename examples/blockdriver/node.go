package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// volumes is what the node needs of the pool. It reads files, so that a node
// plugin needs no controller in its process, nor one that is up.
type volumes interface {
	// FindVolume returns the volume and the path of its image, or errNotFound.
	FindVolume(ctx context.Context, id string) (v Volume, image string, err error)
	// CheckImage returns why the image must not be attached.
	CheckImage(ctx context.Context, v Volume) error
	// ImagePaths returns where the image of a volume may be or have been; nothing for
	// what is no volume ID.
	ImagePaths(id string) []string
	CheckVolume(ctx context.Context, id string) ([]Problem, error)
	CheckPools(ctx context.Context) []Problem
}

// nodeServer is the node service: attach the image as a loop device at stage,
// let nodeops do the rest.
type nodeServer struct {
	csi.UnimplementedNodeServer
	nodeID     string
	maxVolumes int64
	topology   topology.Segments
	volumes    volumes
	ops        *nodeops.Node
	work       *blocking.Group
}

func newNode(cfg config, v volumes, ops *nodeops.Node, work *blocking.Group) *nodeServer {
	return &nodeServer{nodeID: cfg.nodeID, maxVolumes: cfg.maxVolumes, topology: cfg.topology, volumes: v, ops: ops, work: work}
}

func (n *nodeServer) NodeID() string { return n.nodeID }

func (n *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.nodeID, MaxVolumesPerNode: n.maxVolumes, AccessibleTopology: n.topology.Topology()}, nil
}

// NodeGetCapabilities leaves out VOLUME_MOUNT_GROUP: ext4 and xfs have no mount option
// for a group. With it kubelet would pass the pod's fsGroup here and not change the group
// of the files, as fsGroupPolicy: File of the CSIDriver asks.
func (n *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: csispec.NodeCapabilities(
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	)}, nil
}

func (n *nodeServer) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	vol, image, err := n.attached(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := n.volumes.CheckImage(ctx, vol); err != nil {
		return nil, err
	}
	dev, err := attach(ctx, image)
	if err != nil {
		return nil, err
	}
	if err := tune(dev, image, vol.Mutable); err != nil {
		return nil, err
	}
	device := nodeops.Device{Path: dev.Path} // its backing inode is the proof of identity
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		err = n.ops.StageFilesystem(ctx, nodeops.StageFilesystemRequest{
			VolumeID:          vol.ID,
			Device:            device,
			StagingTargetPath: req.GetStagingTargetPath(),
			FSType:            vol.AccessType,
			MountFlags:        mount.GetMountFlags(),
			ReadOnly:          readOnly(vol, req.GetVolumeCapability()),
			MustHoldData:      vol.HoldsData,
			Prezeroed:         true, // a sparse file reads as zeros
		})
	} else {
		err = n.ops.StageBlock(ctx, nodeops.StageBlockRequest{VolumeID: vol.ID, Device: device, StagingTargetPath: req.GetStagingTargetPath()})
	}
	if err != nil {
		// After a final error the CO does not unstage, so a loop device that nothing
		// uses goes, whichever call attached it; unless the work is still under
		// way, then the retry needs it.
		var parked interface{ Pending() <-chan struct{} }
		if !errors.As(err, &parked) {
			if undo := n.detachUnused(ctx, image); undo != nil {
				return nil, status.Errorf(codes.Unavailable, "%v; and the loop device remains: %v", err, undo)
			}
		}
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *nodeServer) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	// Neither the volume nor its metadata need exist any more: the ID names the image.
	images := n.volumes.ImagePaths(req.GetVolumeId())
	if len(images) == 0 {
		return nil, fail("unstage volume", req.GetVolumeId(), "%w", errNotFound)
	}
	if err := n.ops.Unstage(ctx, nodeops.UnstageRequest{VolumeID: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath()}); err != nil {
		return nil, err
	}
	// nodeops.Unstage answers for file systems; a raw block publication is visible
	// only at the device.
	for _, image := range images {
		if err := n.detach(ctx, image); err != nil {
			return nil, err
		}
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *nodeServer) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	vol, image, err := n.attached(ctx, req)
	if err != nil {
		return nil, err
	}
	dev, err := findLoop(image)
	if err != nil {
		return nil, err
	}
	if dev == nil || dev.Detaching {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s has no loop device on this node: stage it first", vol.ID)
	}
	if err := tune(dev, image, vol.Mutable); err != nil {
		return nil, err
	}
	device := nodeops.Device{Path: dev.Path}
	ro := req.GetReadonly() || readOnly(vol, req.GetVolumeCapability())
	once := csispec.IsSinglePublish(req.GetVolumeCapability().GetAccessMode().GetMode())
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		err = n.ops.PublishFilesystem(ctx, nodeops.PublishFilesystemRequest{
			VolumeID: vol.ID, StagingTargetPath: req.GetStagingTargetPath(), Device: device,
			TargetPath: req.GetTargetPath(), MountFlags: mount.GetMountFlags(), ReadOnly: ro, Exclusive: once,
		})
	} else {
		err = n.ops.PublishBlock(ctx, nodeops.PublishBlockRequest{
			VolumeID: vol.ID, Device: device, TargetPath: req.GetTargetPath(), ReadOnly: ro, Exclusive: once,
		})
	}
	if err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *nodeServer) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: req.GetVolumeId(), TargetPath: req.GetTargetPath()}); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *nodeServer) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	vol, image, err := n.volumes.FindVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	n.retune(vol, image)
	s, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: req.GetVolumeId(), VolumePath: req.GetVolumePath()})
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: csispec.VolumeUsage(
		csispec.Usage{Total: s.TotalBytes, Available: s.AvailableBytes, Used: s.UsedBytes},
		csispec.Usage{Total: s.TotalInodes, Available: s.AvailableInodes, Used: s.UsedInodes},
	)}, nil
}

func (n *nodeServer) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	vol, image, err := n.volumes.FindVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if required := req.GetCapacityRange().GetRequiredBytes(); required > vol.CapacityBytes {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes, %d are required: ControllerExpandVolume comes first", vol.ID, vol.CapacityBytes, required)
	}
	dev, err := findLoop(image)
	if err != nil {
		return nil, err
	}
	if dev == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged on this node", vol.ID)
	}
	if _, err := dev.Resize(); err != nil {
		return nil, uncertain(err)
	}
	size, err := n.ops.Expand(ctx, nodeops.ExpandRequest{
		VolumeID: vol.ID, VolumePath: req.GetVolumePath(), RequiredBytes: req.GetCapacityRange().GetRequiredBytes(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// useRequest is a NodeStageVolumeRequest or a NodePublishVolumeRequest.
type useRequest interface {
	GetVolumeId() string
	GetVolumeCapability() *csi.VolumeCapability
	GetPublishContext() map[string]string
}

// attached returns the volume and its image if the controller attached it to this
// node, by the attachment that the request names, and it can be used in the way asked
// for. It reads the disk: a node that was disconnected may have missed that the volume
// was detached from it.
func (n *nodeServer) attached(ctx context.Context, req useRequest) (Volume, string, error) {
	volumeID := req.GetVolumeId()
	vol, image, err := n.volumes.FindVolume(ctx, volumeID)
	if err != nil {
		return vol, "", err
	}
	if a := vol.Attachment; a == nil || a.NodeID != n.nodeID {
		return vol, "", status.Errorf(codes.FailedPrecondition, "volume %s is not attached to node %s: ControllerPublishVolume comes first", volumeID, n.nodeID)
	}
	has, want := req.GetPublishContext(), publishContext(vol)
	if has[contextImage] != want[contextImage] {
		return vol, "", status.Errorf(codes.InvalidArgument, "publish_context: image %q is not that of volume %s: pass on what ControllerPublishVolume returned", has[contextImage], volumeID)
	}
	if has[contextAttachment] != want[contextAttachment] {
		return vol, "", status.Errorf(codes.FailedPrecondition, "publish_context: attachment %q of volume %s has ended: ControllerPublishVolume comes first", has[contextAttachment], volumeID)
	}
	accessType, err := checkCapability(req.GetVolumeCapability())
	if err != nil {
		return vol, "", err
	}
	if accessType != vol.AccessType {
		return vol, "", status.Errorf(codes.FailedPrecondition, "volume %s was created for access as %s and cannot be used as %s", volumeID, vol.AccessType, accessType)
	}
	return vol, image, nil
}

// attach attaches the image to a loop device. One that is there already only learns the
// image's size: it may be published read-only, which loopdev.Attach would end.
func attach(ctx context.Context, image string) (*loopdev.Device, error) {
	dev, err := findLoop(image)
	if err != nil {
		return nil, err
	}
	if dev == nil || dev.Detaching {
		dev, err = loopdev.Attach(ctx, image)
	} else {
		_, err = dev.Resize()
	}
	if err != nil {
		return nil, uncertain(err)
	}
	return dev, nil
}

// retune applies parameters that were changed since then to the device. The next publish
// returns what fails.
func (n *nodeServer) retune(vol Volume, image string) {
	if dev, err := findLoop(image); err == nil && dev != nil && !dev.Detaching {
		_ = tune(dev, image, vol.Mutable)
	}
}

// findLoop returns the image's loop device, nil if it has none.
func findLoop(image string) (*loopdev.Device, error) {
	dev, err := loopdev.Find(image)
	if errors.Is(err, loopdev.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, uncertain(err)
	}
	return dev, nil
}

// detach detaches the loop device of the image, if it has one, and those of its
// predecessors that were deleted while attached. A device that is still mounted
// or published is an error: a raw block publication does not keep the device open,
// so the kernel would detach it while a pod uses it.
func (n *nodeServer) detach(ctx context.Context, image string) error {
	all, err := loopsOf(image)
	if err != nil {
		return err
	}
	for _, dev := range all {
		at, err := n.ops.MountedAt(ctx, nodeops.Device{Path: dev.Path})
		if err != nil {
			return err
		}
		if len(at) > 0 {
			return status.Errorf(codes.FailedPrecondition, "%s is still published at %v: unpublish it first", dev.Path, at)
		}
		if err := dev.Detach(ctx); err != nil {
			return uncertain(err)
		}
	}
	return nil
}

// detachUnused is detach for a device that may be in use, which is no error.
func (n *nodeServer) detachUnused(ctx context.Context, image string) error {
	err := n.detach(ctx, image)
	if status.Code(err) == codes.FailedPrecondition {
		return nil
	}
	return err
}

func loopsOf(image string) ([]loopdev.Device, error) {
	all, err := loopdev.List()
	if err != nil {
		return nil, uncertain(err)
	}
	all = slices.DeleteFunc(all, func(d loopdev.Device) bool { return !d.Deleted || d.Backing != image })
	dev, err := findLoop(image)
	if dev != nil {
		all = append(all, *dev)
	}
	return all, err
}

// uncertain makes a failure of the loop device layer one that the CO retries: it
// must not forget a volume whose device may be attached.
func uncertain(err error) error { return status.Error(codes.Unavailable, err.Error()) }

// readOnly: the volume was attached read-only (PUBLISH_READONLY), or has a read-only
// access mode.
func readOnly(vol Volume, c *csi.VolumeCapability) bool {
	return vol.Attachment.ReadOnly || c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
}
