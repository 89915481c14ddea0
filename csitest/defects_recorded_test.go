package csitest

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var secretDefects = []defect{
	{
		breaks: "secrets.not-logged", does: "requests are logged as they are",
		log: func(method string, req proto.Message) string {
			return method + " " + req.(interface{ String() string }).String() + "\n"
		},
	},
	{
		breaks: "secrets.not-in-errors", does: "errors quote the request",
		unary: fails(func(r *csi.CreateVolumeRequest, err error) error {
			return status.Error(status.Code(err), "bad request: "+r.String())
		}),
	},
	{
		breaks: "secrets.not-in-responses", does: "publish_context has what the node needs to log in",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			r, ok := req.(*csi.ControllerPublishVolumeRequest)
			if secret := r.GetSecrets()[plantedKey]; ok && err == nil && secret != "" {
				answer := proto.CloneOf(resp.(*csi.ControllerPublishVolumeResponse))
				answer.PublishContext["password"] = secret
				return answer, nil
			}
			return resp, err
		},
	},
}

// statusChanged changes every error of NodeExpandVolume.
func statusChanged(change func(*status.Status) *status.Status) grpc.UnaryServerInterceptor {
	return fails(func(_ *csi.NodeExpandVolumeRequest, err error) error { return change(status.Convert(err)).Err() })
}

var statusDefects = []defect{
	{
		breaks: "status.message", does: "no message",
		unary: statusChanged(func(s *status.Status) *status.Status { return status.New(s.Code(), "") }),
	},
	{
		breaks: "status.details", does: "the request in the details",
		unary: statusChanged(func(s *status.Status) *status.Status {
			p := s.Proto()
			detail, _ := anypb.New(timestamppb.Now())
			p.Details = append(p.Details, detail)
			return status.FromProto(p)
		}),
	},
	{
		breaks: "status.not-unknown", does: "UNKNOWN to the first question about the storage", unary: firstUnknown(),
	},
	{
		breaks: "status.length", does: "the log of the storage in the message",
		unary: fails(func(_ *csi.ControllerPublishVolumeRequest, err error) error {
			return status.Error(status.Code(err), err.Error()+strings.Repeat(" and it failed", 100))
		}),
	},
}

// firstUnknown answers the first NodeGetStorageHealth with UNKNOWN.
func firstUnknown() grpc.UnaryServerInterceptor {
	var n atomic.Int32
	return instead(func(*csi.NodeGetStorageHealthRequest) (proto.Message, error) {
		if n.Add(1) == 1 {
			return nil, status.Error(codes.Unknown, "some error")
		}
		return nil, nil
	})
}

var long = strings.Repeat("x", 200)

// streams are the rules that read them in many ways.
var streams = []string{"snapshot.metadata."}

var responseDefects = []defect{
	{
		breaks: "response.required", does: "no vendor_version",
		unary: after(func(r *csi.GetPluginInfoResponse) { r.VendorVersion = "" }),
	},
	{
		breaks: "response.size", does: "a long vendor_version",
		unary: after(func(r *csi.GetPluginInfoResponse) { r.VendorVersion = long }),
	},
	{
		breaks: "response.enum", does: "a unit that CSI does not have",
		unary: after(func(r *csi.NodeGetVolumeStatsResponse) {
			r.Usage = append(r.Usage, &csi.VolumeUsage{Unit: 99, Total: 1})
		}),
	},
	{
		breaks: "response.non-negative", does: "a negative number of inodes",
		unary: after(func(r *csi.NodeGetVolumeStatsResponse) {
			r.Usage = append(r.Usage, &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: 1, Used: -1})
		}),
	},
	{
		breaks: "response.oneof", does: "a content_source of nothing",
		unary: after(func(r *csi.ListVolumesResponse) {
			for _, e := range r.Entries {
				e.Volume.ContentSource = &csi.VolumeContentSource{}
			}
		}),
		rules: []string{"controller.list."},
	},
	{
		breaks: "response.capability", does: "a snapshot's topology without the capability",
		unary: withoutCapabilities("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"), // the reference sets it
	},
	{
		breaks: "response.duplicate", does: "a problem reported twice",
		unary: after(func(r *csi.NodeGetStorageHealthResponse) {
			r.BackendHealth = []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
				{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Slow"}, {Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Slow"},
			}
		}),
	},
	{
		breaks: "response.camel-case", does: "a reason in plain words",
		unary: after(func(r *csi.NodeGetStorageHealthResponse) {
			r.BackendHealth = []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "too slow"}}
		}),
	},
	{breaks: "response.positive", does: "blocks of no bytes", stream: allocated(func(_ int, r *csi.GetMetadataAllocatedResponse) {
		r.BlockMetadata = append(r.BlockMetadata, &csi.BlockMetadata{ByteOffset: r.VolumeCapacityBytes})
		r.BlockMetadataType = csi.BlockMetadataType_VARIABLE_LENGTH
	}), also: map[string]string{
		"response.metadata-order": "a block that lies at the end comes early", "response.metadata-count": "it is one too many",
	}, rules: streams},
	{breaks: "response.metadata-type", rules: streams, does: "another type in the second message", stream: allocated(func(n int, r *csi.GetMetadataAllocatedResponse) {
		if n == 1 {
			r.BlockMetadataType = csi.BlockMetadataType_VARIABLE_LENGTH
		}
	})},
	{breaks: "response.metadata-capacity", rules: streams, does: "another size in the second message", stream: allocated(func(n int, r *csi.GetMetadataAllocatedResponse) {
		r.VolumeCapacityBytes += int64(n)
	}), also: because("the last message has another size", "snapshot.metadata.delta-within-allocated")},
	{breaks: "response.metadata-order", does: "the same block again", stream: allocated(func(_ int, r *csi.GetMetadataAllocatedResponse) {
		r.BlockMetadata = append(r.BlockMetadata, r.BlockMetadata[0])
	}), also: because("it is one too many", "response.metadata-count"), rules: streams},
	{breaks: "response.metadata-start", rules: streams, does: "it always begins at the beginning", stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &fromStart{ss})
	}},
	{breaks: "response.metadata-length", rules: streams, does: "a shorter second block", stream: allocated(func(n int, r *csi.GetMetadataAllocatedResponse) {
		r.BlockMetadata[0].SizeBytes -= int64(n)
	}), also: because("the second block is a shorter one when the stream begins there", "snapshot.metadata.resumes")},
	{breaks: "response.metadata-count", does: "four blocks where two are asked for", stream: allocated(func(_ int, r *csi.GetMetadataAllocatedResponse) {
		b := r.BlockMetadata[0]
		r.BlockMetadata = nil
		for i := range int64(4) {
			r.BlockMetadata = append(r.BlockMetadata, &csi.BlockMetadata{ByteOffset: b.ByteOffset + i*b.SizeBytes/4, SizeBytes: b.SizeBytes / 4})
		}
	}), also: because("the quarters before starting_offset come, too", "response.metadata-start"), rules: streams},
	{
		breaks: "response.timestamp", does: "no time",
		unary: after(func(r *csi.CreateSnapshotResponse) { r.Snapshot.CreationTime = &timestamppb.Timestamp{Nanos: -1} }),
		also:  because("it compares the time", "controller.snapshot.creation-time", "controller.snapshot.list-agrees", "controller.snapshot.get-agrees"),
	},
	{
		breaks: "response.plugin-name", does: "a name with an underscore",
		unary: after(func(r *csi.GetPluginInfoResponse) { r.Name = "a..b_c" }),
	},
	{
		breaks: "response.topology-key", does: "a key with a space",
		unary: after(func(r *csi.ControllerGetVolumeResponse) {
			r.Volume.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"ref.csikit.dev/a zone": "a"}}}
		}),
		rules: []string{"controller.get."},
	},
	{
		breaks: "response.topology-value", does: "a value with a space",
		unary: after(func(r *csi.ControllerGetVolumeResponse) {
			r.Volume.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"ref.csikit.dev/zone": "a b"}}}
		}),
		rules: []string{"controller.get."},
	},
	{
		breaks: "response.group-snapshot", does: "members of another group",
		unary: after(func(r *csi.GetVolumeGroupSnapshotResponse) { r.GroupSnapshot.Snapshots[0].GroupSnapshotId = "other" }),
	},
	{
		breaks: "response.constant", does: "another volume_context from ControllerGetVolume",
		unary: after(func(r *csi.ControllerGetVolumeResponse) { r.Volume.VolumeContext["n"] = "x" }),
		rules: []string{"controller.get."},
	},
	{
		breaks: "response.topology-prefix", does: "another prefix in one answer",
		unary: after(func(r *csi.ControllerGetVolumeResponse) {
			r.Volume.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"other.csikit.dev/zone": "a"}}}
		}),
		rules: []string{"controller.get."},
	},
}

// allocated changes the n-th message of the stream.
func allocated(change func(n int, r *csi.GetMetadataAllocatedResponse)) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &changed{ServerStream: ss, change: change})
	}
}

type changed struct {
	grpc.ServerStream
	n      int
	change func(int, *csi.GetMetadataAllocatedResponse)
}

func (c *changed) SendMsg(m any) error {
	if r, ok := m.(*csi.GetMetadataAllocatedResponse); ok {
		c.change(c.n, r)
		c.n++
	}
	return c.ServerStream.SendMsg(m)
}

// fromStart takes starting_offset out of the request.
type fromStart struct{ grpc.ServerStream }

func (s *fromStart) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if r, ok := m.(*csi.GetMetadataAllocatedRequest); ok && r.StartingOffset < 1<<40 {
		r.StartingOffset = min(r.StartingOffset, 0)
	}
	return err
}
