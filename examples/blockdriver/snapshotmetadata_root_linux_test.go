package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"

	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

type blockRange struct{ at, size int64 }

// serveMetadata serves the snapshot metadata of b on a socket and returns a client.
func serveMetadata(t *testing.T, b *fileBackend) csi.SnapshotMetadataClient {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	csi.RegisterSnapshotMetadataServer(srv, newSnapshotMetadata(onePool{b}))
	go srv.Serve(lis)
	t.Cleanup(srv.Stop)
	return csi.NewSnapshotMetadataClient(dial(t, sock))
}

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
			b := openBackend(t, dir, nil)
			t.Cleanup(func() { closeBackend(t, b) })
			if want := fsType != ""; b.reflink != want {
				t.Fatalf("reflink: %t, want %t", b.reflink, want)
			}
			client := serveMetadata(t, b)
			s := spec("a")
			s.Capacity.Required = 64 * mib
			v := mustCreate(t, b, s)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			scribble := func() {
				t.Helper()
				f, err := os.OpenFile(b.imageOf(v.ID), os.O_WRONLY, 0)
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
			base := mustSnap(t, b, "base", v.ID)
			scribble()
			_, err := b.ExpandVolume(t.Context(), v.ID, CapacityRange{Required: 80 * mib})
			must(t, err)
			writeAt(t, b.imageOf(v.ID), "the end", 80*mib-7)
			target := mustSnap(t, b, "target", v.ID)
			want, err := os.ReadFile(b.imageOf(target.ID))
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
				stream, err := client.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: target.ID, StartingOffset: offset, MaxResults: limit})
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
			changed, err := delta(base.ID, target.ID, 0, 3)
			must(t, err)
			was, err := os.ReadFile(b.imageOf(base.ID))
			must(t, err)
			apply(append(was, make([]byte, 16*mib)...), changed)
			var bytes int64
			for _, x := range changed {
				bytes += x.size
			}
			if bytes > 20*(200_000+2*compareBlock)+compareBlock {
				t.Errorf("%d bytes are said to have changed", bytes)
			}
			// Interrupted behind the second range, and resumed.
			middle := changed[1].at + changed[1].size
			rest, err := delta(base.ID, target.ID, middle, 0)
			must(t, err)
			if len(rest) != len(changed)-2 || rest[0] != changed[2] {
				t.Errorf("from %d on: %v, want %v", middle, rest, changed[2:])
			}
			if none, err := delta(target.ID, target.ID, 0, 0); err != nil || len(none) > 0 {
				t.Errorf("the delta to itself: %v, %v", none, err)
			}
			if none, err := alloc(80*mib, 0); err != nil || len(none) > 0 {
				t.Errorf("behind the end: %v, %v", none, err)
			}
			_, err = alloc(80*mib+1, 0)
			wantCode(t, err, codes.OutOfRange)
			_, err = delta(target.ID, base.ID, 0, 0)
			wantCode(t, err, codes.InvalidArgument, "younger")
			_, err = delta(base.ID, snapshotID("unknown"), 0, 0)
			wantCode(t, err, codes.NotFound)
			other := mustSnap(t, b, "other", mustCreate(t, b, VolumeSpec{Name: "b", AccessType: "ext4"}).ID)
			_, err = delta(other.ID, target.ID, 0, 0)
			wantCode(t, err, codes.InvalidArgument, "is of volume")

			// What is shared is not read.
			if fsType != "" {
				f, err := os.Open(b.imageOf(base.ID))
				must(t, err)
				defer f.Close()
				g, err := os.Open(b.imageOf(target.ID))
				must(t, err)
				defer g.Close()
				sh, found := newSharing(f, g), 0
				must(t, allocatedBlocks(context.Background(), f, 0, 64*mib, &merger{each: func(at, size int64) error {
					if sh.until(at) > at {
						found++
					}
					return nil
				}}))
				if found == 0 {
					t.Error("the file system shares nothing, or does not say so")
				}
			}
		})
	}
}
