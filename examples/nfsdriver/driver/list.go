package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// The list of volumes.

func init() {
	abilities = append(abilities, ability{implements[storage.Lister], []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_LIST_VOLUMES}})
}

func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	b, ok := c.backend.(storage.Lister)
	if !ok {
		return c.UnimplementedControllerServer.ListVolumes(ctx, req)
	}
	page, next, err := b.ListVolumes(ctx, req.GetStartingToken(), pageSize(req.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range page {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: csiVolume(v)})
	}
	return resp, nil
}
