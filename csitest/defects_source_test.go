package csitest

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func isKind(kind string, s *csi.VolumeContentSource) bool {
	return kind == "restore" && s.GetSnapshot() != nil || kind == "clone" && s.GetVolume() != nil
}

// A kind's defects; those of its data are in dataDefects.
func kindDefects(kind string) []defect {
	id := "source." + kind + "."
	return []defect{
		{
			breaks: id + "too-small", does: "INVALID_ARGUMENT for a small volume",
			unary: fails(func(r *csi.CreateVolumeRequest, err error) error {
				if isKind(kind, r.GetVolumeContentSource()) && status.Code(err) == codes.OutOfRange {
					return status.Error(codes.InvalidArgument, "too small")
				}
				return err
			}),
		},
		{
			breaks: id + "no-range", does: "half the size without a range",
			unary: exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
				if isKind(kind, r.GetVolumeContentSource()) && r.GetCapacityRange() == nil && err == nil {
					resp.Volume.CapacityBytes /= 2
				}
				return resp, err
			}),
		},
		{
			breaks: id + "larger", does: "the size of the source",
			unary: before(func(r *csi.CreateVolumeRequest) {
				if isKind(kind, r.GetVolumeContentSource()) && r.GetCapacityRange().GetRequiredBytes() > 64*mib {
					r.CapacityRange = nil
				}
			}),
		},
		{
			breaks: id + "conflict", does: "a source is not missed in the volume that is there",
			unary: ifTaken(func(r, first *csi.CreateVolumeRequest) {
				if isKind(kind, r.GetVolumeContentSource()) && first.GetVolumeContentSource() == nil {
					r.VolumeContentSource = nil
				}
			}),
		},
		{
			breaks: id + "source-deleted", does: "a volume is lost with its source",
			unary: func() grpc.UnaryServerInterceptor {
				var mu sync.Mutex
				source, gone := map[string]string{}, map[string]bool{}
				return chain(
					exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
						mu.Lock()
						defer mu.Unlock()
						if s := r.GetVolumeContentSource(); err == nil && isKind(kind, s) {
							source[resp.GetVolume().GetVolumeId()] = s.GetSnapshot().GetSnapshotId() + s.GetVolume().GetVolumeId()
						}
						return resp, err
					}),
					before(func(r *csi.DeleteVolumeRequest) { mu.Lock(); defer mu.Unlock(); gone[r.GetVolumeId()] = true }),
					before(func(r *csi.DeleteSnapshotRequest) { mu.Lock(); defer mu.Unlock(); gone[r.GetSnapshotId()] = true }),
					instead(func(r *csi.ValidateVolumeCapabilitiesRequest) (proto.Message, error) {
						mu.Lock()
						defer mu.Unlock()
						if s := source[r.GetVolumeId()]; s != "" && gone[s] {
							return nil, errMissing
						}
						return nil, nil
					}))
			}(),
		},
		{
			breaks: id + "data-larger", does: "the size of the source in NodeGetVolumeStats", kernel: true,
			unary: func() grpc.UnaryServerInterceptor {
				var copies sync.Map
				return chain(
					exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
						if err == nil && isKind(kind, r.GetVolumeContentSource()) {
							copies.Store(resp.GetVolume().GetVolumeId(), true)
						}
						return resp, err
					}),
					exchange(func(r *csi.NodeGetVolumeStatsRequest, resp *csi.NodeGetVolumeStatsResponse, err error) (*csi.NodeGetVolumeStatsResponse, error) {
						if _, is := copies.Load(r.GetVolumeId()); is && err == nil {
							resp.Usage = []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 64 * mib}}
						}
						return resp, err
					}))
			}(),
		},
	}
}

func isSnapshotDir(dir string) bool { return strings.HasPrefix(filepath.Base(dir), "snapshot-") }

const dataToo = "it reads the copy as well"

// copies does something to the file of the rules in every copy of one kind.
func copies(fromSnapshot, toSnapshot bool, damage func(from, to string)) func(from, to string) {
	return func(from, to string) {
		if isSnapshotDir(from) == fromSnapshot && isSnapshotDir(to) == toSnapshot {
			damage(filepath.Join(from, "csicheck-data"), filepath.Join(to, "csicheck-data"))
		}
	}
}

// flip changes a byte, unless the file is a journal.
func flip(_, to string) {
	data, err := os.ReadFile(to)
	if err == nil && len(data) == dataSize {
		data[dataSize/2] ^= 1
		_ = os.WriteFile(to, data, 0o600) // the rule finds out
	}
}

// refer makes the copy a way to the source.
func refer(from, to string) {
	if data, err := os.ReadFile(to); err == nil && len(data) == dataSize {
		_ = os.Remove(to)
		_ = os.Symlink(from, to)
	}
}

// forgetNewest takes the newest record out of a journal in a file of that size.
func forgetNewest(size int) func(_, to string) {
	return func(_, to string) {
		data, err := os.ReadFile(to)
		if err != nil || len(data) != size {
			return
		}
		newest, at := uint64(0), 0
		for i := 0; i < ringSize; i += recordSize {
			if seq := binary.LittleEndian.Uint64(data[i:]); seq > newest {
				newest, at = seq, i
			}
		}
		copy(data[at:], bytes.Repeat([]byte{0}, recordSize))
		_ = os.WriteFile(to, data, 0o600) // the rule finds out
	}
}

var dataDefects = []defect{
	{
		breaks: "source.restore.data", does: "a byte of the snapshot is another one", kernel: true,
		copied: copies(false, true, flip),
		also: map[string]string{
			"source.restore.separate": dataToo, "source.restore.data-source-deleted": dataToo, "source.restore.data-larger": dataToo,
		},
	},
	{
		breaks: "source.clone.data", does: "a byte of the clone is another one", kernel: true,
		copied: copies(false, false, flip),
		also:   map[string]string{"source.clone.data-source-deleted": dataToo, "source.clone.data-larger": dataToo},
	},
	{
		breaks: "source.restore.separate", does: "a restored volume writes to the snapshot", kernel: true,
		copied: copies(true, false, refer),
		also:   map[string]string{"source.restore.data-source-deleted": "it is gone with the snapshot"},
	},
	{
		breaks: "source.clone.separate", does: "a clone is its source", kernel: true,
		copied: copies(false, false, refer),
		also:   map[string]string{"source.clone.data": "what is written later shows in the clone", "source.clone.data-source-deleted": "it is gone with the source"},
	},
	{
		breaks: "source.restore.data-source-deleted", does: "a restored volume refers to the snapshot", kernel: true,
		copied: copies(true, false, refer),
		also:   map[string]string{"source.restore.separate": "it writes to the snapshot"},
	},
	{
		breaks: "source.clone.data-source-deleted", does: "a clone refers to its source", kernel: true,
		copied: copies(false, false, refer),
		also:   map[string]string{"source.clone.data": "what is written later shows in the clone", "source.clone.separate": "it writes to the source"},
	},
}

var consistencyDefects = []defect{
	{
		breaks: "snapshot.point-in-time.order", does: "a record is missing that was written before another one", kernel: true,
		copied: copies(false, true, forgetNewest(2*ringSize)),
	},
	{
		breaks: "group.point-in-time.order", does: "a record is missing in one volume", kernel: true,
		copied: copies(false, true, forgetNewest(ringSize)),
	},
	{
		breaks: "clone.point-in-time.order", does: "a record is missing that was written before another one", kernel: true,
		copied: copies(false, false, forgetNewest(2*ringSize)),
	},
}

// stripped takes capabilities away.
func stripped(caps ...csi.ControllerServiceCapability_RPC_Type) grpc.UnaryServerInterceptor {
	return after(func(r *csi.ControllerGetCapabilitiesResponse) {
		r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool {
			return slices.Contains(caps, c.GetRpc().GetType())
		})
	})
}

var sourceDefects = slices.Concat(kindDefects("restore"), kindDefects("clone"), dataDefects, []defect{
	{
		breaks: "source.clone.reported", does: "no content_source",
		unary: volumeChanged(func(v *csi.Volume) {
			if v.GetContentSource().GetVolume() != nil {
				v.ContentSource = nil
			}
		}),
	},
	{
		breaks: "source.clone.unsupported", does: "an empty volume for a clone",
		unary: chain(stripped(csi.ControllerServiceCapability_RPC_CLONE_VOLUME), before(func(r *csi.CreateVolumeRequest) {
			if r.GetVolumeContentSource().GetVolume() != nil {
				r.VolumeContentSource = nil
			}
		})),
	},
	{
		breaks: "source.restore.unsupported", does: "an empty volume for a snapshot's",
		unary: chain(stripped(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
			before(func(r *csi.CreateVolumeRequest) {
				if r.GetVolumeContentSource().GetSnapshot() != nil {
					r.VolumeContentSource = nil
				}
			}),
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				switch req.(type) {
				case *csi.CreateSnapshotRequest, *csi.DeleteSnapshotRequest:
					return nil, status.Error(codes.Unimplemented, "no snapshots")
				}
				return handler(ctx, req)
			}),
	},
})
