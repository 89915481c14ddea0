package csitest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// names remembers which volumes were made by which names, and which of them live.
type names struct {
	mu      sync.Mutex
	name    map[string]string // by ID, also of those that are gone
	live    map[string]string // ID by name
	deleted map[string]*csi.CreateVolumeResponse
	made    map[string]*csi.CreateVolumeRequest // by name, of those that are gone or live
}

// around passes every request to change, under the lock.
func around(change func(n *names, req any) (any, error)) grpc.UnaryServerInterceptor {
	n := &names{name: map[string]string{}, live: map[string]string{}, deleted: map[string]*csi.CreateVolumeResponse{}, made: map[string]*csi.CreateVolumeRequest{}}
	answers := map[string]*csi.CreateVolumeResponse{}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if resp, err := change(n, req); resp != nil || err != nil {
			return resp, err
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return nil, err
		}
		switch r := req.(type) {
		case *csi.CreateVolumeRequest:
			made := resp.(*csi.CreateVolumeResponse)
			id := made.GetVolume().GetVolumeId()
			n.name[id], n.live[r.GetName()], answers[id] = r.GetName(), id, made
			n.made[r.GetName()] = r
			delete(n.deleted, r.GetName())
		case *csi.DeleteVolumeRequest:
			if name := n.name[r.GetVolumeId()]; n.live[name] == r.GetVolumeId() {
				delete(n.live, name)
				n.deleted[name] = answers[r.GetVolumeId()]
			}
		}
		return resp, nil
	}
}

// now is the ID that lives under the name of an ID that is gone.
func (n *names) now(id string) string {
	if name, known := n.name[id]; known && n.live[name] != "" {
		return n.live[name]
	}
	return id
}

// echoing confirms what take moves from the request, unseen.
func echoing(take func(*csi.ValidateVolumeCapabilitiesRequest, *csi.ValidateVolumeCapabilitiesResponse_Confirmed)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(*csi.ValidateVolumeCapabilitiesRequest)
		if !ok {
			return handler(ctx, req)
		}
		echo := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{}
		take(r, echo)
		resp, err := handler(ctx, req)
		if answer, ok := resp.(*csi.ValidateVolumeCapabilitiesResponse); ok && answer.GetConfirmed() != nil {
			proto.Merge(answer.Confirmed, echo)
		}
		return resp, err
	}
}

func successor(id string) string {
	var n int
	_, _ = fmt.Sscanf(id, "volume-%d", &n)
	return fmt.Sprintf("volume-%06d", n+1)
}

var conflictDefects = []defect{
	{
		breaks: "controller.create.conflict-parameters", does: "parameters of a taken name are ignored",
		unary: ifTaken(func(r, first *csi.CreateVolumeRequest) { r.Parameters = first.GetParameters() }),
	},
	{
		breaks: "controller.create.conflict-source", does: "a source is not missed",
		unary: ifTaken(func(r, first *csi.CreateVolumeRequest) {
			if r.GetVolumeContentSource() == nil {
				r.VolumeContentSource = first.GetVolumeContentSource()
			}
		}),
	},
	{
		breaks: "controller.create.conflict-other-source", does: "one source is like another",
		unary: ifTaken(func(r, first *csi.CreateVolumeRequest) {
			if r.GetVolumeContentSource() != nil && first.GetVolumeContentSource() != nil {
				r.VolumeContentSource = first.GetVolumeContentSource()
			}
		}),
	},
	{
		breaks: "controller.create.conflict-access-mode", does: "a taken name is OK whatever the access mode",
		unary: ifTaken(func(r, first *csi.CreateVolumeRequest) {
			for _, c := range r.GetVolumeCapabilities() {
				c.AccessMode = first.GetVolumeCapabilities()[0].GetAccessMode()
			}
		}),
	},
	{
		breaks: "controller.create.name-reusable", does: "the name of a deleted volume is taken for other sizes",
		unary: around(func(n *names, req any) (any, error) {
			if r, ok := req.(*csi.CreateVolumeRequest); ok && n.deleted[r.GetName()] != nil && !proto.Equal(r.GetCapacityRange(), n.made[r.GetName()].GetCapacityRange()) {
				return nil, status.Error(codes.AlreadyExists, "it was once")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.create.several", does: "a volume is not found when the one made before it is deleted",
		unary: func() grpc.UnaryServerInterceptor {
			lost := map[string]bool{}
			return around(func(n *names, req any) (any, error) {
				switch r := req.(type) {
				case *csi.DeleteVolumeRequest:
					next := successor(r.GetVolumeId())
					if name, there := n.name[next]; there && n.made[name].GetVolumeContentSource() == nil {
						lost[next] = true
					}
				case *csi.ValidateVolumeCapabilitiesRequest:
					if lost[r.GetVolumeId()] {
						return nil, errMissing
					}
				}
				return nil, nil
			})
		}(),
		also: because("it lists a volume after another was deleted", "controller.delete.late"),
	},
	{
		breaks: "controller.delete.late", does: "DeleteVolume goes by the name",
		unary: around(func(n *names, req any) (any, error) {
			if r, ok := req.(*csi.DeleteVolumeRequest); ok {
				r.VolumeId = n.now(r.GetVolumeId())
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.delete.create-after", does: "the answer for a name is remembered beyond its volume",
		unary: around(func(n *names, req any) (any, error) {
			if r, ok := req.(*csi.CreateVolumeRequest); ok && n.deleted[r.GetName()] != nil && proto.Equal(r.GetCapacityRange(), n.made[r.GetName()].GetCapacityRange()) {
				return n.deleted[r.GetName()], nil
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.delete.again", does: "a name is deleted once", leaves: "it does not delete", alone: true,
		unary: func() grpc.UnaryServerInterceptor {
			deleted := map[string]bool{} // names
			return around(func(n *names, req any) (any, error) {
				if r, ok := req.(*csi.DeleteVolumeRequest); ok && n.name[r.GetVolumeId()] != "" {
					if deleted[n.name[r.GetVolumeId()]] {
						return &csi.DeleteVolumeResponse{}, nil
					}
					deleted[n.name[r.GetVolumeId()]] = true
				}
				return nil, nil
			})
		}(),
	},
	{
		breaks: "controller.delete.again", does: "an ID that follows from the name is deleted once", leaves: "it does not delete", alone: true, namedIDs: true,
		unary: func() grpc.UnaryServerInterceptor {
			var deleted sync.Map // IDs
			return instead(func(r *csi.DeleteVolumeRequest) (proto.Message, error) {
				if _, again := deleted.LoadOrStore(r.GetVolumeId(), true); again {
					return &csi.DeleteVolumeResponse{}, nil
				}
				return nil, nil
			})
		}(),
	},
	{
		breaks: "controller.unpublish.late", does: "ControllerUnpublishVolume goes by the name",
		unary: around(func(n *names, req any) (any, error) {
			if r, ok := req.(*csi.ControllerUnpublishVolumeRequest); ok {
				r.VolumeId = n.now(r.GetVolumeId())
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.unpublish.other-node", does: "it unpublishes from every node",
		unary: before(func(r *csi.ControllerUnpublishVolumeRequest) {
			if r.GetNodeId() == refdriver.SecondNode {
				r.NodeId = ""
			}
		}),
	},
	{
		breaks: "controller.unpublish.node-missing", does: "NOT_FOUND for a node that is not there",
		unary: instead(func(r *csi.ControllerUnpublishVolumeRequest) (proto.Message, error) {
			if strings.HasPrefix(r.GetNodeId(), "csicheck-") {
				return nil, errMissing
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.publish.capability-changed", does: "the access mode is not compared",
		unary: before(func() func(*csi.ControllerPublishVolumeRequest) {
			var first sync.Map
			return func(r *csi.ControllerPublishVolumeRequest) {
				if m := r.GetVolumeCapability().GetAccessMode(); m == nil || m.Mode == unknownMode {
					return
				}
				was, _ := first.LoadOrStore(r.GetVolumeId(), r.GetVolumeCapability().GetAccessMode())
				r.VolumeCapability.AccessMode = was.(*csi.VolumeCapability_AccessMode)
			}
		}()),
	},
	{
		breaks: "controller.publish.access-type", does: "the access type is ignored",
		unary: func() grpc.UnaryServerInterceptor {
			var made sync.Map
			return chain(
				exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
					if err == nil {
						made.Store(resp.GetVolume().GetVolumeId(), r.GetVolumeCapabilities()[0])
					}
					return resp, err
				}),
				before(func(r *csi.ControllerPublishVolumeRequest) {
					if c, ok := made.Load(r.GetVolumeId()); ok && r.GetVolumeCapability() != nil {
						r.VolumeCapability.AccessType = c.(*csi.VolumeCapability).AccessType
					}
				}))
		}(),
	},
	{
		breaks: "controller.publish.context-compared", does: "volume_context is ignored",
		unary: before(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext = nil }),
	},
	{
		breaks: "controller.publish.every-single-node-mode", does: "readers on a second node get another answer",
		unary: fails(func(r *csi.ControllerPublishVolumeRequest, err error) error {
			if r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY && status.Code(err) == codes.FailedPrecondition {
				return status.Error(codes.ResourceExhausted, "it is at "+refdriver.NodeID)
			}
			return err
		}),
	},
	{
		breaks: "controller.publish.multi-node", does: "no volume is at a second node",
		unary: instead(func(r *csi.ControllerPublishVolumeRequest) (proto.Message, error) {
			if r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY && r.GetNodeId() == refdriver.SecondNode {
				return nil, status.Error(codes.FailedPrecondition, "it is at "+refdriver.NodeID)
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.publish.names-node", does: "the node is not named",
		unary: fails(func(r *csi.ControllerPublishVolumeRequest, err error) error {
			return status.Error(status.Code(err), "no")
		}),
	},
	{
		breaks: "controller.publish.attach-limit", does: "INTERNAL for a node that is full",
		unary: recode[csi.ControllerPublishVolumeRequest](codes.ResourceExhausted, codes.Internal),
	},
	{
		breaks: "controller.validate.other-context", does: "any volume_context is confirmed",
		unary: echoing(func(r *csi.ValidateVolumeCapabilitiesRequest, c *csi.ValidateVolumeCapabilitiesResponse_Confirmed) {
			c.VolumeContext, r.VolumeContext = r.GetVolumeContext(), nil
		}),
	},
	{
		breaks: "controller.validate.other-context", does: "a volume without a context has any",
		alone: true, // other RPCs return the context
		unary: chain(volumeChanged(func(v *csi.Volume) { v.VolumeContext = nil }), echoing(func(r *csi.ValidateVolumeCapabilitiesRequest, c *csi.ValidateVolumeCapabilitiesResponse_Confirmed) {
			c.VolumeContext, r.VolumeContext = r.GetVolumeContext(), nil
		})),
	},
	{
		breaks: "controller.validate.bad-parameters", does: "any parameters are confirmed",
		unary: echoing(func(r *csi.ValidateVolumeCapabilitiesRequest, c *csi.ValidateVolumeCapabilitiesResponse_Confirmed) {
			c.Parameters, r.Parameters = r.GetParameters(), nil
		}),
	},
	{
		breaks: "controller.validate.message", does: "parameters that were not asked",
		unary: after(func(r *csi.ValidateVolumeCapabilitiesResponse) {
			if r.GetConfirmed() != nil {
				r.Confirmed.Parameters = map[string]string{"x": "y"}
			}
		}),
	},
}

const modifiesAgain = "it sets the same again"

var modifyDefects = []defect{
	{
		breaks: "controller.modify.idempotent", does: "what is set already is FAILED_PRECONDITION",
		unary: func() grpc.UnaryServerInterceptor {
			var set sync.Map
			return chain(instead(func(r *csi.ControllerModifyVolumeRequest) (proto.Message, error) {
				if _, again := set.Load(r.GetVolumeId() + fmt.Sprint(r.GetMutableParameters())); again {
					return nil, status.Error(codes.FailedPrecondition, "it is so already")
				}
				return nil, nil
			}), exchange(func(r *csi.ControllerModifyVolumeRequest, resp *csi.ControllerModifyVolumeResponse, err error) (*csi.ControllerModifyVolumeResponse, error) {
				if err == nil {
					set.Store(r.GetVolumeId()+fmt.Sprint(r.GetMutableParameters()), true)
				}
				return resp, err
			}))
		}(),
		also: map[string]string{
			"controller.modify.after-cancel": modifiesAgain, "controller.modify.after-deadline": modifiesAgain, "controller.modify.parallel": modifiesAgain,
		},
	},
	{
		breaks: "controller.modify.one-by-one", does: "all parameters are demanded",
		unary: instead(func(r *csi.ControllerModifyVolumeRequest) (proto.Message, error) {
			if len(r.GetMutableParameters()) == 1 && r.GetVolumeId() != "" {
				return nil, status.Error(codes.InvalidArgument, "where is the other one?")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.modify.volume-missing", does: "INVALID_ARGUMENT for a volume that is not there",
		unary: recode[csi.ControllerModifyVolumeRequest](codes.NotFound, codes.InvalidArgument),
	},
	{
		breaks: "controller.modify.unknown-key", does: "what is not known is ignored",
		unary: instead(func(r *csi.ControllerModifyVolumeRequest) (proto.Message, error) {
			if r.GetMutableParameters()[noKey] != "" && len(r.GetMutableParameters()) == 1 {
				return &csi.ControllerModifyVolumeResponse{}, nil
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.modify.all-or-nothing", does: "what is known is set",
		unary: before(func(r *csi.ControllerModifyVolumeRequest) {
			if len(r.GetMutableParameters()) > 1 {
				delete(r.GetMutableParameters(), noKey)
			}
		}),
	},
	{
		breaks: "controller.modify.at-create", does: "a taken name with mutable_parameters is ALREADY_EXISTS",
		unary: takenRefused(func(r *csi.CreateVolumeRequest) bool { return len(r.GetMutableParameters()) > 0 }),
	},
	{
		breaks: "controller.modify.unknown-at-create", does: "what is not known is ignored",
		unary: before(func(r *csi.CreateVolumeRequest) { delete(r.GetMutableParameters(), noKey) }),
	},
	{
		breaks: "controller.modify.overrides-parameters", does: "a key must not be there twice",
		unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool {
			return len(r.GetParameters()) > 0 && len(r.GetMutableParameters()) > 0
		}),
	},
}
