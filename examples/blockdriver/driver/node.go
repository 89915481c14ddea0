package driver

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the CSI node service: the storage makes the device of a volume appear, and nodeops
// does the rest. All that it knows of a volume is in the request.
type node struct {
	csi.UnimplementedNodeServer
	cfg     config
	storage storage.Devices
	devices storage.Devices // the same, or with what encryption.go adds
	ops     *nodeops.Node
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.cfg.nodeID, MaxVolumesPerNode: n.cfg.maxVolumes, AccessibleTopology: n.cfg.topology.Topology()}, nil
}

// NodeGetCapabilities leaves out VOLUME_MOUNT_GROUP: ext4 and xfs have no mount option
// for a group. With it kubelet would pass the pod's fsGroup here and not change the group
// of the files, as fsGroupPolicy: File of the CSIDriver asks.
func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	for _, a := range abilities {
		if len(a.node) > 0 && a.of(n.storage) {
			types = append(types, a.node...)
		}
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: csispec.NodeCapabilities(types...)}, nil
}

func (n *node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	r, err := requestOf(req)
	if err != nil {
		return nil, err
	}
	dev, err := n.devices.Attach(ctx, r)
	if err != nil {
		return nil, err
	}
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		err = n.ops.StageFilesystem(ctx, nodeops.StageFilesystemRequest{
			VolumeID: r.VolumeID, Device: dev, StagingTargetPath: req.GetStagingTargetPath(), FSType: r.AccessType,
			MountFlags: mount.GetMountFlags(), ReadOnly: r.ReadOnly, MustHoldData: r.HoldsData,
			Prezeroed: r.Prezeroed && r.Encryption == "", // zeros of the storage are noise when they are decrypted
		})
	} else {
		err = n.ops.StageBlock(ctx, nodeops.StageBlockRequest{VolumeID: req.GetVolumeId(), Device: dev, StagingTargetPath: req.GetStagingTargetPath()})
	}
	if err == nil {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	// After a final error the CO does not unstage, so a device that nothing uses goes,
	// whichever call attached it; unless the work is still in flight, then the retry needs it.
	var parked interface{ Pending() <-chan struct{} }
	if !errors.As(err, &parked) {
		if undo := n.detach(ctx, req.GetVolumeId()); undo != nil && !errors.Is(undo, csierr.Precondition) {
			return nil, status.Errorf(codes.Unavailable, "%v; and the device remains: %v", err, undo)
		}
	}
	return nil, err
}

// NodeUnstageVolume needs no more than the ID: the volume need not exist any more.
func (n *node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := n.ops.Unstage(ctx, nodeops.UnstageRequest{VolumeID: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath()}); err != nil {
		return nil, err
	}
	if err := n.detach(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	r, err := requestOf(req)
	if err != nil {
		return nil, err
	}
	// Only a stage attaches: a device of this call's making would be seen by another publish.
	if _, err := n.devices.Find(ctx, req.GetVolumeId()); errors.Is(err, csierr.NotFound) {
		return nil, csierr.Errorf("publish volume", req.GetVolumeId(), "%w: stage it first", err)
	} else if err != nil {
		return nil, err
	}
	dev, err := n.devices.Attach(ctx, r) // the volume may have been detached or deleted since it was staged
	if err != nil {
		return nil, err
	}
	readOnly := req.GetReadonly() || r.ReadOnly
	once := csispec.IsSinglePublish(req.GetVolumeCapability().GetAccessMode().GetMode())
	if mount := req.GetVolumeCapability().GetMount(); mount != nil {
		err = n.ops.PublishFilesystem(ctx, nodeops.PublishFilesystemRequest{
			VolumeID: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath(), Device: dev,
			TargetPath: req.GetTargetPath(), MountFlags: mount.GetMountFlags(), ReadOnly: readOnly, Exclusive: once,
		})
	} else {
		err = n.ops.PublishBlock(ctx, nodeops.PublishBlockRequest{
			VolumeID: req.GetVolumeId(), Device: dev, TargetPath: req.GetTargetPath(), ReadOnly: readOnly, Exclusive: once,
		})
	}
	if err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: req.GetVolumeId(), TargetPath: req.GetTargetPath()}); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if _, err := n.devices.Find(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	s, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: req.GetVolumeId(), VolumePath: req.GetVolumePath()})
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: csispec.VolumeUsage(
		csispec.Usage{Total: s.TotalBytes, Available: s.AvailableBytes, Used: s.UsedBytes},
		csispec.Usage{Total: s.TotalInodes, Available: s.AvailableInodes, Used: s.UsedInodes},
	)}, nil
}

func (n *node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	size, err := n.devices.Rescan(ctx, req.GetVolumeId(), req.GetSecrets())
	if want := req.GetCapacityRange().GetRequiredBytes(); err == nil && size < want {
		err = status.Errorf(codes.Unavailable, "the device has %d bytes of the volume, %d are required: it has not grown yet", size, want)
	}
	if err != nil {
		return nil, err
	}
	if _, err := n.ops.Expand(ctx, nodeops.ExpandRequest{VolumeID: req.GetVolumeId(), VolumePath: req.GetVolumePath()}); err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// detach removes the device of the volume, if it has one, once it is released: a raw block
// publication does not keep the device open, and another mount namespace may still have the
// file system mounted. What was lost of a volume must not keep its device: without an answer
// of Find it is for the storage to refuse one that is in use.
func (n *node) detach(ctx context.Context, volumeID string) error {
	if dev, err := n.devices.Find(ctx, volumeID); err == nil {
		if err := n.ops.Released(ctx, nodeops.Device{Path: dev.Path}); err != nil {
			return csierr.Errorf("detach device of volume", volumeID, "%w", err)
		}
	}
	return n.devices.Detach(ctx, volumeID)
}

// What the controller says of a volume that it has attached, in the publish context beside
// the keys of the storage: a node cannot ask it.
const (
	keyAccessType, keyEncryption, keyReadOnly = "accessType", "encryption", "readOnly"
	keyHoldsData, keyPrezeroed                = "holdsData", "prezeroed"
)

// publishContextOf adds the keys of the driver to those of the storage.
func publishContextOf(v storage.Volume, a storage.Attachment, ofStorage map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, ofStorage)
	all[keyAccessType], all[keyReadOnly] = v.AccessType, strconv.FormatBool(a.ReadOnly)
	if e := v.Parameters[storage.ParamEncryption]; e != "" {
		all[keyEncryption] = e
	}
	all[keyHoldsData], all[keyPrezeroed] = strconv.FormatBool(v.HoldsData), strconv.FormatBool(v.Prezeroed)
	return all
}

// useRequest is a NodeStageVolumeRequest or a NodePublishVolumeRequest.
type useRequest interface {
	GetVolumeId() string
	GetVolumeCapability() *csi.VolumeCapability
	GetPublishContext() map[string]string
	GetVolumeContext() map[string]string
	GetSecrets() map[string]string
}

// requestOf returns the request to the storage, if the volume can be used as the CO asks.
func requestOf(req useRequest) (storage.DeviceRequest, error) {
	accessType, err := checkCapability(req.GetVolumeCapability())
	if err != nil {
		return storage.DeviceRequest{}, err
	}
	rest := maps.Clone(req.GetPublishContext())
	take := func(key string) string { defer delete(rest, key); return rest[key] }
	_, stage := req.(*csi.NodeStageVolumeRequest)
	r := storage.DeviceRequest{
		VolumeID: req.GetVolumeId(), PublishContext: rest, VolumeContext: ownKeys(req.GetVolumeContext()), Secrets: req.GetSecrets(),
		Stage: stage, AccessType: take(keyAccessType), Encryption: take(keyEncryption),
		HoldsData: take(keyHoldsData) != "false", Prezeroed: take(keyPrezeroed) == "true", ReadOnly: take(keyReadOnly) == "true",
	}
	switch {
	case parameters[storage.ParamEncryption] == nil && r.Encryption != "":
		err = status.Errorf(codes.FailedPrecondition, "volume %s is encrypted with %q, which this driver does not support", r.VolumeID, r.Encryption)
	case r.AccessType == accessType:
	case r.AccessType == "":
		err = status.Errorf(codes.FailedPrecondition, "publish_context: it has no key %q: ControllerPublishVolume comes first", keyAccessType)
	default:
		err = status.Errorf(codes.FailedPrecondition, "volume %s was created for access as %s and cannot be used as %s", r.VolumeID, r.AccessType, accessType)
	}
	if req.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
		r.ReadOnly = true
	}
	return r, err
}
