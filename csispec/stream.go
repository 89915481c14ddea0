package csispec

import (
	"fmt"
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A MetadataRequest opens a stream of the SnapshotMetadata service: a
// GetMetadataAllocatedRequest or a GetMetadataDeltaRequest.
type MetadataRequest interface {
	proto.Message
	GetStartingOffset() int64
	GetMaxResults() int32
}

// A MetadataResponse is one message of such a stream.
type MetadataResponse interface {
	proto.Message
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// A MetadataStream validates the messages of a stream of GetMetadataAllocated or
// GetMetadataDelta against each other. [Validate] validates each message on its own. A
// MetadataStream is not safe for concurrent use.
type MetadataStream struct {
	start      int64
	maxResults int32
	messages   int
	blocks     int
	kind       csi.BlockMetadataType
	capacity   int64
	length     int64 // of every block, if they are of fixed length
	end        int64 // of the last block
}

// NewMetadataStream returns a MetadataStream for the responses to req.
func NewMetadataStream(req MetadataRequest) *MetadataStream {
	return &MetadataStream{start: req.GetStartingOffset(), maxResults: req.GetMaxResults()}
}

// Next validates the next message of the stream and returns a *[Violations]
// error for
//
//   - a block_metadata_type or volume_capacity_bytes other than in the first
//     message (metadata-type, metadata-capacity);
//   - a block that begins before the end of the previous one, in this or an earlier
//     message (metadata-order);
//   - a first block that ends at or before the starting_offset of the request
//     (metadata-start), or any response to a starting_offset beyond the
//     volume, which has to be OUT_OF_RANGE;
//   - blocks of different sizes although the type is FIXED_LENGTH
//     (metadata-length);
//   - more blocks than max_results of the request (metadata-count).
//
// After an error, further messages can be validated.
func (s *MetadataStream) Next(resp MetadataResponse) error {
	v := &Violations{Subject: string(resp.ProtoReflect().Descriptor().Name())}
	add := func(code codes.Code, field, rule, format string, args ...any) {
		v.All = append(v.All, Violation{Field: field, Rule: rule, Code: code, Text: fmt.Sprintf(format, args...)})
	}
	if s.messages == 0 {
		s.kind, s.capacity = resp.GetBlockMetadataType(), resp.GetVolumeCapacityBytes()
		if s.start > s.capacity {
			add(codes.OutOfRange, "volume_capacity_bytes", "metadata-start",
				"is %d, below the starting_offset %d of the request: return OUT_OF_RANGE", s.capacity, s.start)
		}
	}
	s.messages++
	if k := resp.GetBlockMetadataType(); k != s.kind {
		add(codes.Internal, "block_metadata_type", "metadata-type", "is %v after %v in the same stream", k, s.kind)
	}
	if c := resp.GetVolumeCapacityBytes(); c != s.capacity {
		add(codes.Internal, "volume_capacity_bytes", "metadata-capacity", "is %d after %d in the same stream", c, s.capacity)
	}
	if n := len(resp.GetBlockMetadata()); s.maxResults > 0 && n > int(s.maxResults) {
		add(codes.Internal, "block_metadata", "metadata-count", "has %d entries, the request allows %d", n, s.maxResults)
	}
	for i, b := range resp.GetBlockMetadata() {
		at, end := b.GetByteOffset(), blockEnd(b)
		switch {
		case s.blocks == 0 && end <= s.start:
			add(codes.Internal, index("block_metadata", i), "metadata-start",
				"ends at %d, not after the starting_offset %d of the request", end, s.start)
		case s.blocks > 0 && at < s.end:
			add(codes.Internal, index("block_metadata", i), "metadata-order", "begins at %d, before the end %d of the previous block", at, s.end)
		}
		if s.kind == csi.BlockMetadataType_FIXED_LENGTH {
			if s.blocks == 0 {
				s.length = b.GetSizeBytes()
			}
			if b.GetSizeBytes() != s.length {
				add(codes.Internal, index("block_metadata", i)+".size_bytes", "metadata-length",
					"is %d after %d although block_metadata_type is FIXED_LENGTH", b.GetSizeBytes(), s.length)
			}
		}
		s.blocks++
		s.end = max(s.end, end)
	}
	if len(v.All) == 0 {
		return nil
	}
	return v
}

// blockEnd saturates at the largest int64.
func blockEnd(b *csi.BlockMetadata) int64 {
	if b.GetByteOffset() > 0 && b.GetSizeBytes() > math.MaxInt64-b.GetByteOffset() {
		return math.MaxInt64
	}
	return b.GetByteOffset() + b.GetSizeBytes()
}
