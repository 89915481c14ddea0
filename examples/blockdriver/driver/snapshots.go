package driver

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The part of the Controller service that is about snapshots, and about volumes that are
// created from them and from other volumes.

func init() {
	abilities = append(abilities, ability{
		of: implements[storage.Snapshotter],
		controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
			csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
			csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		},
	}, ability{
		of:         implements[storage.Cloner],
		controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CLONE_VOLUME},
	})
}

// snapshotter returns the storage with snapshots, or UNIMPLEMENTED.
func (c *controller) snapshotter() (storage.Snapshotter, error) {
	if s, ok := c.backend.(storage.Snapshotter); ok {
		return s, nil
	}
	return nil, status.Error(codes.Unimplemented, "the storage has no snapshots")
}

func (c *controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	b, err := c.snapshotter()
	if err != nil {
		return nil, err
	}
	// csi-sanity v5.6.0 cannot pass its spec of SNAPSHOT_ACCESSIBILITY_CONSTRAINTS
	// with any driver (it compares messages with their caches), and no CO uses it.
	if req.GetAccessibilityRequirements() != nil {
		return nil, status.Error(codes.InvalidArgument, "accessibility_requirements: a snapshot is where its volume is; send the request without it")
	}
	s, err := b.CreateSnapshot(ctx, storage.SnapshotSpec{
		Name: req.GetName(), SourceVolumeID: req.GetSourceVolumeId(), Parameters: ownKeys(req.GetParameters()), Secrets: req.GetSecrets(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: s.Message()}, nil
}

func (c *controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	b, err := c.snapshotter()
	if err != nil {
		return nil, err
	}
	if err := b.DeleteSnapshot(ctx, req.GetSnapshotId()); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	b, err := c.snapshotter()
	if err != nil {
		return nil, err
	}
	s, err := b.GetSnapshot(ctx, req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: s.Message()}, nil
}

// ListSnapshots filters as the spec says: what is not there is not in the list, and
// no error.
func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	b, err := c.snapshotter()
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{}
	add := func(s storage.Snapshot) {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s.Message()})
	}
	if id := req.GetSnapshotId(); id != "" {
		s, err := b.GetSnapshot(ctx, id)
		switch {
		case errors.Is(err, csierr.NotFound):
		case err != nil:
			return nil, err
		case req.GetSourceVolumeId() == "" || req.GetSourceVolumeId() == s.SourceVolumeID:
			add(s)
		}
		return resp, nil
	}
	page, next, err := b.ListSnapshots(ctx, req.GetSourceVolumeId(), req.GetStartingToken(), pageSize(req.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	resp.NextToken = next
	for _, s := range page {
		if !s.CreatedAt.IsZero() { // what cannot be read is reported by the log and by fsck
			add(s)
		}
	}
	return resp, nil
}
