package main

import (
	"context"
	"fmt"
	"regexp"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeServer is the node service: it determines what to mount and how, and nodeops mounts
// it. It needs neither the controller nor the records on the server, and to unpublish a
// volume only its path.
type nodeServer struct {
	csi.UnimplementedNodeServer
	nodeID     string
	maxVolumes int64
	known      []export // allowed for volumes; nil: any
	inline     []export // allowed for inline volumes
	fsType     string
	servers    *servers
	ops        *nodeops.Node
}

func newNode(cfg config, s *servers, ops *nodeops.Node) *nodeServer {
	return &nodeServer{nodeID: cfg.nodeID, maxVolumes: cfg.maxVolumes, known: cfg.exports, inline: cfg.inline, fsType: cfg.fsType, servers: s, ops: ops}
}

func (n *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.nodeID, MaxVolumesPerNode: n.maxVolumes}, nil
}

func (n *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: csispec.NodeCapabilities(
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	)}, nil
}

func (n *nodeServer) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	capability := req.GetVolumeCapability()
	if err := checkCapability(capability); err != nil {
		return nil, err
	}
	flags := capability.GetMount().GetMountFlags()
	ref, err := n.shareOf(req.GetVolumeId(), req.GetVolumeContext(), flags)
	if err == nil {
		flags, err = mountOptions(ref.export, flags, req.GetVolumeContext()[attrMountOptions])
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	share := nodeops.PublishShareRequest{
		VolumeID: req.GetVolumeId(), Source: ref.source(ref.SubDir), FSType: n.fsType, TargetPath: req.GetTargetPath(),
		MountFlags: flags, ReadOnly: req.GetReadonly() || readerOnly(capability), Exclusive: csispec.IsSinglePublish(capability.GetAccessMode().GetMode()),
	}
	if err := n.servers.Watch(ctx, ref.export, func(ctx context.Context) error { return n.ops.PublishShare(ctx, share) }); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// inlineID matches the IDs that kubelet generates for inline volumes. The ephemeral key
// is only present if CSIDriver has podInfoOnMount, and a pod can set any attribute.
var inlineID = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// shareOf returns what to mount, or an error if that is not allowed. An inline volume may
// only be on an export of -inline-exports, which also has the options to reach it.
func (n *nodeServer) shareOf(id string, attributes map[string]string, flags []string) (volumeRef, error) {
	ref, err := shareOf(id, attributes, flags)
	if err != nil {
		return ref, err
	}
	if attributes[csispec.VolumeContextEphemeral] != "true" && !inlineID.MatchString(id) {
		return ref, allowed(n.known, ref.export)
	}
	for _, e := range n.inline {
		if compareExports(e, ref.export) == 0 {
			ref.export = e
			return ref, nil
		}
	}
	return ref, fmt.Errorf("the export %s is not one of -inline-exports, and inline volumes are only allowed on those", ref.export)
}

// shareOf returns what to mount. A volume of this driver has it in its ID; a
// PersistentVolume created by an administrator, and an inline volume, have it in their
// attributes: server, share and optionally subDir.
func shareOf(id string, attributes map[string]string, flags []string) (volumeRef, error) {
	if err := knownKeys("volume_context", attributes, []string{paramServer, paramShare, paramSubDir, attrMountOptions}); err != nil {
		return volumeRef{}, err
	}
	ref, notOurs := parseVolumeID(id)
	if attributes[paramServer] == "" && notOurs == nil && ref.SubDir != "" {
		return ref, nil
	}
	if attributes[paramServer] == "" {
		if notOurs == nil {
			notOurs = fmt.Errorf("the volume ID %q has no subDir", id)
		}
		return volumeRef{}, fmt.Errorf("%w; the volume's attributes must have server, share and subDir", notOurs)
	}
	e, err := exportOf(attributes, flags)
	if err != nil {
		return volumeRef{}, err
	}
	given := volumeRef{export: e, SubDir: attributes[paramSubDir]}
	if given.SubDir != "" {
		if err := checkSubDir(given.SubDir); err != nil {
			return volumeRef{}, err
		}
	}
	if notOurs == nil {
		if ref.Server != given.Server || ref.Share != given.Share || given.SubDir == "" || ref.key() != given.key() {
			return volumeRef{}, fmt.Errorf("the attributes refer to %s, which is not the volume of the ID %q", given.source(given.SubDir), id)
		}
		ref.SubDir = given.SubDir
		return ref, nil
	}
	return given, nil
}

func (n *nodeServer) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: req.GetVolumeId(), TargetPath: req.GetTargetPath()}); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats reports the usage of the export, because NFS has none of the volume.
func (n *nodeServer) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	ref, notOurs := parseVolumeID(req.GetVolumeId())
	if notOurs == nil {
		// No statfs while the breaker is open: each one would block on the server.
		if err := n.servers.Allow(ref.Server); err != nil {
			return nil, err
		}
	}
	s, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: req.GetVolumeId(), VolumePath: req.GetVolumePath()})
	if err != nil {
		return nil, err
	}
	if notOurs == nil && !ref.isAt(s.Source) {
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
