package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func init() {
	abilities = append(abilities, ability{
		of:         implements[storage.Modifier],
		controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_MODIFY_VOLUME},
	})
}

// ControllerModifyVolume changes a volume to what a VolumeAttributesClass says.
func (c *controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	b, ok := c.backend.(storage.Modifier)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the storage cannot modify volumes")
	}
	mutable := ownKeys(req.GetMutableParameters())
	if _, err := c.backend.GetVolume(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := b.CheckMutable(mutable); err != nil {
		return nil, err
	}
	if err := b.ModifyVolume(ctx, req.GetVolumeId(), mutable); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}
