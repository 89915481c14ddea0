package driver

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func init() {
	abilities = append(abilities, ability{
		of:         implements[storage.Backend],
		controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_GET_CAPACITY},
	})
}

// GetCapacity answers for Kubernetes' scheduler, which sends no volume
// capabilities, and the parameters of the storage class as they are. For a node
// whose driver reports no segments external-provisioner sets accessible_topology and
// leaves it empty: that is not set.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	least := storage.MinimumSizes[storage.AccessBlock]
	if len(req.GetVolumeCapabilities()) > 0 {
		accessType, err := accessTypeOf(req.GetVolumeCapabilities())
		if err != nil {
			return &csi.GetCapacityResponse{}, nil // no volume of that kind can be created
		}
		least = storage.MinimumSizes[accessType]
	}
	places, err := c.backend.Places(ctx, ownKeys(req.GetParameters()))
	if errors.Is(err, csierr.Invalid) {
		return &csi.GetCapacityResponse{}, nil // nor one with these parameters
	}
	if err != nil {
		return nil, err
	}
	resp := topology.Capacity(req.GetAccessibleTopology(), places)
	resp.MinimumVolumeSize = wrapperspb.Int64(least)
	return resp, nil
}
