package filepool_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

type blockRange struct{ at, size int64 }

// blocks reads a stream to its end and checks its rules.
func blocks[M interface {
	GetBlockMetadata() []*csi.BlockMetadata
	GetVolumeCapacityBytes() int64
	GetBlockMetadataType() csi.BlockMetadataType
}](t *testing.T, recv func() (M, error), offset, capacity int64, limit int) (all []blockRange, err error) {
	t.Helper()
	end, messages := offset, 0
	for ; ; messages++ {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			if messages == 0 {
				t.Error("a stream without a message")
			}
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if m.GetVolumeCapacityBytes() != capacity || m.GetBlockMetadataType() != csi.BlockMetadataType_VARIABLE_LENGTH || limit > 0 && len(m.GetBlockMetadata()) > limit {
			t.Errorf("message %v", m)
		}
		for _, b := range m.GetBlockMetadata() {
			if b.GetSizeBytes() <= 0 || b.GetByteOffset() < end {
				t.Errorf("range %v after %d", b, end)
			}
			end = b.GetByteOffset() + b.GetSizeBytes()
			all = append(all, blockRange{b.GetByteOffset(), b.GetSizeBytes()})
		}
	}
}

// A backup that applies the delta of two snapshots to the first has the second, and one that
// copies what is allocated has the snapshot: on file systems that share blocks and on
// those that do not.
func TestSnapshotMetadata(t *testing.T) {
	for _, fsType := range []string{"", "xfs", "btrfs"} {
		t.Run("pool on "+fsType, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pool")
			if fsType != "" {
				mountPool(t, dir, fsType)
			}
			makePool(t, dir)
			conn := serveController(t, "-pool", dir, "-reserve", "0")
			client, controller := csi.NewSnapshotMetadataClient(conn), csi.NewControllerClient(conn)
			create := func(name string) string {
				t.Helper()
				v, err := controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
					Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}, VolumeCapabilities: []*csi.VolumeCapability{ext4},
				}, grpc.WaitForReady(true))
				must(t, err)
				return v.GetVolume().GetVolumeId()
			}
			snapshotOf := func(name, volumeID string) string {
				t.Helper()
				s, err := controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volumeID})
				must(t, err)
				return s.GetSnapshot().GetSnapshotId()
			}
			v := create("a")
			image := filepath.Join(dir, "volumes", v+filepool.ExtImage)
			imageOf := func(snapshotID string) string { return filepath.Join(dir, "snapshots", snapshotID+filepool.ExtImage) }
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			scribble := func() {
				t.Helper()
				f, err := os.OpenFile(image, os.O_WRONLY, 0)
				must(t, err)
				for range 20 {
					data := make([]byte, 1+r.IntN(200_000))
					if r.IntN(4) > 0 { // else zeros
						for i := range data {
							data[i] = byte(r.Uint32())
						}
					}
					_, err := f.WriteAt(data, r.Int64N(63*mib))
					must(t, err)
				}
				must(t, f.Close())
			}
			scribble()
			base := snapshotOf("base", v)
			scribble()
			_, err := controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: v, CapacityRange: &csi.CapacityRange{RequiredBytes: 80 * mib}})
			must(t, err)
			filepool.WriteAt(t, image, "the end", 80*mib-7)
			target := snapshotOf("target", v)
			want, err := os.ReadFile(imageOf(target))
			must(t, err)
			apply := func(image []byte, ranges []blockRange) {
				t.Helper()
				for _, x := range ranges {
					copy(image[x.at:x.at+x.size], want[x.at:x.at+x.size])
				}
				for i := range want {
					if image[i] != want[i] {
						t.Fatalf("differs at %d", i)
					}
				}
			}

			alloc := func(offset int64, limit int32) ([]blockRange, error) {
				stream, err := client.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: target, StartingOffset: offset, MaxResults: limit})
				must(t, err)
				return blocks(t, stream.Recv, offset, 80*mib, int(limit))
			}
			delta := func(from, to string, offset int64, limit int32) ([]blockRange, error) {
				stream, err := client.GetMetadataDelta(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: from, TargetSnapshotId: to, StartingOffset: offset, MaxResults: limit})
				must(t, err)
				return blocks(t, stream.Recv, offset, 80*mib, int(limit))
			}
			all, err := alloc(0, 0)
			must(t, err)
			apply(make([]byte, len(want)), all)
			changed, err := delta(base, target, 0, 3)
			must(t, err)
			was, err := os.ReadFile(imageOf(base))
			must(t, err)
			apply(append(was, make([]byte, 16*mib)...), changed)
			var bytes int64
			for _, x := range changed {
				bytes += x.size
			}
			if bytes > 20*(200_000+2*filepool.CompareBlock)+filepool.CompareBlock {
				t.Errorf("%d bytes are said to have changed", bytes)
			}
			// Interrupted behind the second range, and resumed.
			middle := changed[1].at + changed[1].size
			rest, err := delta(base, target, middle, 0)
			must(t, err)
			if len(rest) != len(changed)-2 || rest[0] != changed[2] {
				t.Errorf("from %d on: %v, want %v", middle, rest, changed[2:])
			}
			if none, err := delta(target, target, 0, 0); err != nil || len(none) > 0 {
				t.Errorf("the delta to itself: %v, %v", none, err)
			}
			if none, err := alloc(80*mib, 0); err != nil || len(none) > 0 {
				t.Errorf("behind the end: %v, %v", none, err)
			}
			_, err = alloc(80*mib+1, 0)
			wantCode(t, err, codes.OutOfRange)
			_, err = delta(target, base, 0, 0)
			wantCode(t, err, codes.InvalidArgument, "younger")
			_, err = delta(base, filepool.SnapshotID("unknown"), 0, 0)
			wantCode(t, err, codes.NotFound)
			other := snapshotOf("other", create("b"))
			_, err = delta(other, target, 0, 0)
			wantCode(t, err, codes.InvalidArgument, "is of volume")
		})
	}
}
