package csitest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var kubernetesDefects = []defect{
	{
		breaks: "node.connections", does: "a volume is unpublished only over the connection that it was published over", alone: true,
		unary: func() grpc.UnaryServerInterceptor {
			var by sync.Map // net.Addr of the client, one for each connection
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				client := net.Addr(nil)
				if p, ok := grpcpeer.FromContext(ctx); ok {
					client = p.Addr
				}
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					by.Store(r.GetTargetPath(), client)
				case *csi.NodeUnpublishVolumeRequest:
					if first, _ := by.Load(r.GetTargetPath()); first != nil && first != client && strings.Contains(userAgent(ctx), "as kubelet") {
						return nil, status.Error(codes.FailedPrecondition, "of another client")
					}
				}
				return handler(ctx, req)
			}
		}(),
	},
	{
		breaks: "node.staging-path-unused", does: "raw block with a staging_target_path is INVALID_ARGUMENT", noStaging: true,
		unary: refusing(codes.InvalidArgument, func(r *csi.NodePublishVolumeRequest) bool {
			return r.GetVolumeCapability().GetBlock() != nil && r.GetStagingTargetPath() != ""
		}),
	},
	{
		breaks: "node.staging-path-unused", does: "expansion with a staging_target_path is INVALID_ARGUMENT", noStaging: true, alone: true,
		unary: refusing(codes.InvalidArgument, func(r *csi.NodeExpandVolumeRequest) bool { return r.GetStagingTargetPath() != "" }),
	},
	{
		breaks: "node.expand.block-without-staging-path", does: "expansion needs a staging_target_path",
		unary: refusing(codes.InvalidArgument, func(r *csi.NodeExpandVolumeRequest) bool {
			return r.GetVolumeCapability().GetBlock() != nil && r.GetStagingTargetPath() == "" && r.GetVolumePath() != ""
		}),
	},
	{
		breaks: "node.publish.inline", does: "NodeUnpublishVolume leaves the target path of an inline volume",
		unary: inlineVolumes(func(string) error { return nil }),
	},
	{
		breaks: "node.publish.inline", does: "an inline volume is published once", alone: true,
		unary: func() grpc.UnaryServerInterceptor {
			once := instead(func(r *csi.NodePublishVolumeRequest) (proto.Message, error) {
				if _, err := os.Lstat(r.GetTargetPath()); err == nil && strings.HasPrefix(r.GetVolumeId(), "csi-") {
					return nil, status.Error(codes.Internal, "it is there")
				}
				return nil, nil
			})
			return chain(once, inlineVolumes(os.Remove))
		}(),
	},
	{
		breaks: "controller.unpublish.node-dead", does: "what is published is not detached",
		unary: unpublished(func(req any) []string {
			if r, ok := req.(*csi.ControllerUnpublishVolumeRequest); ok {
				return []string{r.GetVolumeId()}
			}
			return nil
		}),
		alone: true, leaves: "the volume stays attached",
	},
	{
		breaks: "controller.unpublish.node-dead", does: "what was detached is not unpublished", alone: true, leaves: "the volume stays published",
		unary: func() grpc.UnaryServerInterceptor {
			var detached sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				switch r := req.(type) {
				case *csi.ControllerUnpublishVolumeRequest:
					detached.Store(r.GetVolumeId(), true)
				case *csi.NodeUnpublishVolumeRequest:
					if _, is := detached.Load(r.GetVolumeId()); is {
						return nil, status.Error(codes.NotFound, "not attached")
					}
				}
				return handler(ctx, req)
			}
		}(),
	},
	{
		breaks: "identity.probe.while-working", does: "Probe waits while volumes are made", alone: true,
		unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return forSidecar("livenessprobe", "Probe", func() error {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			})(ctx, req, info, handler)
		},
	},
	{
		breaks: "controller.modify.kubernetes-parameters", does: "mutable parameters of Kubernetes are not known",
		unary: refusing(codes.InvalidArgument, func(r *csi.ControllerModifyVolumeRequest) bool {
			return r.GetMutableParameters()[kubernetesPrefix+"pv/name"] != ""
		}),
	},
	{
		breaks: "sidecar.external-resizer-node-only", does: "the controller's endpoint has no NodeGetCapabilities",
		unary: chain(
			after(func(r *csi.ControllerGetCapabilitiesResponse) {
				r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool {
					return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
				})
			}),
			forSidecar("external-resizer-node-only", "NodeGetCapabilities", failing(codes.Unimplemented)),
		),
		alone: true,
	},
	{breaks: "sidecar.external-health-monitor", does: "GetPluginCapabilities takes its time", unary: forSidecar("external-health-monitor", "GetPluginCapabilities", tooLate)},
}

// exceedingDefects use volumes as what they are not.
var exceedingDefects = []defect{
	{
		breaks: "controller.expand.exceeds-capabilities", does: "volume_capability is ignored",
		unary:   before(func(r *csi.ControllerExpandVolumeRequest) { r.VolumeCapability = nil }),
		mayAlso: because("it sends a capability that is none", "hostile.enum"),
	},
	{
		breaks: "controller.expand.exceeds-capabilities", does: "another access type is NOT_FOUND", alone: true,
		unary: recode[csi.ControllerExpandVolumeRequest](codes.InvalidArgument, codes.NotFound),
	},
	{
		breaks: "node.stage.exceeds-capabilities", does: "a volume is staged as whatever is asked for", alone: true,
		unary: asMade(func(r *csi.NodeStageVolumeRequest) (string, *csi.VolumeCapability) {
			return r.GetVolumeId(), r.GetVolumeCapability()
		}),
	},
	{
		breaks: "node.publish.exceeds-capabilities", does: "a volume is published as whatever is asked for", alone: true,
		unary: asMade(func(r *csi.NodePublishVolumeRequest) (string, *csi.VolumeCapability) {
			return r.GetVolumeId(), r.GetVolumeCapability()
		}),
	},
}

// asMade replaces the access type of a request by the one that the volume was made for.
func asMade[T any, M message[T]](of func(M) (string, *csi.VolumeCapability)) grpc.UnaryServerInterceptor {
	var made sync.Map
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		var first *csi.VolumeCapability
		if r, ok := req.(*csi.CreateVolumeRequest); ok && len(r.GetVolumeCapabilities()) > 0 {
			first = proto.CloneOf(r.GetVolumeCapabilities()[0])
		}
		if m, ok := req.(M); ok {
			if id, capability := of(m); capability != nil {
				if was, is := made.Load(id); is {
					capability.AccessType = was.(*csi.VolumeCapability).AccessType
				}
			}
		}
		resp, err := handler(ctx, req)
		if r, ok := resp.(*csi.CreateVolumeResponse); ok && err == nil && first != nil {
			made.Store(r.GetVolume().GetVolumeId(), first)
		}
		return resp, err
	}
}

// sanityDefects are about fields that csi-sanity leaves out.
var sanityDefects = []defect{
	{
		breaks: "controller.modify.no-parameters", does: "INTERNAL without mutable_parameters",
		unary: refusing(codes.Internal, func(r *csi.ControllerModifyVolumeRequest) bool {
			return len(r.GetMutableParameters()) == 0 && r.GetVolumeId() != ""
		}),
	},
	{
		breaks: "group.delete.no-snapshot-ids", does: "OK, and nothing is deleted, without snapshot_ids",
		unary: instead(func(r *csi.DeleteVolumeGroupSnapshotRequest) (proto.Message, error) {
			if len(r.GetSnapshotIds()) == 0 && r.GetGroupSnapshotId() != "" {
				return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
			}
			return nil, nil
		}),
		alone: true,
	},
	{
		breaks: "group.get.no-snapshot-ids", does: "a group without members if there are no snapshot_ids", alone: true,
		unary: instead(func(r *csi.GetVolumeGroupSnapshotRequest) (proto.Message, error) {
			if len(r.GetSnapshotIds()) == 0 && r.GetGroupSnapshotId() != "" {
				return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: r.GetGroupSnapshotId()}}, nil
			}
			return nil, nil
		}),
	},
}

var placeDefects = []defect{
	{
		breaks: "topology.create.all-of-requisite", does: "the second place of a volume is none of requisite", alone: true,
		unary: secondPlace(func(requisite, _ []*csi.Topology) bool { return len(requisite) == 2 }),
	},
	{
		breaks: "topology.create.all-of-requisite", does: "a volume with two places is not in the one that is requisite", alone: true,
		unary: exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
			if requisite, _ := places(r); err == nil && len(requisite) == 1 && requisite[0].GetSegments()["ref.csikit.dev/zone"] == "b" {
				resp.Volume.AccessibleTopology = []*csi.Topology{nowhere(requisite[0]), {Segments: map[string]string{"ref.csikit.dev/zone": "a"}}}
			}
			return resp, err
		}),
	},
	{
		breaks: "topology.create.preferred-together", does: "the second place of a volume is not the one that is preferred",
		unary: secondPlace(func(requisite, preferred []*csi.Topology) bool { return len(requisite) == 3 && len(preferred) == 2 }),
	},
	{
		breaks: "topology.snapshot.usable-from", does: "accessibility_requirements of a snapshot are ignored",
		unary: before(func(r *csi.CreateSnapshotRequest) { r.AccessibilityRequirements = nil }),
	},
	{
		breaks: "topology.snapshot.usable-from", does: "a snapshot is usable from elsewhere", alone: true,
		unary: exchange(func(r *csi.CreateSnapshotRequest, resp *csi.CreateSnapshotResponse, err error) (*csi.CreateSnapshotResponse, error) {
			if err == nil && r.GetAccessibilityRequirements() != nil {
				for _, t := range resp.GetSnapshot().GetAccessibleTopology() {
					t.Segments = nowhere(t).GetSegments()
				}
			}
			return resp, err
		}),
	},
}

// secondPlace adds a place that there is not to the volumes of such requests.
func secondPlace(is func(requisite, preferred []*csi.Topology) bool) grpc.UnaryServerInterceptor {
	return exchange(func(r *csi.CreateVolumeRequest, resp *csi.CreateVolumeResponse, err error) (*csi.CreateVolumeResponse, error) {
		if t := resp.GetVolume().GetAccessibleTopology(); err == nil && is(places(r)) {
			resp.Volume.AccessibleTopology = append(t, nowhere(t[0]))
		}
		return resp, err
	})
}

var logDefects = []defect{
	{
		breaks: "log.standard-output", does: "errors are written to a file beside the socket", alone: true,
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err != nil {
				if dir, _, ok := strings.Cut(r.GetTargetPath(), "/csicheck-"); ok {
					if f, openErr := os.OpenFile(filepath.Join(dir, "driver.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); openErr == nil {
						defer f.Close()
						f.WriteString(err.Error() + "\n")
					}
				}
			}
			return resp, err
		},
	},
	{
		breaks: "secrets.wrong", does: "INTERNAL for a password that is wrong",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(interface{ GetSecrets() map[string]string }); ok && strings.HasPrefix(r.GetSecrets()["password"], "wrong-") {
				return nil, status.Error(codes.Internal, "login failed")
			}
			return handler(ctx, req)
		},
	},
}

var storageDefects = []defect{
	{
		breaks: "leaks.storage", does: "DeleteSnapshot is OK and deletes nothing", only: true, rules: []string{"controller.snapshot.idempotent"},
		unary: instead(func(r *csi.DeleteSnapshotRequest) (proto.Message, error) { return &csi.DeleteSnapshotResponse{}, nil }),
	},
	{
		breaks: "leaks.storage-after-kill", does: "each start makes a snapshot that nobody asked for", only: true,
		forgets: (*refdriver.State).Orphan,
		also:    because("it compares with what was before the run", "leaks.storage"),
	},
}
