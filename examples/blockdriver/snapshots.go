package main

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The part of the Controller service that is about snapshots, and about volumes
// that are created from them.

func (c *controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	// csi-sanity v5.6.0 cannot pass its spec of SNAPSHOT_ACCESSIBILITY_CONSTRAINTS
	// with any driver (it compares messages with their caches), and no CO uses it.
	if req.GetAccessibilityRequirements() != nil {
		return nil, status.Error(codes.InvalidArgument, "accessibility_requirements: a snapshot is where its volume is; send the request without it")
	}
	if err := checkSnapshotParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	s, err := c.backend.CreateSnapshot(ctx, SnapshotSpec{Name: req.GetName(), SourceVolumeID: req.GetSourceVolumeId()})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: csiSnapshot(s)}, nil
}

func (c *controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := c.backend.DeleteSnapshot(ctx, req.GetSnapshotId()); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	s, err := c.backend.GetSnapshot(ctx, req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: csiSnapshot(s)}, nil
}

// ListSnapshots filters as the spec says: what is not there is not in the list, and
// no error.
func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	resp := &csi.ListSnapshotsResponse{}
	add := func(s Snapshot) {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(s)})
	}
	if id := req.GetSnapshotId(); id != "" {
		s, err := c.backend.GetSnapshot(ctx, id)
		switch {
		case status.Code(err) == codes.NotFound:
		case err != nil:
			return nil, err
		case req.GetSourceVolumeId() == "" || req.GetSourceVolumeId() == s.SourceVolumeID:
			add(s)
		}
		return resp, nil
	}
	page, next, err := c.backend.ListSnapshots(ctx, req.GetSourceVolumeId(), req.GetStartingToken(), pageSize(req.GetMaxEntries()))
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

// contentSource returns what a new volume is to be created from.
func contentSource(s *csi.VolumeContentSource) (*Source, error) {
	switch {
	case s == nil:
		return nil, nil
	case s.GetSnapshot() != nil:
		return &Source{SnapshotID: s.GetSnapshot().GetSnapshotId()}, nil
	case s.GetVolume() != nil:
		return &Source{VolumeID: s.GetVolume().GetVolumeId()}, nil
	}
	return nil, status.Error(codes.InvalidArgument, "volume_content_source: neither a snapshot nor a volume")
}

func csiSource(s *Source) *csi.VolumeContentSource {
	switch {
	case s == nil:
		return nil
	case s.VolumeID != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.VolumeID},
		}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.SnapshotID},
	}}
}

func csiSnapshot(s Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.SourceVolumeID, SizeBytes: s.SizeBytes,
		CreationTime: timestamppb.New(s.CreatedAt), ReadyToUse: true, GroupSnapshotId: s.GroupID,
	}
}

func checkSnapshotParameters(parameters map[string]string) error {
	for key := range ownKeys(parameters) {
		return status.Error(codes.InvalidArgument, fmt.Sprintf("parameters: unknown: %q; remove it from the snapshot class", key))
	}
	return nil
}
