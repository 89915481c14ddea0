package csitest

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// exchange is around calls of one type, with the request and its answer in sight.
func exchange[Req, Resp any, M message[Req], N message[Resp]](change func(M, N, error) (N, error)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		m, ok := req.(M)
		if !ok {
			return handler(ctx, req)
		}
		asked := proto.CloneOf(m)
		resp, err := handler(ctx, req)
		var n N
		if err == nil {
			n = proto.CloneOf(resp.(N))
		}
		if n, err = change(asked, n, err); err != nil {
			return nil, err
		}
		return n, nil
	}
}

// chain is all of them, the first outermost.
func chain(all ...grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, i := range slices.Backward(all) {
			next := handler
			handler = func(ctx context.Context, req any) (any, error) { return i(ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

func isNowhere(t *csi.Topology) bool {
	for _, v := range t.GetSegments() {
		return v == "csicheck-nowhere"
	}
	return false
}

var capacityDefects = []defect{
	{
		breaks: "controller.capacity.answers", does: "volume_capabilities are demanded",
		unary: instead(func(r *csi.GetCapacityRequest) (proto.Message, error) {
			if len(r.GetVolumeCapabilities()) == 0 {
				return nil, status.Error(codes.InvalidArgument, "which?")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.capacity.unsupported-capability", does: "volume_capabilities are ignored",
		also:  because("it asks with a mode that is not known", "hostile.enum"),
		unary: before(func(r *csi.GetCapacityRequest) { r.VolumeCapabilities = nil }),
	},
	{
		breaks: "controller.capacity.bad-parameters", does: "parameters are ignored",
		unary: before(func(r *csi.GetCapacityRequest) { r.Parameters = nil }),
	},
	{
		breaks: "controller.capacity.limits-agree", does: "the minimum is above the maximum",
		unary: after(func(r *csi.GetCapacityResponse) {
			r.MinimumVolumeSize = wrapperspb.Int64(r.GetMaximumVolumeSize().GetValue() + 1)
		}),
	},
	{
		breaks: "controller.capacity.maximum", does: "a maximum that CreateVolume does not know",
		unary: after(func(r *csi.GetCapacityResponse) { r.MaximumVolumeSize = wrapperspb.Int64(1 << 30) }),
	},
	{
		breaks: "controller.capacity.minimum", does: "a minimum that CreateVolume does not know",
		unary: after(func(r *csi.GetCapacityResponse) { r.MinimumVolumeSize = wrapperspb.Int64(2 * mib) }),
	},
	{
		breaks: "controller.capacity.of-the-node", does: "nothing where the node is",
		unary: instead(func(r *csi.GetCapacityRequest) (proto.Message, error) {
			if t := r.GetAccessibleTopology(); len(t.GetSegments()) > 0 && !isNowhere(t) {
				return &csi.GetCapacityResponse{}, nil
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.capacity.empty-topology", does: "an accessible_topology without segments is refused",
		unary: instead(func(r *csi.GetCapacityRequest) (proto.Message, error) {
			if t := r.GetAccessibleTopology(); t != nil && len(t.GetSegments()) == 0 {
				return nil, status.Error(codes.InvalidArgument, "accessible_topology has no segments")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.capacity.nowhere", does: "accessible_topology is ignored",
		unary: before(func(r *csi.GetCapacityRequest) { r.AccessibleTopology = nil }),
	},
	{
		breaks: "controller.capacity.kubernetes-parameters", does: "there is no capacity for what is not known",
		unary: instead(func(r *csi.GetCapacityRequest) (proto.Message, error) {
			if r.GetParameters()[kubernetesPrefix+"fstype"] != "" {
				return &csi.GetCapacityResponse{}, nil
			}
			return nil, nil
		}),
	},
}

// refusing answers requests of one type with an error if they are such.
func refusing[T any, M message[T]](code codes.Code, is func(M) bool) grpc.UnaryServerInterceptor {
	return instead(func(r M) (proto.Message, error) {
		if is(r) {
			return nil, status.Error(code, "refused")
		}
		return nil, nil
	})
}

func places(r *csi.CreateVolumeRequest) (requisite, preferred []*csi.Topology) {
	return r.GetAccessibilityRequirements().GetRequisite(), r.GetAccessibilityRequirements().GetPreferred()
}

// onlyNowhere: nothing else is asked for.
func onlyNowhere(r *csi.CreateVolumeRequest) bool {
	requisite, preferred := places(r)
	return len(requisite) == 1 && len(preferred) == 0 && isNowhere(requisite[0])
}

// known remembers the first request for a name.
type known struct{ first sync.Map }

// before changes requests for names that are taken already.
func (k *known) before(change func(r, first *csi.CreateVolumeRequest)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(*csi.CreateVolumeRequest)
		if !ok {
			return handler(ctx, req)
		}
		asked := proto.CloneOf(r)
		if first, taken := k.first.Load(r.GetName()); taken {
			change(r, first.(*csi.CreateVolumeRequest))
		}
		resp, err := handler(ctx, r)
		if err == nil {
			k.first.LoadOrStore(asked.GetName(), asked)
		}
		return resp, err
	}
}

func ifTaken(change func(r, first *csi.CreateVolumeRequest)) grpc.UnaryServerInterceptor {
	return new(known).before(change)
}

// takenRefused answers such requests for taken names with ALREADY_EXISTS.
func takenRefused(is func(*csi.CreateVolumeRequest) bool) grpc.UnaryServerInterceptor {
	var made sync.Map
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(*csi.CreateVolumeRequest)
		if !ok {
			return handler(ctx, req)
		}
		if _, taken := made.Load(r.GetName()); taken && is(r) {
			return nil, status.Error(codes.AlreadyExists, "taken")
		}
		resp, err := handler(ctx, req)
		if err == nil {
			made.Store(r.GetName(), true)
		}
		return resp, err
	}
}

var topologyDefects = []defect{
	{
		breaks: "topology.node-place", does: "the node is nowhere",
		unary: after(func(r *csi.NodeGetInfoResponse) { r.AccessibleTopology = nil }),
	},
	{
		breaks: "topology.create.no-requirement", does: "a volume that was made without a place cannot be published",
		unary: func() grpc.UnaryServerInterceptor {
			var placeless sync.Map
			return chain(
				exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
					if err == nil && r.GetAccessibilityRequirements() == nil {
						placeless.Store(resp.GetVolume().GetVolumeId(), true)
					}
					return resp, err
				}),
				instead(func(r *csi.ControllerPublishVolumeRequest) (proto.Message, error) {
					if _, is := placeless.Load(r.GetVolumeId()); is {
						return nil, status.Error(codes.FailedPrecondition, "it is elsewhere")
					}
					return nil, nil
				}))
		}(),
	},
	{
		breaks: "topology.create.requisite", does: "requisite without preferred is ignored",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if requisite, preferred := places(r); len(requisite) == 1 && len(preferred) == 0 && !isNowhere(requisite[0]) {
				requisite[0].Segments = refdriver.SecondTopology()
			}
		}),
		also: because("it asks for one place, too", "topology.create.all-of-requisite"),
	},
	{
		breaks: "topology.create.any-of-requisite", does: "all of requisite must do",
		unary: refusing(codes.ResourceExhausted, func(r *csi.CreateVolumeRequest) bool {
			requisite, preferred := places(r)
			return len(requisite) > 1 && len(preferred) == 0
		}),
		also: because("it asks for one of two places, too", "topology.create.all-of-requisite"),
	},
	{
		breaks: "topology.create.next-preferred", does: "the first of preferred must do",
		unary: refusing(codes.ResourceExhausted, func(r *csi.CreateVolumeRequest) bool {
			_, preferred := places(r)
			return len(preferred) > 1 && isNowhere(preferred[0])
		}),
	},
	{
		breaks: "topology.create.preferred-order", does: "preferred is taken from last to first",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if _, preferred := places(r); !slices.ContainsFunc(preferred, isNowhere) {
				slices.Reverse(preferred)
			}
		}),
	},
	{
		breaks: "topology.create.unsatisfiable", does: "INTERNAL for a place that is not there",
		unary: fails(func(r *csi.CreateVolumeRequest, err error) error {
			if onlyNowhere(r) && r.GetVolumeContentSource() == nil && status.Code(err) == codes.ResourceExhausted {
				return status.Error(codes.Internal, "there is no such place")
			}
			return err
		}),
	},
	{
		breaks: "topology.create.nothing-left", does: "a refused name stays taken",
		unary: func() grpc.UnaryServerInterceptor {
			var refused sync.Map
			return chain(refusing(codes.AlreadyExists, func(r *csi.CreateVolumeRequest) bool {
				_, is := refused.Load(r.GetName())
				return is
			}), fails(func(r *csi.CreateVolumeRequest, err error) error {
				if onlyNowhere(r) {
					refused.Store(r.GetName(), true)
				}
				return err
			}))
		}(),
	},
	{
		breaks: "topology.create.conflict", does: "a taken name is OK whatever the place",
		unary: ifTaken(func(r, first *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = first.GetAccessibilityRequirements()
		}),
	},
	{
		breaks: "topology.create.preferred-not-requisite", does: "preferred goes before requisite",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if requisite, preferred := places(r); len(requisite) == 1 && len(preferred) == 1 && isNowhere(requisite[0]) {
				r.AccessibilityRequirements.Requisite = nil
			}
		}),
	},
	{
		breaks: "topology.create.empty", does: "an empty requirement is none",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if requisite, preferred := places(r); len(requisite) == 0 && len(preferred) == 0 {
				r.AccessibilityRequirements = nil
			}
		}),
	},
	{
		breaks: "topology.list-agrees", does: "the list has another place",
		unary: after(func(r *csi.ListVolumesResponse) {
			for _, e := range r.Entries {
				e.Volume.AccessibleTopology = []*csi.Topology{{Segments: refdriver.SecondTopology()}}
			}
		}),
	},
	{
		breaks: "topology.clone-place", does: "a clone is where its source is",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if r.GetVolumeContentSource().GetVolume() != nil && onlyNowhere(r) {
				r.AccessibilityRequirements = nil
			}
		}),
	},
	{
		breaks: "topology.node-labels", does: "the node's zone is a label of Kubernetes", alone: true,
		unary: after(func(r *csi.NodeGetInfoResponse) {
			r.AccessibleTopology = &csi.Topology{Segments: map[string]string{"zones.kubernetes.io/zone": "a"}}
		}),
	},
}

var rangeDefects = []defect{
	{
		breaks: "controller.create.no-range", does: "capacity_range is demanded",
		unary: refusing(codes.OutOfRange, func(r *csi.CreateVolumeRequest) bool {
			return r.GetCapacityRange() == nil && r.GetName() != "" && r.GetVolumeContentSource() == nil
		}),
		also: map[string]string{"controller.create.existing-compatible": "it repeats without a range"},
	},
	{
		breaks: "controller.create.too-small", does: "INVALID_ARGUMENT for a small limit",
		unary: fails(func(r *csi.CreateVolumeRequest, err error) error {
			if r.GetCapacityRange().GetLimitBytes() == 1 {
				return status.Error(codes.InvalidArgument, "too small")
			}
			return err
		}),
	},
	{
		breaks: "controller.create.too-large", does: "INTERNAL for a large size",
		unary: fails(func(r *csi.CreateVolumeRequest, err error) error {
			if r.GetCapacityRange().GetRequiredBytes() >= 1<<62 {
				return status.Error(codes.Internal, "overflow")
			}
			return err
		}),
	},
	{
		breaks: "controller.create.existing-compatible", does: "a taken name is ALREADY_EXISTS unless the range is the same",
		unary: takenRefused(func(r *csi.CreateVolumeRequest) bool {
			return r.GetCapacityRange().GetLimitBytes() > 0 && r.GetCapacityRange().GetLimitBytes() == r.GetCapacityRange().GetRequiredBytes()
		}),
	},
	{
		breaks: "controller.create.conflict-limit", does: "the limit is not compared",
		unary: ifTaken(func(r, _ *csi.CreateVolumeRequest) {
			if r.GetCapacityRange().GetRequiredBytes() == 0 {
				r.CapacityRange = nil
			}
		}),
	},
	{
		breaks: "controller.expand.in-range", does: "limit_bytes is ignored",
		unary: before(func(r *csi.ControllerExpandVolumeRequest) {
			if c := r.GetCapacityRange(); c.GetRequiredBytes() > 0 && c.GetLimitBytes() > c.GetRequiredBytes() {
				c.RequiredBytes, c.LimitBytes = c.LimitBytes+1, 0
			}
		}),
	},
	{
		breaks: "controller.expand.limit-below-size", does: "limit_bytes is the size that it reports",
		unary: exchange(func(r *csi.ControllerExpandVolumeRequest, resp *csi.ControllerExpandVolumeResponse, err error) (*csi.ControllerExpandVolumeResponse, error) {
			if c := r.GetCapacityRange(); status.Code(err) == codes.OutOfRange && c.GetRequiredBytes() == 0 && c.GetLimitBytes() > 0 {
				return &csi.ControllerExpandVolumeResponse{CapacityBytes: c.GetLimitBytes()}, nil
			}
			return resp, err
		}),
	},
	{
		breaks: "controller.expand.limit-below-size", does: "INTERNAL for a limit below the size", alone: true,
		unary: fails(func(r *csi.ControllerExpandVolumeRequest, err error) error {
			if c := r.GetCapacityRange(); c.GetRequiredBytes() == 0 && c.GetLimitBytes() > 0 {
				return status.Error(codes.Internal, "cannot shrink")
			}
			return err
		}),
	},
	{
		breaks: "controller.expand.too-large", does: "INTERNAL for a large size",
		unary: fails(func(r *csi.ControllerExpandVolumeRequest, err error) error {
			if r.GetCapacityRange().GetRequiredBytes() >= 1<<62 {
				return status.Error(codes.Internal, "overflow")
			}
			return err
		}),
	},
	{
		breaks: "controller.expand.after-later", does: "an expansion to less than the last one is refused",
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			largest := map[string]int64{}
			return instead(func(r *csi.ControllerExpandVolumeRequest) (proto.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				size := r.GetCapacityRange().GetRequiredBytes()
				if size > 0 && size < largest[r.GetVolumeId()] {
					return nil, status.Error(codes.FailedPrecondition, "it is larger")
				}
				if size < 1<<50 {
					largest[r.GetVolumeId()] = size
				}
				return nil, nil
			})
		}(),
	},
}

var pagingDefects = []defect{
	{
		breaks: "controller.list.churn", does: "a token whose volume is deleted is NOT_FOUND",
		unary: goneToken(func(r *csi.ListVolumesRequest) string { return strings.TrimPrefix(r.GetStartingToken(), "after-") }),
	},
	{
		breaks: "controller.snapshot.list-churn", does: "a token whose snapshot is deleted is NOT_FOUND",
		unary: goneToken(func(r *csi.ListSnapshotsRequest) string { return strings.TrimPrefix(r.GetStartingToken(), "after-") }),
	},
	{
		breaks: "controller.list.large-max", does: "the largest max_entries is too much",
		unary: instead(func(r *csi.ListVolumesRequest) (proto.Message, error) {
			if r.GetMaxEntries() == math.MaxInt32 {
				return nil, status.Error(codes.ResourceExhausted, "no memory")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.list.token-again", does: "the second time a page is empty",
		unary: func() grpc.UnaryServerInterceptor {
			var used sync.Map
			return instead(func(r *csi.ListVolumesRequest) (proto.Message, error) {
				if _, again := used.LoadOrStore(r.GetStartingToken(), true); again && strings.HasPrefix(r.GetStartingToken(), "after-") {
					return &csi.ListVolumesResponse{}, nil
				}
				return nil, nil
			})
		}(),
	},
	{
		breaks: "controller.get.agrees", does: "another capacity than CreateVolume returned",
		unary: after(func(r *csi.ControllerGetVolumeResponse) {
			if r.GetVolume().GetCapacityBytes() == 64*mib {
				r.Volume.CapacityBytes++
			}
		}),
	},
	{
		breaks: "controller.get.volume-missing", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.ControllerGetVolumeRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "controller.get.published-nodes", does: "no node is ever listed",
		unary: after(func(r *csi.ControllerGetVolumeResponse) {
			r.Status = &csi.ControllerGetVolumeResponse_VolumeStatus{}
		}),
	},
	{
		breaks: "controller.get.after-expand", does: "the size that the volume was made with",
		unary: after(func(r *csi.ControllerGetVolumeResponse) {
			r.Volume.CapacityBytes = min(r.GetVolume().GetCapacityBytes(), 64*mib)
		}),
	},
}

// goneToken answers NOT_FOUND if what a token names has been deleted.
func goneToken[T any, M message[T]](named func(M) string) grpc.UnaryServerInterceptor {
	var gone sync.Map
	return chain(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		switch r := req.(type) {
		case *csi.DeleteVolumeRequest:
			gone.Store(r.GetVolumeId(), err == nil)
		case *csi.DeleteSnapshotRequest:
			gone.Store(r.GetSnapshotId(), err == nil)
		}
		return resp, err
	}, instead(func(r M) (proto.Message, error) {
		if is, _ := gone.Load(named(r)); is == true {
			return nil, errMissing
		}
		return nil, nil
	}))
}
