package csitest

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// elsewhere has the rules whose defect needs what the reference driver is not.
var elsewhere = map[string]string{
	"hostile.utf8":                "a library that does not check: TestNoUTF8",
	"leaks.process":               "a separate process: TestLeaks",
	"leaks.failed-stage":          "a real block device: TestFailedStage",
	"node.publish.block-device":   "a real block device: examples/blockdriver",
	"node.publish.block-data":     "a real block device: examples/blockdriver",
	"node.publish.block-readonly": "a real block device: examples/blockdriver",
	"node.expand.grows-block":     "a real block device: examples/blockdriver",
	"node.stats.block-at-kubelet": "a real block device: examples/blockdriver",
}

var defects = slices.Concat(identityDefects, unimplementedDefects, requiredDefects, createDefects, deleteDefects, listDefects, attachDefects,
	validateDefects, expandDefects, snapshotDefects, metadataDefects, contentDefects, groupDefects, nodeDefects, kernelDefects, mountDefects, mountGroupDefects, restartDefects,
	secretDefects, hostileDefects, statusDefects, responseDefects, capacityDefects, topologyDefects, rangeDefects, pagingDefects, conflictDefects,
	modifyDefects, snapshotLifecycleDefects, streamDefects, moreGroupDefects, healthDefects, sourceDefects, consistencyDefects, interruptedDefects,
	kubernetesDefects, exceedingDefects, sanityDefects, placeDefects, logDefects, storageDefects)

var errMissing = status.Error(codes.NotFound, "not there")

var identityDefects = []defect{
	{
		breaks: "identity.probe.ready", does: "Probe says that it is not ready, once it is asked often",
		unary: func() grpc.UnaryServerInterceptor {
			var n atomic.Int32
			return after(func(r *csi.ProbeResponse) { r.Ready = wrapperspb.Bool(n.Add(1) != 3) })
		}(),
	},
	{
		breaks: "identity.capabilities.consistent", does: "LIST_VOLUME_HEALTH without GET_VOLUME_HEALTH",
		unary: after(func(r *csi.ControllerGetCapabilitiesResponse) {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool {
				return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH
			})
		}),
	},
	{
		breaks: "identity.capabilities.useful", does: "GET_VOLUME_HEALTH is reported twice",
		unary: after(func(r *csi.ControllerGetCapabilitiesResponse) {
			for _, c := range r.Capabilities {
				if c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH {
					r.Capabilities = append(r.Capabilities, c)
					break
				}
			}
		}),
	},
	{
		breaks: "identity.info.same-everywhere", does: "the controller has another name",
		controller: after(func(r *csi.GetPluginInfoResponse) { r.Name = "ctl.csikit.dev" }),
	},
	{
		breaks: "capability.implemented", does: "NodeGetStorageHealth is promised and not there",
		unary: instead(func(*csi.NodeGetStorageHealthRequest) (proto.Message, error) {
			return nil, status.Error(codes.Unimplemented, "not there")
		}),
	},
	{
		breaks: "capability.unimplemented", does: "ControllerGetVolume is there without the capability",
		unary: after(func(r *csi.ControllerGetCapabilitiesResponse) {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool {
				return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_GET_VOLUME
			})
		}),
	},
}

// Each RPC that a capability promises is not there.
var unimplementedDefects = func() (all []defect) {
	for _, r := range rpcs {
		all = append(all, defect{
			breaks: "capability.implemented", does: r.method + " is promised and not there", alone: true,
			unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if path.Base(info.FullMethod) == r.method {
					return nil, status.Error(codes.Unimplemented, "not there")
				}
				return handler(ctx, req)
			},
		})
	}
	return all
}()

// A request without one of its required fields is NOT_FOUND.
var requiredDefects = func() (all []defect) {
	for _, r := range requiredRules {
		method := r.Spec
		for i, field := range missing(newMessage(method + "Request")) {
			all = append(all, defect{
				breaks: r.ID, does: "a missing " + field + " is NOT_FOUND", alone: i > 0,
				unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					resp, err := handler(ctx, req)
					if path.Base(info.FullMethod) == method && status.Code(err) == codes.InvalidArgument && slices.Contains(missing(req.(proto.Message)), field) {
						return nil, errMissing
					}
					return resp, err
				},
			})
		}
	}
	return all
}()

// missing are the required fields that a message does not have, but for those that csi-sanity
// leaves out.
func missing(m proto.Message) (fields []string) {
	for _, v := range violations(csispec.Validate(m, csispec.WithCSISanity())) {
		if v.Rule == "required" && !strings.Contains(v.Field, ".") {
			fields = append(fields, v.Field)
		}
	}
	return fields
}

var createDefects = []defect{
	{
		breaks: "controller.create.idempotent", does: "another capacity the second time",
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			seen := map[string]bool{}
			return volumeChanged(func(v *csi.Volume) {
				mu.Lock()
				defer mu.Unlock()
				if v.CapacityBytes == 64<<20 && seen[v.VolumeId] {
					v.CapacityBytes += 1
				}
				seen[v.VolumeId] = true
			})
		}(),
		also: because("it asks for the capacity again", "controller.expand.bad-range", "controller.expand.too-large"),
	},
	{
		breaks: "controller.create.conflict-capacity", does: "a taken name is OK whatever the size",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if r.GetCapacityRange().GetRequiredBytes() == 2*64<<20+1 {
				r.CapacityRange.RequiredBytes = 64 << 20
			}
		}),
	},
	{
		breaks: "controller.create.conflict-access-type", does: "a taken name is OK whatever the access type",
		unary: before(func() func(*csi.CreateVolumeRequest) {
			var mu sync.Mutex
			first := map[string]*csi.VolumeCapability{}
			return func(r *csi.CreateVolumeRequest) {
				mu.Lock()
				defer mu.Unlock()
				if len(r.GetVolumeCapabilities()) == 0 {
					return
				}
				if was := first[r.GetName()]; was != nil {
					r.VolumeCapabilities[0].AccessType = was.AccessType
				} else {
					first[r.GetName()] = proto.CloneOf(r.VolumeCapabilities[0])
				}
			}
		}()),
	},
	{
		breaks: "controller.create.capacity-in-range", does: "limit_bytes is ignored",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if l := r.GetCapacityRange().GetLimitBytes(); l == r.GetCapacityRange().GetRequiredBytes()+1 && l > 1 {
				r.CapacityRange = &csi.CapacityRange{RequiredBytes: l + 1}
			}
		}),
	},
	{
		breaks: "controller.create.bad-range", does: "required above limit is taken",
		unary: before(func(r *csi.CreateVolumeRequest) {
			if c := r.GetCapacityRange(); c.GetLimitBytes() > 0 && c.GetLimitBytes() < c.GetRequiredBytes() {
				c.LimitBytes = 0
			}
		}),
	},
	{
		// The response is too large because the request was.
		breaks: "controller.create.name-too-long", does: "a long name is truncated, and kept in volume_context",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			r, ok := req.(*csi.CreateVolumeRequest)
			if !ok || len(r.GetName()) <= 128 {
				return handler(ctx, req)
			}
			name := r.GetName()
			r.Name = name[:128]
			resp, err := handler(ctx, r)
			if err == nil {
				m := proto.CloneOf(resp.(*csi.CreateVolumeResponse))
				m.Volume.VolumeContext = map[string]string{"name": strings.Repeat(name, 40)}
				resp = m
			}
			return resp, err
		},
	},
	{
		breaks: "controller.create.name-any-unicode", does: "names differ by case in vain",
		unary: before(func(r *csi.CreateVolumeRequest) { r.Name = strings.ToLower(r.Name) }),
	},
	{
		breaks: "controller.create.name-control-characters", does: "control characters are removed",
		unary: before(func(r *csi.CreateVolumeRequest) { r.Name = strings.ReplaceAll(r.Name, "\x07", "") }),
	},
	{
		breaks: "controller.create.bad-capability", does: "an access mode that is not known is taken",
		also: because("it sends one, too", "hostile.enum"),
		unary: before(func(r *csi.CreateVolumeRequest) {
			for _, c := range r.VolumeCapabilities {
				if c.GetAccessMode().GetMode() == unknownMode {
					c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
				}
			}
		}),
	},
	{
		breaks: "controller.create.several-capabilities", does: "one capability only",
		unary: instead(func(r *csi.CreateVolumeRequest) (proto.Message, error) {
			if len(r.GetVolumeCapabilities()) > 1 {
				return nil, status.Error(codes.InvalidArgument, "one capability, please")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.create.several-capabilities", does: "NOT_FOUND for raw block and a file system in one",
		unary: fails(func(r *csi.CreateVolumeRequest, err error) error {
			if len(r.GetVolumeCapabilities()) > 1 {
				return status.Error(codes.NotFound, "no volume is both")
			}
			return err
		}),
	},
	{
		breaks: "controller.create.unsupported-fs-type", does: "NOT_FOUND for a file system that it does not know",
		unary: instead(func(r *csi.CreateVolumeRequest) (proto.Message, error) {
			for _, c := range r.GetVolumeCapabilities() {
				if c.GetMount().GetFsType() == "csicheck-none" {
					return nil, errMissing
				}
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.create.snapshot-missing", does: "an empty volume for a snapshot that is not there",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.CreateVolumeRequest); ok && status.Code(err) == codes.NotFound && r.GetVolumeContentSource().GetSnapshot() != nil {
				r.VolumeContentSource = nil
				return handler(ctx, r)
			}
			return resp, err
		},
	},
	{
		breaks: "controller.create.clone-missing", does: "an empty volume for a volume that is not there",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.CreateVolumeRequest); ok && status.Code(err) == codes.NotFound && r.GetVolumeContentSource().GetVolume() != nil {
				r.VolumeContentSource = nil
				return handler(ctx, r)
			}
			return resp, err
		},
	},
	{
		breaks: "controller.create.source-reported", does: "no content_source",
		unary: volumeChanged(func(v *csi.Volume) {
			if v.GetContentSource().GetSnapshot() != nil {
				v.ContentSource = nil
			}
		}),
	},
	{
		breaks: "source.restore.created", does: "content_source is in the first answer only", alone: true,
		unary: func() grpc.UnaryServerInterceptor {
			var known sync.Map
			return volumeChanged(func(v *csi.Volume) {
				if _, again := known.LoadOrStore(v.GetVolumeId(), true); again {
					v.ContentSource = nil
				}
			})
		}(),
	},
	{
		breaks: "controller.create.single-node-writer", does: "NodePublishVolume wants one of the newer access modes", alone: true,
		unary: instead(func(r *csi.NodePublishVolumeRequest) (proto.Message, error) {
			if r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
				return nil, status.Error(codes.FailedPrecondition, "use SINGLE_NODE_SINGLE_WRITER")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.create.single-node-writer", does: "CreateVolume wants one of the newer access modes", alone: true,
		unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool {
			return slices.ContainsFunc(r.GetVolumeCapabilities(), func(c *csi.VolumeCapability) bool {
				return c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
			})
		}),
	},
	{
		breaks: "controller.create.bad-range", does: "a negative required_bytes is none", alone: true,
		unary: before(func(r *csi.CreateVolumeRequest) {
			if r.GetCapacityRange().GetRequiredBytes() < 0 {
				r.CapacityRange = nil
			}
		}),
	},
	{
		breaks: "controller.create.bad-range", does: "a negative limit_bytes is none", alone: true,
		unary: before(func(r *csi.CreateVolumeRequest) {
			if r.GetCapacityRange().GetLimitBytes() < 0 {
				r.CapacityRange.LimitBytes = 0
			}
		}),
	},
	{
		breaks: "controller.create.bad-range", does: "an empty range is none", alone: true,
		unary: before(func(r *csi.CreateVolumeRequest) {
			if c := r.GetCapacityRange(); c != nil && c.GetRequiredBytes() == 0 && c.GetLimitBytes() == 0 {
				r.CapacityRange = nil
			}
		}),
	},
	{
		breaks: "source.restore.created", does: "no volume from a snapshot, though CREATE_DELETE_SNAPSHOT is reported", alone: true,
		unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool { return r.GetVolumeContentSource().GetSnapshot() != nil }),
	},
	{
		breaks: "source.clone.created", does: "no clone, though CLONE_VOLUME is reported", alone: true,
		unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool { return r.GetVolumeContentSource().GetVolume() != nil }),
	},
	{
		breaks: "controller.create.capacity-in-range", does: "half of required_bytes is enough", alone: true,
		unary: volumeChanged(func(v *csi.Volume) { v.CapacityBytes /= 2 }),
	},
	{
		breaks: "controller.create.kubernetes-parameters", does: "parameters of Kubernetes are not known",
		unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool { return r.GetParameters()[kubernetesPrefix+"pv/name"] != "" }),
	},
	{
		breaks: "controller.create.kubernetes-parameters", does: "CreateSnapshot does not know parameters of Kubernetes", alone: true,
		unary: instead(func(r *csi.CreateSnapshotRequest) (proto.Message, error) {
			if len(r.GetParameters()) > 0 {
				return nil, status.Error(codes.InvalidArgument, "parameters are not supported")
			}
			return nil, nil
		}),
	},
}

var deleteDefects = []defect{
	{
		breaks: "controller.delete.idempotent", does: "NOT_FOUND for a volume that never was",
		unary: instead(func(r *csi.DeleteVolumeRequest) (proto.Message, error) {
			if strings.HasPrefix(r.GetVolumeId(), "csicheck-") {
				return nil, errMissing
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.delete.attached", does: "ABORTED, not FAILED_PRECONDITION",
		unary: fails(func(_ *csi.DeleteVolumeRequest, err error) error {
			if status.Code(err) == codes.FailedPrecondition {
				return status.Error(codes.ResourceExhausted, "it is in use")
			}
			return err
		}),
		mayAlso: because("DeleteVolume comes while the volume is published", oneVolume),
	},
}

var listDefects = []defect{
	{
		breaks: "controller.list.complete", does: "the last volume is missing in long lists",
		unary: after(func(r *csi.ListVolumesResponse) {
			if len(r.Entries) == 1 && r.NextToken == "" {
				r.Entries = nil
			}
		}),
		also: map[string]string{
			"controller.list.pages":           "the last page has one",
			"controller.list.large-max":       "it expects the one volume",
			"controller.list.published-nodes": "it expects the one volume",
			"controller.unpublish.late":       "it expects the one volume",
			"controller.unpublish.other-node": "it expects the one volume",
		},
	},
	{
		breaks: "controller.list.capacity-agrees", does: "another capacity than CreateVolume returned",
		unary: after(func(r *csi.ListVolumesResponse) {
			for _, e := range r.Entries {
				e.Volume.CapacityBytes++
			}
		}),
	},
	{
		breaks: "controller.list.pages", does: "max_entries is ignored",
		unary: before(func(r *csi.ListVolumesRequest) { r.MaxEntries = min(r.MaxEntries, 0) }),
	},
	{
		breaks: "controller.list.bad-token", does: "an unknown token is the beginning",
		unary: before(func(r *csi.ListVolumesRequest) {
			if strings.HasPrefix(r.StartingToken, "no-token") {
				r.StartingToken = ""
			}
		}),
	},
	{
		breaks: "controller.list.negative-max", does: "a negative max_entries is no limit",
		unary: before(func(r *csi.ListVolumesRequest) { r.MaxEntries = max(r.MaxEntries, 0) }),
	},
	{
		breaks: "controller.list.published-nodes", does: "no node is ever listed",
		unary: after(func(r *csi.ListVolumesResponse) {
			for _, e := range r.Entries {
				e.Status = &csi.ListVolumesResponse_VolumeStatus{}
			}
		}),
		also: because("it checks whether the node is listed", "controller.unpublish.late", "controller.unpublish.other-node"),
	},
	{
		breaks: "controller.list.pages", does: "no next_token after the first page", alone: true,
		unary: after(func(r *csi.ListVolumesResponse) { r.NextToken = "" }),
	},
}

var attachDefects = []defect{
	{
		breaks: "controller.publish.idempotent", does: "ALREADY_EXISTS at the second time",
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			done := map[string]bool{}
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				mu.Lock()
				defer mu.Unlock()
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.ControllerUnpublishVolumeRequest:
					maps.DeleteFunc(done, func(key string, _ bool) bool { return strings.HasPrefix(key, r.GetVolumeId()+r.GetNodeId()) })
				case *csi.ControllerPublishVolumeRequest:
					key := r.GetVolumeId() + r.GetNodeId()
					if err == nil && done[key] {
						return nil, status.Error(codes.AlreadyExists, "it is published")
					}
					done[key] = done[key] || err == nil
				}
				return resp, err
			}
		}(),
		also: map[string]string{
			"controller.delete.attached": "it publishes again to see that the volume is there",
			"restart.attachments-kept":   "it publishes again after the restart",

			"controller.publish.multi-node":   "it publishes again to the first node",
			"controller.publish.after-cancel": "it publishes again", "controller.publish.after-deadline": "it publishes again",
			"controller.publish.parallel": "it publishes again",
		},
		mayAlso: because("it publishes again", oneVolume),
	},
	{
		breaks: "controller.publish.volume-missing", does: "FAILED_PRECONDITION for a volume that is not there",
		unary: fails(func(r *csi.ControllerPublishVolumeRequest, err error) error {
			if status.Code(err) == codes.NotFound && !strings.HasPrefix(r.GetNodeId(), "csicheck-") {
				return status.Error(codes.FailedPrecondition, "not there")
			}
			return err
		}),
	},
	{
		breaks: "controller.publish.node-missing", does: "INTERNAL for a node that is not there",
		unary: fails(func(r *csi.ControllerPublishVolumeRequest, err error) error {
			if status.Code(err) == codes.NotFound && strings.HasPrefix(r.GetNodeId(), "csicheck-") {
				return status.Error(codes.Internal, "not there")
			}
			return err
		}),
	},
	{
		breaks: "controller.publish.readonly-changed", does: "readonly is not compared, before a restart",
		unary: fails(func(r *csi.ControllerPublishVolumeRequest, err error) error {
			if status.Code(err) == codes.AlreadyExists && r.GetReadonly() {
				return status.Error(codes.FailedPrecondition, "another readonly")
			}
			return err
		}),
		also: map[string]string{
			"restart.attachments-kept":        "it asks with another readonly as well",
			"controller.unpublish.other-node": "it asks with another readonly as well",
			"controller.unpublish.late":       "it asks with another readonly as well",
		},
	},
	{
		breaks: "controller.publish.second-node", does: "a second node is ABORTED",
		unary: fails(func(_ *csi.ControllerPublishVolumeRequest, err error) error {
			if status.Code(err) == codes.FailedPrecondition {
				return status.Error(codes.ResourceExhausted, "it is elsewhere")
			}
			return err
		}),
		also: map[string]string{"controller.publish.every-single-node-mode": "it asks for a second node, too"},
	},
	{
		breaks: "controller.unpublish.idempotent", mayAlso: because("it detaches twice, too", "controller.unpublish.node-dead"), does: "NOT_FOUND for what is not published",
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			done := map[string]bool{}
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				mu.Lock()
				defer mu.Unlock()
				switch r := req.(type) {
				case *csi.ControllerPublishVolumeRequest:
					done[r.GetVolumeId()+r.GetNodeId()] = false
				case *csi.ControllerUnpublishVolumeRequest:
					if done[r.GetVolumeId()+r.GetNodeId()] {
						return nil, errMissing
					}
					done[r.GetVolumeId()+r.GetNodeId()] = r.GetVolumeId() != ""
				}
				return handler(ctx, req)
			}
		}(),
		also: map[string]string{
			"controller.unpublish.after-cancel": "it repeats the call", "controller.unpublish.after-deadline": "it repeats the call",
			"controller.unpublish.parallel": "it repeats the call",
		},
		leaves: "what a call that was given up has attached late is detached for the second time",
	},
	{
		breaks: "controller.unpublish.every-node", does: "no node_id does nothing",
		unary: instead(func(r *csi.ControllerUnpublishVolumeRequest) (proto.Message, error) {
			if r.GetNodeId() == "" && r.GetVolumeId() != "" {
				return &csi.ControllerUnpublishVolumeResponse{}, nil
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.unpublish.volume-missing", does: "NOT_FOUND for a volume that is not there",
		unary: func() grpc.UnaryServerInterceptor {
			var gone sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if r, ok := req.(*csi.ControllerUnpublishVolumeRequest); ok {
					if _, is := gone.Load(r.GetVolumeId()); is {
						return nil, errMissing
					}
				}
				resp, err := handler(ctx, req)
				if r, ok := req.(*csi.DeleteVolumeRequest); ok && err == nil {
					gone.Store(r.GetVolumeId(), true)
				}
				return resp, err
			}
		}(),
	},
}

var validateDefects = []defect{
	{
		breaks: "controller.validate.confirms", does: "confirms another access mode",
		unary: after(func(r *csi.ValidateVolumeCapabilitiesResponse) {
			for _, c := range r.GetConfirmed().GetVolumeCapabilities() {
				c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
			}
		}),
	},
	{
		breaks: "controller.validate.unsupported", does: "confirms everything of a volume that is there",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.ValidateVolumeCapabilitiesRequest); ok && err == nil && len(r.VolumeCapabilities) > 1 {
				return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
					VolumeCapabilities: r.VolumeCapabilities,
				}}, nil
			}
			return resp, err
		},
	},
	{
		breaks: "controller.validate.volume-missing", does: "OK without confirmed for a volume that is not there",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if _, ok := req.(*csi.ValidateVolumeCapabilitiesRequest); ok && status.Code(err) == codes.NotFound {
				return &csi.ValidateVolumeCapabilitiesResponse{}, nil
			}
			return resp, err
		},
	},
	{
		breaks: "controller.validate.idempotent", does: "what is published is not confirmed",
		unary: func() grpc.UnaryServerInterceptor {
			var published sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.ControllerPublishVolumeRequest:
					published.Store(r.GetVolumeId(), true)
				case *csi.ValidateVolumeCapabilitiesRequest:
					if _, is := published.Load(r.GetVolumeId()); is && err == nil {
						return &csi.ValidateVolumeCapabilitiesResponse{Message: "in use"}, nil
					}
				}
				return resp, err
			}
		}(),
	},
}

var expandDefects = []defect{
	{
		breaks: "controller.expand.grows", does: "the second time is ALREADY_EXISTS",
		unary: func() grpc.UnaryServerInterceptor {
			var done sync.Map
			return instead(func(r *csi.ControllerExpandVolumeRequest) (proto.Message, error) {
				if _, again := done.LoadOrStore(r.GetVolumeId()+r.GetCapacityRange().String(), true); again && r.GetVolumeId() != "" {
					return nil, status.Error(codes.FailedPrecondition, "done")
				}
				return nil, nil
			})
		}(),
		also: map[string]string{
			"controller.expand.after-later": "it repeats the call", "controller.expand.after-cancel": "it repeats the call",
			"controller.expand.after-deadline": "it repeats the call", "controller.expand.parallel": "it repeats the call",
		},
	},
	{
		breaks: "controller.expand.capability-optional", does: "volume_capability is required",
		unary: instead(func(r *csi.ControllerExpandVolumeRequest) (proto.Message, error) {
			if r.GetVolumeCapability() == nil {
				return nil, status.Error(codes.InvalidArgument, "volume_capability is required")
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.expand.never-shrinks", does: "a volume shrinks",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := resp.(*csi.ControllerExpandVolumeResponse); ok && err == nil {
				if asked := req.(*csi.ControllerExpandVolumeRequest).GetCapacityRange().GetRequiredBytes(); asked < 64*mib {
					r.CapacityBytes = asked
				}
			}
			return resp, err
		},
	},
	{
		breaks: "controller.expand.volume-missing", does: "INVALID_ARGUMENT for a volume that is not there",
		unary: fails(func(_ *csi.ControllerExpandVolumeRequest, err error) error {
			if status.Code(err) == codes.NotFound {
				return status.Error(codes.InvalidArgument, "not there")
			}
			return err
		}),
		mayAlso: because("ControllerExpandVolume comes after DeleteVolume", oneVolume),
	},
	{
		breaks: "controller.expand.bad-range", does: "required above limit is taken",
		unary: before(func(r *csi.ControllerExpandVolumeRequest) {
			if c := r.GetCapacityRange(); c.GetLimitBytes() > 0 && c.GetLimitBytes() < c.GetRequiredBytes() {
				c.LimitBytes = 0
			}
		}),
	},
	{
		breaks: "controller.expand.online", does: "what is published is not expanded, though ONLINE is reported",
		unary: unpublished(func(req any) []string {
			if r, ok := req.(*csi.ControllerExpandVolumeRequest); ok {
				return []string{r.GetVolumeId()}
			}
			return nil
		}),
	},
	{
		breaks: "controller.expand.offline", does: "what is published is expanded, though only OFFLINE is reported",
		unary: after(func(r *csi.GetPluginCapabilitiesResponse) {
			for _, c := range r.GetCapabilities() {
				if e := c.GetVolumeExpansion(); e != nil {
					e.Type = csi.PluginCapability_VolumeExpansion_OFFLINE
				}
			}
		}),
	},
}

var snapshotDefects = []defect{
	{
		breaks: "controller.snapshot.idempotent", does: "creation_time is the time of the answer",
		unary: after(func(r *csi.CreateSnapshotResponse) { r.Snapshot.CreationTime = timestamppb.Now() }),
		also: map[string]string{
			"controller.snapshot.list-agrees": "the list has the right one", "controller.snapshot.get-agrees": "GetSnapshot has the right one",
		},
	},
	{
		breaks: "controller.snapshot.names-source", does: "another source",
		unary: after(func(r *csi.CreateSnapshotResponse) { r.Snapshot.SourceVolumeId = "other" }),
		also: map[string]string{
			"controller.snapshot.list-agrees": "the list has the right one", "controller.snapshot.get-agrees": "GetSnapshot has the right one",
			"controller.snapshot.name-reusable": "it checks the source",
		},
	},
	{
		breaks: "controller.snapshot.name-taken", does: "INTERNAL for a taken name",
		unary: fails(func(_ *csi.CreateSnapshotRequest, err error) error {
			if status.Code(err) == codes.AlreadyExists {
				return status.Error(codes.Internal, "taken")
			}
			return err
		}),
	},
	{
		breaks: "controller.snapshot.source-missing-code", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.CreateSnapshotRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "controller.snapshot.source-missing", does: "a snapshot of nothing",
		unary: exchange(func(r *csi.CreateSnapshotRequest, resp *csi.CreateSnapshotResponse, err error) (*csi.CreateSnapshotResponse, error) {
			if status.Code(err) != codes.NotFound {
				return resp, err
			}
			return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
				SnapshotId: "nothing-of-" + r.GetSourceVolumeId(), SourceVolumeId: r.GetSourceVolumeId(), CreationTime: timestamppb.Now(), ReadyToUse: true,
			}}, nil
		}),
	},
	{
		breaks: "controller.snapshot.delete-idempotent", does: "NOT_FOUND for a snapshot that never was",
		unary: instead(func(r *csi.DeleteSnapshotRequest) (proto.Message, error) {
			if strings.HasPrefix(r.GetSnapshotId(), "csicheck-") {
				return nil, errMissing
			}
			return nil, nil
		}),
	},
	{
		breaks: "controller.snapshot.survives-volume", does: "snapshots vanish with their volume",
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			of := map[string]string{}
			gone := map[string]bool{}
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				mu.Lock()
				defer mu.Unlock()
				switch r := req.(type) {
				case *csi.DeleteVolumeRequest:
					gone[r.GetVolumeId()] = r.GetVolumeId() != ""
				case *csi.CreateVolumeRequest:
					if s := r.GetVolumeContentSource().GetSnapshot(); s != nil && gone[of[s.GetSnapshotId()]] {
						return nil, errMissing
					}
				}
				resp, err := handler(ctx, req)
				if r, ok := resp.(*csi.CreateSnapshotResponse); ok && err == nil {
					of[r.GetSnapshot().GetSnapshotId()] = r.GetSnapshot().GetSourceVolumeId()
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "controller.snapshot.list", does: "source_volume_id is ignored",
		mayAlso: because("it lists the snapshots of one volume", "leaks.refused-calls"),
		unary: before(func(r *csi.ListSnapshotsRequest) {
			if r.SnapshotId == "" {
				r.SourceVolumeId = ""
			}
		}),
	},
	{
		breaks: "controller.snapshot.list-bad-token", does: "an unknown token is the beginning",
		unary: before(func(r *csi.ListSnapshotsRequest) {
			if strings.HasPrefix(r.StartingToken, "no-token") {
				r.StartingToken = ""
			}
		}),
	},
	{
		breaks: "controller.snapshot.get", does: "INTERNAL for a snapshot that is not there",
		unary: fails(func(r *csi.GetSnapshotRequest, err error) error {
			if status.Code(err) == codes.NotFound && strings.HasPrefix(r.GetSnapshotId(), "csicheck-") {
				return status.Error(codes.Internal, "not there")
			}
			return err
		}),
	},
}

var metadataDefects = []defect{{
	breaks: "snapshot.metadata.allocated", does: "a stream from beyond the volume is empty",
	stream: streamed("GetMetadataAllocated", nil, nil, func(req proto.Message, err error) error {
		if status.Code(err) == codes.OutOfRange && req.(*csi.GetMetadataAllocatedRequest).GetStartingOffset() > 0 {
			return nil
		}
		return err
	}),
}}

var groupDefects = []defect{
	{
		breaks: "group.create.members", does: "GetVolumeGroupSnapshot has one member",
		unary: after(func(r *csi.GetVolumeGroupSnapshotResponse) { r.GroupSnapshot.Snapshots = r.GroupSnapshot.Snapshots[:1] }),
	},
	{
		breaks: "group.delete.idempotent", does: "NOT_FOUND for a group that is not there",
		unary: instead(func(r *csi.DeleteVolumeGroupSnapshotRequest) (proto.Message, error) {
			if strings.HasPrefix(r.GetGroupSnapshotId(), "csicheck-") {
				return nil, errMissing
			}
			return nil, nil
		}),
	},
	{
		breaks: "group.get.missing", does: "INTERNAL for a group that is not there",
		unary: fails(func(r *csi.GetVolumeGroupSnapshotRequest, err error) error {
			if status.Code(err) == codes.NotFound && strings.HasPrefix(r.GetGroupSnapshotId(), "csicheck-") {
				return status.Error(codes.Internal, "not there")
			}
			return err
		}),
	},
}
