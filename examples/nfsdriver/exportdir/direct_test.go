package exportdir

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// direct calls a controller without a connection. A method that is not implemented here
// panics.
type direct struct {
	csi.ControllerClient
	to csi.ControllerServer
}

func (d direct) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest, _ ...grpc.CallOption) (*csi.CreateVolumeResponse, error) {
	return d.to.CreateVolume(ctx, r)
}

func (d direct) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest, _ ...grpc.CallOption) (*csi.DeleteVolumeResponse, error) {
	return d.to.DeleteVolume(ctx, r)
}

func (d direct) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest, _ ...grpc.CallOption) (*csi.CreateSnapshotResponse, error) {
	return d.to.CreateSnapshot(ctx, r)
}

func (d direct) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest, _ ...grpc.CallOption) (*csi.DeleteSnapshotResponse, error) {
	return d.to.DeleteSnapshot(ctx, r)
}

func (d direct) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest, _ ...grpc.CallOption) (*csi.ListVolumesResponse, error) {
	return d.to.ListVolumes(ctx, r)
}

func (d direct) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest, _ ...grpc.CallOption) (*csi.ListSnapshotsResponse, error) {
	return d.to.ListSnapshots(ctx, r)
}

func (d direct) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error) {
	return d.to.ControllerExpandVolume(ctx, r)
}

func (d direct) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest, _ ...grpc.CallOption) (*csi.GetCapacityResponse, error) {
	return d.to.GetCapacity(ctx, r)
}
