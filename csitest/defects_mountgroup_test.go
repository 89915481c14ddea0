package csitest

import (
	"context"
	"os"
	"strconv"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

var mountGroupDefects = []defect{
	{
		// As a driver for ext4 or xfs that claims VOLUME_MOUNT_GROUP.
		breaks: "node.publish.mount-group-changes", does: "only the root of the volume gets the group", kernel: true, root: true,
		also: because("it is the same with two groups together", "node.publish.mount-groups-together"),
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok {
				if m := r.GetVolumeCapability().GetMount(); m.GetVolumeMountGroup() != "" {
					gid, err := strconv.Atoi(m.GetVolumeMountGroup())
					if err != nil {
						return nil, err
					}
					m.VolumeMountGroup = ""
					if err := os.Chown(r.GetStagingTargetPath(), -1, gid); err != nil {
						return nil, err
					}
					if err := os.Chmod(r.GetStagingTargetPath(), 0o775|os.ModeSetgid); err != nil {
						return nil, err
					}
				}
			}
			return handler(ctx, req)
		},
	},
	{
		breaks: "node.publish.mount-groups-together", does: "the group of the first publish remains until the volume is unstaged", kernel: true, root: true,
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			first := map[string]string{} // by volume: the group
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				mu.Lock()
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if m := r.GetVolumeCapability().GetMount(); m.GetVolumeMountGroup() != "" {
						if first[r.GetVolumeId()] == "" {
							first[r.GetVolumeId()] = m.GetVolumeMountGroup()
						}
						m.VolumeMountGroup = first[r.GetVolumeId()]
					}
				case *csi.NodeUnstageVolumeRequest:
					delete(first, r.GetVolumeId())
				}
				mu.Unlock()
				return handler(ctx, req)
			}
		}(),
	},
}
