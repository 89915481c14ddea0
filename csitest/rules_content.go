package csitest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// contentRules compare the streams with what was written.
var contentRules = []Rule{
	{
		ID: "snapshot.metadata.covers-writes", Level: Must, Spec: "GetMetadataAllocated",
		Title: "every block that was written before the snapshot is in the stream",
		Why:   "A backup has the blocks of the stream. A block that is missing there is zeros after the restore, without an error.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata, nodeService, blockAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume(block)
			written := v.writeBlocks(0, 1, 5, 11, writtenParts-1)
			id := v.snapshot().GetSnapshotId()
			for _, most := range []int32{0, 1} { // with a limit the seams are between these blocks
				c.covers(c.mustAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id, MaxResults: most}), written)
			}
		},
	},
	{
		ID: "snapshot.metadata.delta-covers-changes", Level: Must, Spec: "GetMetadataDelta",
		Title: "every block that was written between two snapshots is in the delta, whether it had data before or not",
		Why:   "An incremental backup copies the blocks of the delta. A block that is missing there keeps the data of the last backup, without an error.",
		Needs: needs(createVolume, createSnapshot, snapshotMetadata, nodeService, blockAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume(block)
			v.writeBlocks(0, 1, 5)
			base := v.snapshot().GetSnapshotId()
			changed := v.writeBlocks(1, 3, writtenParts-1)
			delta, err := c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: v.snapshot().GetSnapshotId()})
			switch {
			case code(err) == codes.FailedPrecondition:
				c.excuse("changes are not tracked: %v", err)
			case err != nil:
				c.fail("a stream that ends with OK", "%v", err)
			}
			c.covers(delta, changed)
		},
	},
}

// writtenParts is how many parts of a volume writeBlocks can write.
const writtenParts = 13

// writeBlocks writes a few KiB at the end of the n-th part of a raw block volume, for every
// n, and takes the volume down: what was written is in the storage then. It returns the
// bytes, as extents does.
func (v *volume) writeBlocks(parts ...int64) (written []int64) {
	const size = 12 << 10 // not a power of two
	v.up("writer")
	end, err := deviceSize(v.targetPath("writer"))
	if want := cmp.Or(v.created.GetCapacityBytes(), v.made.GetCapacityRange().GetRequiredBytes()); err == nil && end == 0 {
		end = want // a file, as of a driver that has no real devices
	}
	for _, n := range parts {
		at := (end*(n+1)/writtenParts - size) &^ (4<<10 - 1)
		if err == nil {
			err = v.c.run.writeBehind(v.targetPath("writer"), at, bytesOf(v.c.name(), size))
		}
		written = append(written, at, at+size)
	}
	if err != nil {
		v.c.fail("a device that can be written", "%v", err)
	}
	v.unpublish("writer").unstage().detach()
	return written
}

// covers demands that every pair of [from, to) in written is among the blocks.
func (c *ruleRun) covers(blocks []*csi.BlockMetadata, written []int64) {
	blocks = slices.SortedFunc(slices.Values(blocks), func(a, b *csi.BlockMetadata) int { return cmp.Compare(a.GetByteOffset(), b.GetByteOffset()) })
	all := extents(blocks, 0)
	for i := 0; i < len(written); i += 2 {
		in := false
		for j := 0; j < len(all); j += 2 {
			in = in || all[j] <= written[i] && written[i+1] <= all[j+1]
		}
		if !in {
			c.error(fmt.Sprintf("the bytes from %d to %d, which were written", written[i], written[i+1]), "blocks of the bytes %v", all)
		}
	}
}
