package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// snapshotMetadataServer is the CSI snapshot metadata service: what of a snapshot has to be
// backed up, and what of it since another one.
type snapshotMetadataServer struct {
	csi.UnimplementedSnapshotMetadataServer
	backend storage.ChangedBlocks
}

func init() {
	abilities = append(abilities, ability{
		of:         implements[storage.ChangedBlocks],
		capability: csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE,
		service: func(b storage.Backend) csiserver.Option {
			return csiserver.WithSnapshotMetadata(&snapshotMetadataServer{backend: b.(storage.ChangedBlocks)})
		},
	})
}

// maxResults is used where the request leaves it to us: a message of that many is
// far below gRPC's 4 MiB.
const maxResults = 4096

func (s *snapshotMetadataServer) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return s.send(stream.Context(), "", req.GetSnapshotId(), req.GetStartingOffset(), req.GetMaxResults(), func(size int64, blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: size, BlockMetadata: blocks,
		})
	})
}

func (s *snapshotMetadataServer) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	base, err := s.backend.GetSnapshot(stream.Context(), req.GetBaseSnapshotId())
	if err != nil {
		return err
	}
	target, err := s.backend.GetSnapshot(stream.Context(), req.GetTargetSnapshotId())
	if err != nil {
		return err
	}
	if base.SourceVolumeID != target.SourceVolumeID {
		return status.Errorf(codes.InvalidArgument, "base_snapshot_id: snapshot %s is of volume %s, the target of %s", base.ID, base.SourceVolumeID, target.SourceVolumeID)
	}
	if base.CreatedAt.After(target.CreatedAt) {
		return status.Errorf(codes.InvalidArgument, "base_snapshot_id: snapshot %s is younger than the target; exchange them", base.ID)
	}
	return s.send(stream.Context(), base.ID, target.ID, req.GetStartingOffset(), req.GetMaxResults(), func(size int64, blocks []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: size, BlockMetadata: blocks,
		})
	})
}

// send sends the blocks, at most limit in a message, and one message without any if
// there are none.
func (s *snapshotMetadataServer) send(ctx context.Context, baseID, id string, offset int64, limit int32, message func(size int64, blocks []*csi.BlockMetadata) error) error {
	snap, err := s.backend.GetSnapshot(ctx, id)
	if err != nil {
		return err
	}
	if offset < 0 || offset > snap.SizeBytes {
		return status.Errorf(codes.OutOfRange, "starting_offset %d: the snapshot has %d bytes", offset, snap.SizeBytes)
	}
	if limit <= 0 || limit > maxResults {
		limit = maxResults
	}
	sent, blocks := false, []*csi.BlockMetadata{}
	err = s.backend.Blocks(ctx, baseID, id, offset, func(at, size int64) error {
		if blocks = append(blocks, &csi.BlockMetadata{ByteOffset: at, SizeBytes: size}); len(blocks) < int(limit) {
			return nil
		}
		full := blocks
		sent, blocks = true, []*csi.BlockMetadata{}
		return message(snap.SizeBytes, full)
	})
	if err != nil || sent && len(blocks) == 0 {
		return err
	}
	return message(snap.SizeBytes, blocks)
}
