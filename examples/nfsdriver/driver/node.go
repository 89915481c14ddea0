package driver

import (
	"context"
	"regexp"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the CSI node service: the storage says what to mount and how, and nodeops mounts
// it. It needs no controller, and to unpublish a volume only its path.
type node struct {
	csi.UnimplementedNodeServer
	nodeID     string
	maxVolumes int64
	mounts     storage.Mounts
	servers    *breaker.Group
	ops        *nodeops.Node
}

func newNode(cfg config, m storage.Mounts, s *breaker.Group, ops *nodeops.Node) *node {
	return &node{nodeID: cfg.nodeID, maxVolumes: cfg.maxVolumes, mounts: m, servers: s, ops: ops}
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.nodeID, MaxVolumesPerNode: n.maxVolumes}, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: csispec.NodeCapabilities(
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	)}, nil
}

// inlineID matches the IDs that kubelet generates for inline volumes. The ephemeral key
// is only present if CSIDriver has podInfoOnMount, and a pod can set any attribute.
var inlineID = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

func (n *node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	const op = "publish volume"
	capability := req.GetVolumeCapability()
	if err := checkCapability(capability); err != nil {
		return nil, err
	}
	attributes, kubernetes := storage.SplitKeys(req.GetVolumeContext())
	m, err := n.mounts.Mount(ctx, storage.MountRequest{
		VolumeID: req.GetVolumeId(), Context: attributes, MountFlags: capability.GetMount().GetMountFlags(),
		Inline:  kubernetes[csispec.VolumeContextEphemeral] == "true" || inlineID.MatchString(req.GetVolumeId()),
		Secrets: req.GetSecrets(),
	})
	if err != nil {
		return nil, csierr.Errorf(op, req.GetVolumeId(), "%w", err)
	}
	share := nodeops.PublishShareRequest{
		VolumeID: req.GetVolumeId(), Source: m.Source, FSType: m.FSType, TargetPath: req.GetTargetPath(),
		MountFlags: m.Options, Sensitive: m.Sensitive,
		ReadOnly: req.GetReadonly() || readerOnly(capability), Exclusive: csispec.IsSinglePublish(capability.GetAccessMode().GetMode()),
	}
	if err := n.servers.Watch(ctx, m.Server, func(ctx context.Context) error { return n.ops.PublishShare(ctx, share) }); err != nil {
		return nil, csierr.Errorf(op, req.GetVolumeId(), "%w", err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: req.GetVolumeId(), TargetPath: req.GetTargetPath()}); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats reports the usage of what is mounted, which of a share is the usage of
// the whole export.
func (n *node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if server := n.mounts.Server(req.GetVolumeId()); server != "" {
		// No statfs while the breaker is open: each one would block on the server.
		if err := n.servers.Allow(server); err != nil {
			return nil, err
		}
	}
	s, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: req.GetVolumeId(), VolumePath: req.GetVolumePath()})
	if err != nil {
		return nil, err
	}
	if !n.mounts.Shows(req.GetVolumeId(), s.Source) {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %s, but %s is", req.GetVolumeId(), req.GetVolumePath(), s.Source)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: csispec.VolumeUsage(
		csispec.Usage{Total: s.TotalBytes, Available: s.AvailableBytes, Used: s.UsedBytes},
		csispec.Usage{Total: s.TotalInodes, Available: s.AvailableInodes, Used: s.UsedInodes},
	)}, nil
}

// readerOnly reports whether the access mode requires a read-only mount.
func readerOnly(c *csi.VolumeCapability) bool {
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return true
	}
	return false
}
