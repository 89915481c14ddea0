package csitest

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// forSidecar does something before a call of one sidecar.
func forSidecar(name, method string, do func() error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if strings.Contains(userAgent(ctx), "csicheck as "+name) && path.Base(info.FullMethod) == method {
			if err := do(); err != nil {
				return nil, err
			}
		}
		return handler(ctx, req)
	}
}

func userAgent(ctx context.Context) string {
	return strings.Join(metadata.ValueFromIncomingContext(ctx, "user-agent"), " ")
}

// tooLate is what a second is too short for.
func tooLate() error {
	time.Sleep(1100 * time.Millisecond)
	return nil
}

func failing(code codes.Code) func() error {
	return func() error { return status.Error(code, "not now") }
}

// canaryPath is where an ID or a path leads from a directory that is not very deep. It is
// empty for everything but canaries: these defects run on the machine's own files.
func canaryPath(id string) string {
	path := filepath.Join("/a/b/c", id)
	if filepath.IsAbs(id) {
		path = filepath.Clean(id)
	}
	if !strings.Contains(path, "/csicheck-") || !strings.Contains(path, "/canary/") || strings.ContainsAny(path, "$;`\x00") {
		return ""
	}
	return path
}

// usesID does something to the path that an ID of one RPC leads to.
func usesID(method string, do func(path string)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if r, ok := req.(interface{ GetVolumeId() string }); ok && path.Base(info.FullMethod) == method {
			if p := canaryPath(r.GetVolumeId()); p != "" {
				do(p)
			}
		}
		return handler(ctx, req)
	}
}

var hostileDefects = []defect{
	{
		breaks: "hostile.ids", does: "INTERNAL for an ID with a percent sign",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(interface{ GetVolumeId() string }); ok && strings.Contains(r.GetVolumeId(), "%") {
				return nil, status.Error(codes.Internal, "bad format")
			}
			return handler(ctx, req)
		},
	},
	{breaks: "hostile.ids", does: "DeleteVolume removes what the ID leads to", unary: usesID("DeleteVolume", func(path string) { os.RemoveAll(path) })},
	{breaks: "hostile.ids", does: "NodeStageVolume keeps a file beside it", unary: usesID("NodeStageVolume", func(path string) { os.WriteFile(path+".json", nil, 0o600) })},
	{breaks: "hostile.ids", does: "ControllerExpandVolume truncates it", unary: usesID("ControllerExpandVolume", func(path string) { os.Truncate(path, 1) })},
	{breaks: "hostile.ids", does: "NodeUnpublishVolume changes the mode", unary: usesID("NodeUnpublishVolume", func(path string) { os.Chmod(path, 0o777) })},
	{breaks: "hostile.ids", does: "ControllerPublishVolume replaces it", unary: usesID("ControllerPublishVolume", func(path string) {
		if text, err := os.ReadFile(path); err == nil {
			os.Remove(path)
			os.WriteFile(path, text, 0o640)
		}
	})},
	{
		breaks: "hostile.ids", does: "ControllerGetVolume shows what the ID leads to",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(*csi.ControllerGetVolumeRequest); ok {
				if text, err := os.ReadFile(canaryPath(r.GetVolumeId())); err == nil {
					return nil, status.Errorf(codes.NotFound, "bad metadata: %s", text)
				}
			}
			return handler(ctx, req)
		},
	},
	{
		breaks: "hostile.ids", does: "ControllerUnpublishVolume hands the ID to a shell",
		unary: before(func(r *csi.ControllerUnpublishVolumeRequest) {
			if strings.Contains(r.GetVolumeId(), "/canary/") && !strings.Contains(r.GetVolumeId(), "\x00") {
				exec.Command("/bin/sh", "-c", "true "+r.GetVolumeId()).Run()
			}
		}),
	},
	{
		breaks: "hostile.ids", does: "NodeStageVolume mounts there", kernel: true,
		unary: usesID("NodeStageVolume", func(path string) {
			if refdriver.Bind(path, path, false) == nil {
				time.AfterFunc(5*time.Second, func() { refdriver.Unbind(path) })
			}
		}),
		mayAlso: because("the mount is counted until it goes", "leaks.node", "leaks.after-kill"),
		leaves:  "the mount", only: true,
	},
	{
		breaks: "hostile.paths", does: "a target path is made before it is checked",
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if path := canaryPath(r.GetTargetPath()); path != "" && !filepath.IsAbs(r.GetTargetPath()) {
				os.MkdirAll(path, 0o750)
			}
		}),
	},
	{
		breaks: "hostile.paths", does: "a path that is too long is UNAVAILABLE",
		unary: instead(func(r *csi.NodePublishVolumeRequest) (proto.Message, error) {
			if len(r.GetTargetPath()) > 4096 {
				return nil, status.Error(codes.Internal, "file name too long")
			}
			return nil, nil
		}),
	},
	{
		breaks: "hostile.large", does: "INTERNAL for large parameters",
		unary: instead(func(r *csi.CreateVolumeRequest) (proto.Message, error) {
			if proto.Size(r) > 1<<19 {
				return nil, status.Error(codes.Internal, "too large")
			}
			return nil, nil
		}),
	},
	{
		breaks: "hostile.enum", does: "NodePublishVolume takes a mode that is not known",
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if m := r.GetVolumeCapability().GetAccessMode(); m.GetMode() == unknownMode {
				m.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			}
		}),
	},
	{
		breaks: "hostile.unknown-fields", does: "fields that are not known are refused",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if len(req.(proto.Message).ProtoReflect().GetUnknown()) > 0 {
				return nil, status.Error(codes.InvalidArgument, "what is that?")
			}
			return handler(ctx, req)
		},
	},
	{breaks: "sidecar.node-driver-registrar", does: "GetPluginInfo takes its time", unary: forSidecar("node-driver-registrar", "GetPluginInfo", tooLate)},
	{breaks: "sidecar.livenessprobe", does: "Probe fails", unary: forSidecar("livenessprobe", "Probe", failing(codes.FailedPrecondition))},
	{breaks: "sidecar.external-provisioner", does: "the first Probe fails", unary: forSidecar("external-provisioner", "Probe", failing(codes.Unavailable))},
	{breaks: "sidecar.external-attacher", does: "ControllerGetCapabilities takes its time", unary: forSidecar("external-attacher", "ControllerGetCapabilities", tooLate)},
	{
		breaks: "sidecar.external-resizer", does: "ControllerGetCapabilities is answered twice",
		unary: func() grpc.UnaryServerInterceptor {
			var n atomic.Int32
			return forSidecar("external-resizer", "ControllerGetCapabilities", func() error {
				if n.Add(1)%3 == 0 {
					return status.Error(codes.ResourceExhausted, "not so often")
				}
				return nil
			})
		}(),
	},
	{
		breaks: "sidecar.external-snapshotter", does: "GetPluginInfo fails before Probe", unary: forSidecar("external-snapshotter", "GetPluginInfo", failing(codes.Unavailable)),
		also: because("it begins so, too", "sidecar.external-snapshotter-groups"),
	},
	{breaks: "sidecar.external-snapshotter-groups", does: "GroupControllerGetCapabilities fails", unary: forSidecar("external-snapshotter-groups", "GroupControllerGetCapabilities", failing(codes.Unavailable))},
	{
		breaks: "socket.directory", does: "a lock file beside the socket",
		unary: before(func(r *csi.NodeStageVolumeRequest) {
			if dir, _, ok := strings.Cut(r.GetStagingTargetPath(), "/csicheck-"); ok {
				os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)
			}
		}),
	},
	{
		breaks: "secrets.not-in-arguments", does: "a secret is an argument of mount", kernel: true,
		unary: before(func(r *csi.NodeStageVolumeRequest) {
			if s := r.GetSecrets()[plantedKey]; s != "" {
				exec.Command("sh", "-c", "sleep 0.3", "mount", "password="+s).Run()
			}
		}),
	},
	{
		breaks: "secrets.not-in-files", does: "the secret is kept beside the staging path", kernel: true,
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			switch r := req.(type) {
			case *csi.NodeStageVolumeRequest:
				if s := r.GetSecrets()[plantedKey]; s != "" && lives(r.GetStagingTargetPath()) {
					os.WriteFile(r.GetStagingTargetPath()+".json", []byte(s), 0o600)
				}
			case *csi.NodeUnstageVolumeRequest:
				os.Remove(r.GetStagingTargetPath() + ".json")
			}
			return handler(ctx, req)
		},
	},
	{
		breaks: "leaks.node", does: "every stage leaves a mount", kernel: true,
		mayAlso: because("it counts mounts, too", "leaks.after-cancel"),
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			return afterStage(func(r *csi.NodeStageVolumeRequest, err error) error {
				mu.Lock()
				defer mu.Unlock()
				if dir, _, ok := strings.Cut(r.GetStagingTargetPath(), "/csicheck-"); ok && err == nil {
					leak := filepath.Join(dir, "leak")
					os.MkdirAll(leak, 0o700)
					refdriver.Bind(leak, leak, false)
				}
				return err
			})
		}(),
		also: map[string]string{"socket.directory": "the mounts are beside the socket", "leaks.after-kill": "it counts mounts as well"},
	},
	func() defect {
		var mu sync.Mutex
		var killed bool
		return defect{
			breaks: "leaks.after-kill", does: "the first unpublish after a kill leaves a mount", kernel: true,
			forgets: func(*refdriver.State) {
				mu.Lock()
				defer mu.Unlock()
				killed = true
			},
			unary: before(func(r *csi.NodeUnpublishVolumeRequest) {
				mu.Lock()
				defer mu.Unlock()
				if dir, _, ok := strings.Cut(r.GetTargetPath(), "/csicheck-"); ok && killed {
					leak := filepath.Join(dir, "leak")
					os.MkdirAll(leak, 0o700)
					refdriver.Bind(leak, leak, false)
					killed = false
				}
			}),
			mayAlso: because("the mounts are beside the socket", "socket.directory"),
		}
	}(),
	{
		breaks: "leaks.refused-calls", does: "the volume is made before its source is searched",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.CreateVolumeRequest); ok && status.Code(err) == codes.NotFound {
				r = proto.CloneOf(r)
				r.VolumeContentSource, r.Name = nil, "left-of-"+r.GetName()
				handler(ctx, r)
			}
			return resp, err
		},
	},
	{
		breaks: "leaks.refused-calls", does: "the target is made before the access mode is checked", kernel: true, alone: true,
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err != nil && r.GetVolumeCapability().GetAccessMode().GetMode() == unknownMode {
				os.Mkdir(r.GetTargetPath(), 0o750)
			}
			return resp, err
		},
	},
	{
		breaks: "leaks.after-cancel", does: "a publish that was cancelled is mounted for good", kernel: true, alone: true,
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			seen := map[string]bool{}
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				r, ok := req.(*csi.NodePublishVolumeRequest)
				if !ok {
					return handler(ctx, req)
				}
				mu.Lock()
				defer mu.Unlock()
				if !seen[r.GetTargetPath()] { // slow, so that the call is cancelled meanwhile
					seen[r.GetTargetPath()] = true
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Second):
					}
				}
				if ctx.Err() != nil {
					if dir, _, below := strings.Cut(r.GetTargetPath(), "/csicheck-"); below {
						leak := filepath.Join(dir, "leak")
						os.MkdirAll(leak, 0o700)
						refdriver.Bind(leak, leak, false)
					}
					return nil, ctx.Err()
				}
				return handler(ctx, req)
			}
		}(),
	},
}
