package driver

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The part of the Controller service that is about snapshots, and about volumes that are
// created from them and from other volumes.

func init() {
	abilities = append(abilities,
		ability{implements[storage.Snapshotter], []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
			csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		}},
		ability{implements[storage.SnapshotLister], []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS}},
		ability{implements[storage.Cloner], []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CLONE_VOLUME}})
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
	own, _ := storage.SplitKeys(req.GetParameters())
	s, err := b.CreateSnapshot(ctx, storage.SnapshotSpec{
		Name: req.GetName(), SourceVolumeID: req.GetSourceVolumeId(), Parameters: own, Secrets: req.GetSecrets(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: csiSnapshot(s)}, nil
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
	return &csi.GetSnapshotResponse{Snapshot: csiSnapshot(s)}, nil
}

// ListSnapshots filters as the spec says: what does not exist is not in the list, and no
// error.
func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	b, err := c.snapshotter()
	list, ok := b.(storage.SnapshotLister)
	if err != nil || !ok {
		return c.UnimplementedControllerServer.ListSnapshots(ctx, req)
	}
	resp := &csi.ListSnapshotsResponse{}
	add := func(s storage.Snapshot) {
		if source := req.GetSourceVolumeId(); source == "" || source == s.SourceVolumeID {
			resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(s)})
		}
	}
	if id := req.GetSnapshotId(); id != "" {
		s, err := b.GetSnapshot(ctx, id)
		if errors.Is(err, csierr.NotFound) {
			return resp, nil
		}
		if err != nil {
			return nil, err
		}
		add(s)
		return resp, nil
	}
	limit := pageSize(req.GetMaxEntries())
	for token := req.GetStartingToken(); ; {
		page, next, err := list.ListSnapshots(ctx, token, limit-len(resp.Entries))
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			add(s)
		}
		if next == "" || len(resp.Entries) == limit {
			resp.NextToken = next
			return resp, nil
		}
		token = next // the page had no snapshot of that volume
	}
}

func csiSnapshot(s storage.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.SourceVolumeID, SizeBytes: s.SizeBytes,
		CreationTime: timestamppb.New(s.CreatedAt), ReadyToUse: true, // an incomplete copy is not a snapshot yet
	}
}
