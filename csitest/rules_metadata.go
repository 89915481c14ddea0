package csitest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var snapshotMetadata = pluginCap(csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)

var metadataRules = []Rule{
	{
		ID: "snapshot.metadata.allocated", Level: Must, Spec: "GetMetadataAllocated",
		Title: "the stream of a snapshot's blocks ends, can be resumed, and is OUT_OF_RANGE beyond the volume",
		Why:   "A backup reads the stream, and resumes it behind the last block that it got.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.large().snapshot().GetSnapshotId()
			blocks, err := c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: 2})
			if err != nil {
				c.fail("a stream that ends with OK", "%v", err)
			}
			if n := len(blocks); n > 1 {
				if _, err := c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: blocks[n/2].GetByteOffset(), MaxResults: 2}); err != nil {
					c.fail("a stream from the middle", "%v", err)
				}
			}
			if _, err := c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: 1 << 60}); code(err) != codes.OutOfRange {
				c.fail("OUT_OF_RANGE for a starting_offset beyond the volume", "%v", err)
			}
		},
	},
	{
		ID: "snapshot.metadata.resumes", Level: Must, Spec: "GetMetadataAllocated",
		Title: "a stream that is resumed behind any block returns the rest of them",
		Why:   "A backup whose connection broke continues at the end of the last block that it has. What is missing then is missing in the backup.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.large().snapshot().GetSnapshotId()
			all := c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id})
			for i := range min(len(all), 8) {
				rest := c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: end(all[i]), MaxResults: 3})
				c.sameBytes(rest, all[i+1:], end(all[i]))
			}
		},
	},
	{
		ID: "snapshot.metadata.small-messages", Level: Must, Spec: "GetMetadataAllocated",
		Title: "the blocks do not depend on max_results",
		Why:   "max_results limits a message and not the stream. A driver that stops there backs up the beginning of the volume.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.large().snapshot().GetSnapshotId()
			all := c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id})
			c.sameBytes(c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: 1}), all, 0)
		},
	},
	{
		ID: "snapshot.metadata.within-volume", Level: Must, Spec: "GetMetadataAllocated",
		Title: "each message has volume_capacity_bytes, and no block ends behind it",
		Why:   "The reader has created a target of that size.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.large().snapshot().GetSnapshotId()
			all := c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id})
			size := c.streamed.Load()
			if size < 0 {
				c.fail("volume_capacity_bytes, which is REQUIRED", "a message without it")
			}
			for _, b := range all {
				if end(b) > size {
					c.fail(fmt.Sprintf("blocks within %d bytes", size), "%s", requestJSON(b))
				}
			}
		},
	},
	{
		ID: "snapshot.metadata.snapshot-missing", Level: Must, Spec: "GetMetadataAllocated",
		Title: "a snapshot that does not exist is NOT_FOUND",
		Why:   "An empty stream with OK is a backup of nothing.",
		Needs: needs(snapshotMetadata),
		check: func(c *ruleRun) {
			for _, id := range c.missingSnapshots() {
				if _, err := c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id}); code(err) != codes.NotFound {
					c.fail("NOT_FOUND for "+id, "%v", err)
				}
			}
		},
	},
	{
		ID: "snapshot.metadata.no-snapshot", Level: Must, Spec: "GetMetadataAllocated",
		Title: "a request without snapshot_id is INVALID_ARGUMENT",
		Why:   "An empty stream with OK is a backup of nothing.",
		Needs: needs(snapshotMetadata),
		check: func(c *ruleRun) {
			if _, err := c.allocated(&csi.GetMetadataAllocatedRequest{}); code(err) != codes.InvalidArgument {
				c.fail("INVALID_ARGUMENT", "%v", err)
			}
		},
	},
	{
		ID: "snapshot.metadata.negative-offset", Level: Must, Spec: "GetMetadataAllocated",
		Title: "a negative starting_offset is OUT_OF_RANGE",
		Why:   "The specification names the code for it. A driver that converts the number begins at the end of the volume, and the backup is empty.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.volume(tracked).snapshot().GetSnapshotId()
			if _, err := c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: -1}); code(err) != codes.OutOfRange && code(err) != codes.InvalidArgument {
				c.fail("OUT_OF_RANGE", "%v", err)
			}
		},
	},
	{
		ID: "snapshot.metadata.delta", Level: Must, Spec: "GetMetadataDelta",
		Title: "the stream of what changed between two snapshots ends, can be resumed, and is OUT_OF_RANGE beyond the volume",
		Why:   "An incremental backup reads it, and resumes it behind the last block that it got.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			base, target := c.twoSnapshots()
			all, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, MaxResults: 2})
			if code(err) == codes.FailedPrecondition {
				c.excuse("changes are not tracked: %v", err)
			}
			if err != nil {
				c.fail("a stream that ends with OK", "%v", err)
			}
			for i := range min(len(all), 4) {
				rest, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: end(all[i])})
				if err != nil {
					c.fail("a stream from the middle", "%v", err)
				}
				c.sameBytes(rest, all[i+1:], end(all[i]))
			}
			if _, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: 1 << 60}); code(err) != codes.OutOfRange {
				c.fail("OUT_OF_RANGE for a starting_offset beyond the volume", "%v", err)
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-missing", Level: Must, Spec: "GetMetadataDelta",
		Title: "a base or a target that does not exist is NOT_FOUND",
		Why:   "An empty stream with OK says that nothing has changed.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.volume(tracked).snapshot().GetSnapshotId()
			for _, missing := range c.missingSnapshots() {
				for _, req := range []*csi.GetMetadataDeltaRequest{{BaseSnapshotId: missing, TargetSnapshotId: id}, {BaseSnapshotId: id, TargetSnapshotId: missing}} {
					if _, err := c.delta(req); code(err) != codes.NotFound {
						c.fail("NOT_FOUND for "+requestJSON(req), "%v", err)
					}
				}
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-required", Level: Must, Spec: "GetMetadataDelta",
		Title: "a delta without base or target is INVALID_ARGUMENT",
		Why:   "An empty stream with OK says that nothing has changed.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			id := c.volume(tracked).snapshot().GetSnapshotId()
			for _, req := range []*csi.GetMetadataDeltaRequest{{TargetSnapshotId: id}, {BaseSnapshotId: id}} {
				if _, err := c.delta(req); code(err) != codes.InvalidArgument {
					c.fail("INVALID_ARGUMENT for "+requestJSON(req), "%v", err)
				}
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-other-volume", Level: Should, Spec: "GetMetadataDelta",
		Title: "two snapshots of different volumes have no delta",
		Why:   "Both must be of one volume. A backup combined from two volumes is unusable.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			req := &csi.GetMetadataDeltaRequest{BaseSnapshotId: c.volume(tracked).snapshot().GetSnapshotId(), TargetSnapshotId: c.volume(tracked).snapshot().GetSnapshotId()}
			if _, err := c.delta(req); err == nil {
				c.fail("INVALID_ARGUMENT, or another error", "OK")
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-within-allocated", Level: Must, Spec: "GetMetadataDelta",
		Title: "a delta and the stream of all blocks have the same volume_capacity_bytes",
		Why:   "The reader creates the target with the one size and writes it by the other.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			base, target := c.twoSnapshots()
			if _, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}); err != nil {
				c.excuse("there is no delta: %v", err)
			}
			delta := c.streamed.Load()
			c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: target})
			if all := c.streamed.Load(); all != 0 && delta != 0 && (all != delta || delta < 0) {
				c.fail(fmt.Sprintf("volume_capacity_bytes %d, as in GetMetadataAllocated", all), "%d", delta)
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-negative-offset", Level: Must, Spec: "GetMetadataDelta",
		Title: "a negative starting_offset of a delta is OUT_OF_RANGE",
		Why:   "The specification names the code for it. A driver that converts the number begins at the end of the volume, and the backup has no change.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			base, target := c.deltaSnapshots()
			if _, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: -1}); code(err) != codes.OutOfRange && code(err) != codes.InvalidArgument {
				c.fail("OUT_OF_RANGE", "%v", err)
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-small-messages", Level: Must, Spec: "GetMetadataDelta",
		Title: "the blocks of a delta do not depend on max_results",
		Why:   "max_results limits a message and not the stream. A driver that stops there backs up the first of the changes.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata),
		check: func(c *ruleRun) {
			base, target := c.deltaSnapshots()
			all, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target})
			if err != nil {
				c.fail("a stream that ends with OK", "%v", err)
			}
			some, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, MaxResults: 1})
			if err != nil {
				c.fail("a stream that ends with OK", "%v", err)
			}
			c.sameBytes(some, all, 0)
		},
	},
}

// tracked asks for raw block, where the driver has that: those are the volumes whose blocks
// backup programs read, and a driver may know the blocks of no others.
func tracked(c *ruleRun, r *csi.CreateVolumeRequest) {
	if c.has(blockAccess) {
		block(c, r)
	}
}

// large makes a volume of so many blocks that a stream has several messages.
func (c *ruleRun) large() *volume {
	return c.volume(tracked, func(c *ruleRun, r *csi.CreateVolumeRequest) {
		r.CapacityRange.RequiredBytes = max(r.CapacityRange.RequiredBytes, 1<<30)
	})
}

func (c *ruleRun) twoSnapshots() (base, target string) {
	v := c.large()
	return v.snapshot().GetSnapshotId(), v.snapshot().GetSnapshotId()
}

// missingSnapshots are the IDs of one that never existed, and of one that was deleted.
func (c *ruleRun) missingSnapshots() []string {
	ids := []string{c.name()}
	if c.has(createVolume) && c.has(createSnapshot) {
		id := c.volume(tracked).snapshot().GetSnapshotId()
		c.deleteSnapshot(id)
		ids = append(ids, id)
	}
	return ids
}

// deltaSnapshots are two of a volume whose changes are tracked.
func (c *ruleRun) deltaSnapshots() (base, target string) {
	base, target = c.twoSnapshots()
	if _, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}); code(err) == codes.FailedPrecondition {
		c.excuse("changes are not tracked: %v", err)
	}
	return base, target
}

func end(b *csi.BlockMetadata) int64 { return b.GetByteOffset() + b.GetSizeBytes() }

// sameBytes demands that two streams cover the same bytes from an offset on: how they
// are divided into blocks is the driver's choice.
func (c *ruleRun) sameBytes(got, want []*csi.BlockMetadata, from int64) {
	if g, w := extents(got, from), extents(want, from); !slices.Equal(g, w) {
		c.fail(fmt.Sprintf("the bytes %v", w), "%v", g)
	}
}

// extents are [from, to) pairs of the bytes covered at from and behind, joined.
func extents(blocks []*csi.BlockMetadata, from int64) (all []int64) {
	for _, b := range blocks {
		start := max(b.GetByteOffset(), from)
		switch n := len(all); {
		case end(b) <= start:
		case n > 0 && all[n-1] == start:
			all[n-1] = end(b)
		default:
			all = append(all, start, end(b))
		}
	}
	return all
}

func (c *ruleRun) mustAllocated(req *csi.GetMetadataAllocatedRequest) []*csi.BlockMetadata {
	all, err := c.allocated(req)
	if err != nil {
		c.fail("a stream that ends with OK", "%v", err)
	}
	return all
}

// allocated reads the whole stream.
func (c *ruleRun) allocated(req *csi.GetMetadataAllocatedRequest) (all []*csi.BlockMetadata, err error) {
	s, err := c.Metadata.GetMetadataAllocated(c.context(), req)
	if err != nil {
		return nil, err
	}
	return blocks(c, s.Recv)
}

// delta reads the whole stream.
func (c *ruleRun) delta(req *csi.GetMetadataDeltaRequest) (all []*csi.BlockMetadata, err error) {
	s, err := c.Metadata.GetMetadataDelta(c.context(), req)
	if err != nil {
		return nil, err
	}
	return blocks(c, s.Recv)
}

// blocks reads a stream, and records the size of the volume in it.
func blocks[M interface {
	GetBlockMetadata() []*csi.BlockMetadata
	GetVolumeCapacityBytes() int64
}](c *ruleRun, recv func() (M, error)) (all []*csi.BlockMetadata, err error) {
	c.streamed.Store(0)
	for {
		m, err := recv()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return all, err
		}
		all = append(all, m.GetBlockMetadata()...)
		c.streamed.Store(cmp.Or(m.GetVolumeCapacityBytes(), -1))
	}
}
