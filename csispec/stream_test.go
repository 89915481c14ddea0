package csispec_test

import (
	"math"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
)

func TestMetadataStream(t *testing.T) {
	const fixed, variable = csi.BlockMetadataType_FIXED_LENGTH, csi.BlockMetadataType_VARIABLE_LENGTH
	type stream []*csi.GetMetadataDeltaResponse
	// next takes alternating offsets and sizes.
	next := func(kind csi.BlockMetadataType, capacity int64, blocks ...int64) *csi.GetMetadataDeltaResponse {
		m := &csi.GetMetadataDeltaResponse{BlockMetadataType: kind, VolumeCapacityBytes: capacity}
		for b := range slices.Chunk(blocks, 2) {
			m.BlockMetadata = append(m.BlockMetadata, &csi.BlockMetadata{ByteOffset: b[0], SizeBytes: b[1]})
		}
		return m
	}
	for _, tt := range []struct {
		name  string
		start int64
		limit int32
		s     stream
		want  []string // of the last message; those before are fine
	}{
		{name: "empty message", s: stream{next(variable, 9), next(variable, 9, 0, 1)}},
		{name: "ascending", limit: 2, s: stream{next(variable, 9, 0, 1, 1, 2), next(variable, 9), next(variable, 9, 5, 1)}},
		{name: "fixed", s: stream{next(fixed, 9, 0, 2, 4, 2), next(fixed, 9, 6, 2)}},
		{name: "resumed within a block", start: 3, s: stream{next(fixed, 9, 2, 2)}},
		{name: "at the end", start: 9, s: stream{next(fixed, 9)}},
		{name: "type", s: stream{next(variable, 9), next(fixed, 9)}, want: []string{"block_metadata_type metadata-type Internal"}},
		{name: "capacity", s: stream{next(variable, 9), next(variable, 8)}, want: []string{"volume_capacity_bytes metadata-capacity Internal"}},
		{name: "overlap", s: stream{next(variable, 9, 0, 3, 2, 1)}, want: []string{"block_metadata[1] metadata-order Internal"}},
		{name: "overlap between messages", s: stream{next(variable, 9, 4, 3), next(variable, 9, 6, 1)}, want: []string{"block_metadata[0] metadata-order Internal"}},
		{name: "backwards", s: stream{next(variable, 9, 4, 3), next(variable, 9, 0, 1, 7, 1)}, want: []string{"block_metadata[0] metadata-order Internal"}},
		{name: "twice", s: stream{next(variable, 9, 0, 1, 0, 1)}, want: []string{"block_metadata[1] metadata-order Internal"}},
		{name: "before the start", start: 4, s: stream{next(variable, 9), next(variable, 9, 2, 2)}, want: []string{"block_metadata[0] metadata-start Internal"}},
		{name: "start beyond", start: 10, s: stream{next(variable, 9)}, want: []string{"volume_capacity_bytes metadata-start OutOfRange"}},
		{name: "length", s: stream{next(fixed, 9, 0, 2, 2, 1)}, want: []string{"block_metadata[1].size_bytes metadata-length Internal"}},
		{name: "length between messages", s: stream{next(fixed, 9, 0, 2), next(fixed, 9, 2, 3)}, want: []string{"block_metadata[0].size_bytes metadata-length Internal"}},
		{name: "count", limit: 1, s: stream{next(variable, 9, 0, 1), next(variable, 9, 1, 1, 2, 1)}, want: []string{"block_metadata metadata-count Internal"}},
		{name: "overflow", s: stream{next(variable, 9, 5, math.MaxInt64), next(variable, 9, 6, 1)}, want: []string{"block_metadata[0] metadata-order Internal"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := csispec.NewMetadataStream(&csi.GetMetadataDeltaRequest{StartingOffset: tt.start, MaxResults: tt.limit})
			for i, m := range tt.s {
				var want []string
				if i == len(tt.s)-1 {
					want = tt.want
				}
				if got := broken(s.Next(m)); !slices.Equal(got, want) {
					t.Errorf("message %d: got %q, want %q", i, got, want)
				}
			}
		})
	}
	t.Run("allocated", func(t *testing.T) {
		s := csispec.NewMetadataStream(&csi.GetMetadataAllocatedRequest{MaxResults: 1})
		if err := s.Next(&csi.GetMetadataAllocatedResponse{BlockMetadata: make([]*csi.BlockMetadata, 2)}); err == nil {
			t.Error("no violation")
		}
	})
}
