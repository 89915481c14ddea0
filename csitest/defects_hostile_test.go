package csitest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var hostileDefects = []defect{
	{
		breaks: "hostile.ids", does: "INTERNAL for an ID with a slash",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(interface{ GetVolumeId() string }); ok && strings.Contains(r.GetVolumeId(), "/") {
				return nil, status.Error(codes.Internal, "is a directory")
			}
			return handler(ctx, req)
		},
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
		breaks: "hostile.unknown-fields", does: "fields that are not known are refused",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if len(req.(proto.Message).ProtoReflect().GetUnknown()) > 0 {
				return nil, status.Error(codes.InvalidArgument, "what is that?")
			}
			return handler(ctx, req)
		},
	},
	{
		breaks: "sidecar.startup", does: "ControllerGetCapabilities takes its time",
		unary: after(func() func(*csi.ControllerGetCapabilitiesResponse) {
			return func(*csi.ControllerGetCapabilitiesResponse) { time.Sleep(1100 * time.Millisecond) } // what the rule is about
		}()),
	},
	{
		breaks: "socket.alone", does: "a lock file beside the socket",
		unary: before(func(r *csi.NodeStageVolumeRequest) {
			if dir, _, ok := strings.Cut(r.GetStagingTargetPath(), "/csicheck-"); ok {
				os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)
			}
		}),
	},
	{
		breaks: "secrets.not-in-arguments", does: "a secret is an argument of mount", kernel: true,
		unary: before(func(r *csi.NodeStageVolumeRequest) {
			if s := r.GetSecrets()["csicheck-planted"]; s != "" {
				exec.Command("sh", "-c", "sleep 0.3", "mount", "password="+s).Run()
			}
		}),
	},
	{
		breaks: "secrets.not-in-files", does: "the secret is kept beside the staging path", kernel: true,
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			switch r := req.(type) {
			case *csi.NodeStageVolumeRequest:
				if s := r.GetSecrets()["csicheck-planted"]; s != "" {
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
		also: map[string]string{"socket.alone": "the mounts are beside the socket"},
	},
}
