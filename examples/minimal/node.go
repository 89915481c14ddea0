package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
)

// node is the node service. It remembers nothing: the kernel knows which image a loop device
// serves and what is mounted where, and nodeops compares that with the request.
type node struct {
	csi.UnimplementedNodeServer
	store
	id  string
	ops *nodeops.Node
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.id}, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: csispec.NodeCapabilities(
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	)}, nil
}

func (n *node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	v, err := n.attached(req.GetVolumeId(), req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	dev, err := n.loop(v.ID)
	if err == nil && (dev == nil || dev.Detaching) {
		dev, err = loopdev.Attach(ctx, n.file(v.ID, ".img"))
	} else if err == nil {
		_, err = dev.Resize() // and nothing else: it may be published read-only
	}
	if err != nil {
		return nil, err
	}
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		err = n.ops.StageFilesystem(ctx, nodeops.StageFilesystemRequest{
			VolumeID: v.ID, Device: nodeops.Device{Path: dev.Path}, StagingTargetPath: req.GetStagingTargetPath(),
			FSType: v.AccessType, MountFlags: mount.GetMountFlags(), Prezeroed: true, // as holes are
		})
	}
	if err != nil && csierr.IsFinal(err) { // the CO does not unstage
		if undo := n.detach(ctx, v.ID); undo != nil && !csierr.IsFinal(undo) {
			return nil, fmt.Errorf("%w: %w; after: %w", csierr.Uncertain, undo, err)
		}
	}
	return &csi.NodeStageVolumeResponse{}, err
}

// NodeUnstageVolume works for a volume that was deleted, too.
func (n *node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if !idPattern.MatchString(req.GetVolumeId()) {
		return nil, fmt.Errorf("%w: volume %q", csierr.NotFound, req.GetVolumeId())
	}
	err := n.ops.Unstage(ctx, nodeops.UnstageRequest{VolumeID: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath()})
	if err == nil {
		err = n.detach(ctx, req.GetVolumeId())
	}
	return &csi.NodeUnstageVolumeResponse{}, err
}

func (n *node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	v, err := n.attached(req.GetVolumeId(), req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	dev, err := n.loop(v.ID)
	if err == nil && (dev == nil || dev.Detaching) {
		err = fmt.Errorf("%w: volume %s is not staged", csierr.Precondition, v.ID)
	}
	if err != nil {
		return nil, err
	}
	device, mode := nodeops.Device{Path: dev.Path}, req.GetVolumeCapability().GetAccessMode().GetMode()
	readOnly := req.GetReadonly() || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	exclusive := csispec.IsSinglePublish(mode)
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		err = n.ops.PublishFilesystem(ctx, nodeops.PublishFilesystemRequest{
			VolumeID: v.ID, Device: device, StagingTargetPath: req.GetStagingTargetPath(),
			TargetPath: req.GetTargetPath(), MountFlags: mount.GetMountFlags(), ReadOnly: readOnly, Exclusive: exclusive,
		})
	} else {
		err = n.ops.PublishBlock(ctx, nodeops.PublishBlockRequest{
			VolumeID: v.ID, Device: device, TargetPath: req.GetTargetPath(), ReadOnly: readOnly, Exclusive: exclusive,
		})
	}
	return &csi.NodePublishVolumeResponse{}, err
}

func (n *node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: req.GetVolumeId(), TargetPath: req.GetTargetPath()})
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func (n *node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := n.load(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	dev, err := n.loop(v.ID)
	if err == nil && dev != nil {
		_, err = dev.Resize()
	}
	if err != nil {
		return nil, err
	}
	size, err := n.ops.Expand(ctx, nodeops.ExpandRequest{VolumeID: v.ID, VolumePath: req.GetVolumePath(), RequiredBytes: max(v.Size, req.GetCapacityRange().GetRequiredBytes())})
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, err
}

func (n *node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := n.load(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	s, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: v.ID, VolumePath: req.GetVolumePath()})
	return &csi.NodeGetVolumeStatsResponse{Usage: csispec.VolumeUsage(
		csispec.Usage{Total: s.TotalBytes, Available: s.AvailableBytes, Used: s.UsedBytes},
		csispec.Usage{Total: s.TotalInodes, Available: s.AvailableInodes, Used: s.UsedInodes},
	)}, err
}

// attached returns the volume if it is attached to this node.
func (n *node) attached(id string, capability *csi.VolumeCapability) (volume, error) {
	v, err := n.usable(id, nil, capability)
	if err == nil && v.Node != n.id {
		err = fmt.Errorf("%w: volume %s is attached to node %q, not to %q", csierr.Precondition, id, v.Node, n.id)
	}
	return v, err
}

// loop returns the loop device of a volume, or nil.
func (n *node) loop(id string) (*loopdev.Device, error) {
	dev, err := loopdev.Find(n.file(id, ".img"))
	if errors.Is(err, loopdev.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return dev, err
}

// detach frees the loop device of a volume, also if its image was deleted.
func (n *node) detach(ctx context.Context, id string) error {
	devices, err := loopdev.List()
	image, err2 := n.loop(id)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for _, dev := range devices {
		if (image == nil || dev.Number != image.Number) && (!dev.Deleted || dev.Backing != n.file(id, ".img")) {
			continue
		}
		err := n.ops.Released(ctx, nodeops.Device{Path: dev.Path}) // a published block device need not be open
		if err == nil {
			err = dev.Detach(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
