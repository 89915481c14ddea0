package csitest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// afterStage does something at the staging path, and what it returns goes to the client.
func afterStage(do func(*csi.NodeStageVolumeRequest, error) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if r, ok := req.(*csi.NodeStageVolumeRequest); ok {
			if err = do(r, err); err == nil {
				return &csi.NodeStageVolumeResponse{}, nil
			}
		}
		return resp, err
	}
}

var mountDefects = []defect{
	{
		breaks: "node.publish.table", does: "a volume for one reader is for many",
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if m := r.GetVolumeCapability().GetAccessMode(); m.GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
				m.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			}
		}),
		also: map[string]string{"node.publish.capability-changed": "it asks for one reader the second time"},
	},
	{
		breaks: "node.publish.before-stage", does: "the target is made before anything is checked",
		unary: func() grpc.UnaryServerInterceptor {
			var made sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if status.Code(err) == codes.FailedPrecondition && r.GetStagingTargetPath() != "" && os.Mkdir(r.GetTargetPath(), 0o750) == nil {
						made.Store(r.GetTargetPath(), r.GetVolumeId())
					}
				case *csi.DeleteVolumeRequest: // for rules that search leftovers
					made.Range(func(target, id any) bool {
						if id == r.GetVolumeId() {
							os.Remove(target.(string))
						}
						return true
					})
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "node.stage.after-detach", does: "the node does not ask whether the volume is still attached",
		unary: func() grpc.UnaryServerInterceptor {
			var detached sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.ControllerPublishVolumeRequest:
					detached.Delete(r.GetVolumeId())
				case *csi.ControllerUnpublishVolumeRequest:
					detached.Store(r.GetVolumeId(), true)
				case *csi.NodeStageVolumeRequest:
					if _, ok := detached.Load(r.GetVolumeId()); ok && status.Code(err) == codes.FailedPrecondition {
						return &csi.NodeStageVolumeResponse{}, nil
					}
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "node.stage.conflict", also: because("it stages as the other access type, too", "node.stage.exceeds-capabilities"), does: "what is staged is staged",
		mayAlso: because("a volume that is not attached is FAILED_PRECONDITION, too", "node.stage.after-detach"),
		unary: afterStage(func(_ *csi.NodeStageVolumeRequest, err error) error {
			if status.Code(err) == codes.FailedPrecondition {
				return nil
			}
			return err
		}),
	},
	{
		breaks: "node.stage.after-cancel", does: "a volume whose staging was cancelled is half staged", only: true,
		mayAlso: because("a kill drops calls, too", "restart.publish-interrupted"),
		unary:   stuck((*csi.NodeStageVolumeRequest).GetVolumeId, false),
	},
	{
		breaks: "node.publish.parallel", does: "INTERNAL while another pod's publish is under way",
		unary: func() grpc.UnaryServerInterceptor {
			var busy sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				r, ok := req.(*csi.NodePublishVolumeRequest)
				if !ok || r.GetVolumeId() == "" {
					return handler(ctx, req)
				}
				if target, other := busy.LoadOrStore(r.GetVolumeId(), r.GetTargetPath()); other && target != r.GetTargetPath() {
					return nil, status.Error(codes.Internal, "busy")
				}
				defer busy.CompareAndDelete(r.GetVolumeId(), r.GetTargetPath())
				select {
				case <-ctx.Done(): // which frees the volume for the next call
				case <-time.After(100 * time.Millisecond): // slow, so that the others come meanwhile
				}
				return handler(ctx, req)
			}
		}(),
	},
	{
		breaks: "node.stats.not-mounted", does: "numbers of whatever is there",
		unary: func() grpc.UnaryServerInterceptor {
			var used sync.Map // paths that a volume was at
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					used.Store(r.GetTargetPath(), true)
				case *csi.NodeGetVolumeStatsRequest:
					if _, was := used.Load(r.GetVolumePath()); status.Code(err) == codes.NotFound && !was && lives(r.GetVolumePath()) {
						return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 1}}}, nil
					}
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "node.stats.agrees", does: "numbers of when the volume was made", kernel: true,
		unary: after(func(r *csi.NodeGetVolumeStatsResponse) { r.Usage[0].Available, r.Usage[0].Used = r.Usage[0].Total, 0 }),
	},
	{
		breaks: "node.publish.mount-flags", does: "mount_flags are ignored", kernel: true,
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if m := r.GetVolumeCapability().GetMount(); m != nil {
				m.MountFlags = nil
			}
		}),
	},
	{
		breaks: "node.publish.mount-group", does: "the group may only read", kernel: true, root: true,
		unary: exchange(func(r *csi.NodePublishVolumeRequest, resp *csi.NodePublishVolumeResponse, err error) (*csi.NodePublishVolumeResponse, error) {
			if err == nil && r.GetVolumeCapability().GetMount().GetVolumeMountGroup() != "" {
				os.Chmod(r.GetTargetPath(), 0o755)
			}
			return resp, err
		}),
	},
	{
		breaks: "node.publish.volumes-separate", does: "the third volume is the second one", kernel: true,
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			var first string
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				mu.Lock()
				defer mu.Unlock()
				switch r := req.(type) {
				case *csi.NodeStageVolumeRequest:
					if err != nil || r.GetVolumeCapability().GetMount() == nil {
						break
					}
					if _, here := os.Stat(first); first != "" && here == nil && first != r.GetStagingTargetPath() && len(mountsAt(first)) > 0 {
						refdriver.Unbind(r.GetStagingTargetPath())
						refdriver.Bind(first, r.GetStagingTargetPath(), false)
						break
					}
					first = r.GetStagingTargetPath()
				}
				return resp, err
			}
		}(),
		also: because("it has two volumes", "source.restore.data", "source.restore.separate", "source.clone.data", "source.clone.separate"),
	},
	{
		breaks: "node.publish.no-stray-mounts", does: "it mounts for itself as well", kernel: true,
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			r, unstage := req.(*csi.NodeUnstageVolumeRequest)
			if unstage && filepath.IsLocal(r.GetVolumeId()) { // hostile.ids sends paths
				refdriver.Unbind(filepath.Join(os.TempDir(), r.GetVolumeId()))
				os.Remove(filepath.Join(os.TempDir(), r.GetVolumeId()))
			}
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodeStageVolumeRequest); ok && err == nil && r.GetVolumeCapability().GetMount() != nil {
				if own := filepath.Join(os.TempDir(), r.GetVolumeId()); os.Mkdir(own, 0o700) == nil {
					refdriver.Bind(r.GetStagingTargetPath(), own, false)
				}
			}
			return resp, err
		},
	},
	{
		breaks: "node.unstage.while-published", does: "NodeUnstageVolume unmounts the targets", kernel: true,
		unary: func() grpc.UnaryServerInterceptor {
			var targets sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if err == nil {
						targets.Store(r.GetVolumeId(), r.GetTargetPath())
					}
				case *csi.NodeUnstageVolumeRequest:
					if target, ok := targets.Load(r.GetVolumeId()); ok && status.Code(err) == codes.FailedPrecondition {
						refdriver.Unbind(target.(string))
						refdriver.Bind(target.(string), target.(string), false)
					}
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "node.publish.kubelet-restarts", does: "every publish mounts again", kernel: true,
		mayAlso: because("it mounts again without the attachment's readonly", "controller.publish.readonly-enforced"),
		also:    map[string]string{"node.publish.pod-info": "it publishes three times"},
		unary: func() grpc.UnaryServerInterceptor {
			var published sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if _, again := published.LoadOrStore(r.GetTargetPath(), true); err == nil && again && r.GetVolumeCapability().GetMount() != nil {
						refdriver.Unbind(r.GetTargetPath())
						refdriver.Bind(r.GetStagingTargetPath(), r.GetTargetPath(), r.GetReadonly())
					}
				case *csi.NodeUnpublishVolumeRequest:
					if err == nil {
						published.Delete(r.GetTargetPath())
					}
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "node.expand.grows", does: "NodeExpandVolume does nothing", kernel: true,
		unary: instead(func(r *csi.NodeExpandVolumeRequest) (proto.Message, error) {
			if r.GetCapacityRange().GetRequiredBytes() == 128<<20 && lives(r.GetVolumePath()) {
				return &csi.NodeExpandVolumeResponse{CapacityBytes: 128 << 20}, nil
			}
			return nil, nil
		}),
	},
	{
		breaks: "node.publish.pod-info", does: "new tokens are mounted on top", kernel: true,
		unary: func() grpc.UnaryServerInterceptor {
			var tokens sync.Map // by target
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if r, ok := req.(*csi.NodeUnpublishVolumeRequest); ok {
					if _, had := tokens.LoadAndDelete(r.GetTargetPath()); had {
						for len(mountsAt(r.GetTargetPath())) > 1 {
							refdriver.Unbind(r.GetTargetPath())
						}
					}
				}
				resp, err := handler(ctx, req)
				if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err == nil {
					token := r.GetVolumeContext()[tokensKey]
					if before, had := tokens.Swap(r.GetTargetPath(), token); had && before != token {
						refdriver.Bind(r.GetStagingTargetPath(), r.GetTargetPath(), false)
					}
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "node.stats.parallel", does: "INTERNAL while the volume is published for another pod",
		unary: func() grpc.UnaryServerInterceptor {
			var published sync.Map // the targets that a volume has or had, by volume
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if first, other := published.LoadOrStore(r.GetVolumeId(), r.GetTargetPath()); other && first != r.GetTargetPath() && r.GetVolumeId() != "" {
						published.Store(r.GetVolumeId(), "busy")
					}
				case *csi.NodeGetVolumeStatsRequest:
					if state, known := published.Load(r.GetVolumeId()); known && state == "busy" {
						return nil, status.Error(codes.Internal, "busy")
					}
				}
				return handler(ctx, req)
			}
		}(),
		alone: true,
	},
}

// lives reports whether the path is there.
func lives(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
