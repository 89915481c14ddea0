package driver

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// blocks has the snapshots a and b of one volume, and c of another, each of 5 MiB with data
// in every other MiB.
type blocks struct {
	storage.Backend
	storage.ChangedBlocks
}

func (blocks) GetSnapshot(_ context.Context, id string) (storage.Snapshot, error) {
	source := map[string]string{"a": "vol-1", "b": "vol-1", "c": "vol-2"}[id]
	if source == "" {
		return storage.Snapshot{}, csierr.Errorf("get snapshot", id, "%w", csierr.NotFound)
	}
	return storage.Snapshot{ID: id, SourceVolumeID: source, SizeBytes: 5 * mib, CreatedAt: time.Unix(int64(id[0]), 0)}, nil
}

func (blocks) Blocks(_ context.Context, _, _ string, from int64, each func(at, size int64) error) error {
	for at := from; at < 5*mib; at += 2 * mib {
		if err := each(at, mib); err != nil {
			return err
		}
	}
	return nil
}

type metadataStream struct {
	grpc.ServerStream
	ctx      context.Context
	messages []int // how many blocks each has
}

func (s *metadataStream) Context() context.Context { return s.ctx }

func (s *metadataStream) Send(m *csi.GetMetadataDeltaResponse) error {
	s.messages = append(s.messages, len(m.GetBlockMetadata()))
	return nil
}

func TestChangedBlocks(t *testing.T) {
	if services, capabilities := servicesOf(blocks{}); len(services) != 1 || !slices.Contains(capabilities, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE) {
		t.Errorf("a storage with changed blocks has %v", capabilities)
	}
	server := &snapshotMetadataServer{backend: blocks{}}
	for _, test := range []struct {
		base, target string
		offset       int64
		most         int32
		code         codes.Code
		want         []int
	}{
		{"a", "b", 0, 0, codes.OK, []int{3}},
		{"a", "b", 0, 2, codes.OK, []int{2, 1}},
		{"a", "b", 0, 3, codes.OK, []int{3}},
		{"a", "b", 4 * mib, 1, codes.OK, []int{1}},
		{"a", "b", 5 * mib, 0, codes.OK, []int{0}},
		{"a", "b", 5*mib + 1, 0, codes.OutOfRange, nil},
		{"b", "a", 0, 0, codes.InvalidArgument, nil},
		{"a", "c", 0, 0, codes.InvalidArgument, nil},
		{"a", "d", 0, 0, codes.NotFound, nil},
		{"d", "a", 0, 0, codes.NotFound, nil},
	} {
		stream := &metadataStream{ctx: t.Context()}
		err := server.GetMetadataDelta(&csi.GetMetadataDeltaRequest{
			BaseSnapshotId: test.base, TargetSnapshotId: test.target, StartingOffset: test.offset, MaxResults: test.most,
		}, stream)
		wantCode(t, err, test.code)
		if !slices.Equal(stream.messages, test.want) {
			t.Errorf("%+v: messages of %v blocks", test, stream.messages)
		}
	}
}
