package driver

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// groupController is the CSI group controller service: snapshots of several volumes
// at one point in time.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	backend storage.GroupSnapshotter
}

func init() {
	abilities = append(abilities, ability{
		of:         implements[storage.GroupSnapshotter],
		capability: csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
		service: func(b storage.Backend) csiserver.Option {
			return csiserver.WithGroupController(&groupController{backend: b.(storage.GroupSnapshotter)})
		},
	})
}

func (g *groupController) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: csispec.GroupControllerCapabilities(
		csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
	)}, nil
}

func (g *groupController) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	ids := slices.Sorted(slices.Values(req.GetSourceVolumeIds()))
	if len(slices.Compact(slices.Clone(ids))) != len(ids) {
		return nil, status.Error(codes.InvalidArgument, "source_volume_ids: a volume is in it twice")
	}
	group, err := g.backend.CreateGroup(ctx, storage.GroupSpec{
		Name: req.GetName(), VolumeIDs: ids, Parameters: ownKeys(req.GetParameters()), Secrets: req.GetSecrets(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: csiGroup(group)}, nil
}

func (g *groupController) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if err := g.backend.DeleteGroup(ctx, req.GetGroupSnapshotId(), req.GetSnapshotIds()); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

func (g *groupController) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	group, err := g.backend.GetGroup(ctx, req.GetGroupSnapshotId(), req.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: csiGroup(group)}, nil
}

func csiGroup(g storage.Group) *csi.VolumeGroupSnapshot {
	resp := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.CreatedAt), ReadyToUse: true}
	for _, s := range g.Snapshots {
		resp.Snapshots = append(resp.Snapshots, s.Message())
	}
	return resp
}
