package csitest

import (
	"context"
	"maps"
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

// recode answers errors of one code with another one.
func recode[T any, M message[T]](from, to codes.Code) grpc.UnaryServerInterceptor {
	return fails(func(_ M, err error) error {
		if status.Code(err) == from {
			return status.Error(to, status.Convert(err).Message())
		}
		return err
	})
}

// secondFails answers a request that was answered with OK before with an error, until
// forget says that it was undone.
func secondFails[T any, M message[T]](key func(M) string, undo func(any) string) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	done := map[string]bool{}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		delete(done, undo(req))
		m, ok := req.(M)
		if ok && done[key(m)] {
			return nil, status.Error(codes.Internal, "once is enough")
		}
		resp, err := handler(ctx, req)
		if ok && err == nil {
			done[key(m)] = true
		}
		return resp, err
	}
}

const repeatsToo = "it repeats the call"

var nodeDefects = []defect{
	{
		breaks: "node.stage.idempotent", does: "the second stage fails",
		mayAlso: because(repeatsToo, "restart.publish-interrupted"),
		unary: secondFails(func(r *csi.NodeStageVolumeRequest) string { return r.GetVolumeId() }, func(req any) string {
			r, _ := req.(*csi.NodeUnstageVolumeRequest)
			return r.GetVolumeId()
		}),
		also: map[string]string{"restart.node-continues": repeatsToo, "node.stage.after-cancel": repeatsToo, "node.stage.conflict": repeatsToo},
	},
	{
		breaks: "node.stage.volume-missing", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.NodeStageVolumeRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "node.unstage.idempotent", does: "the second unstage fails",
		unary: secondFails(func(r *csi.NodeUnstageVolumeRequest) string { return r.GetVolumeId() }, func(req any) string {
			r, _ := req.(*csi.NodeStageVolumeRequest)
			return r.GetVolumeId()
		}),
		also:    map[string]string{"node.stage.after-cancel": repeatsToo},
		mayAlso: because("it unstages before it sends no path", "node.unstage.required-fields"),
		leaves:  "the call that cleans up may be the second one",
	},
	{
		breaks: "node.publish.idempotent", does: "the second publish fails",
		mayAlso: because(repeatsToo, "restart.publish-interrupted"),
		unary: secondFails(func(r *csi.NodePublishVolumeRequest) string {
			if r.GetReadonly() {
				return ""
			}
			return r.GetVolumeId() + r.GetTargetPath()
		}, func(req any) string {
			r, _ := req.(*csi.NodeUnpublishVolumeRequest)
			return r.GetVolumeId() + r.GetTargetPath()
		}),
		also: map[string]string{"restart.node-continues": repeatsToo, "node.publish.table": "the table has it", "node.stage.after-cancel": repeatsToo, "node.publish.parallel": repeatsToo, "node.publish.capability-changed": repeatsToo, "node.publish.pod-info": repeatsToo},
	},
	{
		breaks: "node.publish.volume-missing", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.NodePublishVolumeRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "node.publish.staging-path-missing", does: "INVALID_ARGUMENT without staging_target_path",
		unary: fails(func(r *csi.NodePublishVolumeRequest, err error) error {
			if r.GetStagingTargetPath() == "" {
				return status.Error(codes.InvalidArgument, "staging_target_path is required")
			}
			return err
		}),
	},
	{
		breaks: "node.publish.creates-target", does: "the target is a file",
		mayAlso: because("the file is made after the call was given up, and undone", "node.stage.after-cancel", "restart.publish-interrupted"),
		leaves:  "the file may be made after the call was undone",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err == nil {
				os.Remove(r.GetTargetPath())
				os.WriteFile(r.GetTargetPath(), nil, 0o600)
			}
			return resp, err
		},
	},
	{
		breaks: "node.publish.readonly-changed", does: "readonly is not compared",
		unary: recode[csi.NodePublishVolumeRequest](codes.AlreadyExists, codes.Internal),
		also:  map[string]string{"node.publish.table": "the table has it", "node.publish.capability-changed": "the code is the same"},
	},
	{
		breaks: "node.publish.second-target", does: "a second target is published",
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if m := r.GetVolumeCapability().GetAccessMode(); m != nil && m.Mode != unknownMode {
				m.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			}
		}),
		also: map[string]string{"node.publish.table": "the table has it", "node.publish.capability-changed": "every mode is one"},
	},
	{
		breaks: "node.publish.many-targets", does: "no second target for many writers",
		mayAlso: because("it publishes to many", "node.stats.parallel"),
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if m := r.GetVolumeCapability().GetAccessMode(); m != nil && m.Mode != unknownMode {
				m.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
			}
		}),
		also: map[string]string{"node.publish.table": "the table has it", "node.publish.parallel": "it publishes to many", "node.publish.capability-changed": "every mode is one"},
	},
	{
		breaks: "node.unpublish.idempotent", does: "NOT_FOUND for a path that was never published",
		mayAlso: because("the call was given up before it came", "node.stage.after-cancel", "restart.publish-interrupted"),
		unary: func() grpc.UnaryServerInterceptor {
			var published sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					published.Store(r.GetTargetPath(), true)
				case *csi.NodeUnpublishVolumeRequest:
					if _, was := published.Load(r.GetTargetPath()); !was && r.GetTargetPath() != "" && r.GetVolumeId() != "" {
						return nil, errMissing
					}
				}
				return handler(ctx, req)
			}
		}(),
	},
	{
		breaks: "node.unpublish.removes-target", does: "the target stays",
		mayAlso: because("it publishes at a target again", "node.stats.parallel"),
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodeUnpublishVolumeRequest); ok && err == nil && os.Mkdir(r.GetTargetPath(), 0o700) == nil {
				target := r.GetTargetPath()
				defer os.Chmod(target, 0o750)
			}
			return resp, err
		},
		also: because("it checks the target", "node.stage.after-cancel", "restart.publish-interrupted", "node.unpublish.removes-block-target"),
	},
	{
		breaks: "node.stats.usage", does: "more available than there is",
		unary: after(func(r *csi.NodeGetVolumeStatsResponse) { r.Usage[0].Available = 2 * r.Usage[0].Total }),
	},
	{
		breaks: "node.stats.missing", does: "INTERNAL for a path where nothing is",
		unary: fails(func(r *csi.NodeGetVolumeStatsRequest, err error) error {
			if status.Code(err) == codes.NotFound && !lives(r.GetVolumePath()) {
				return status.Error(codes.Internal, "nothing is there")
			}
			return err
		}),
	},
	{
		breaks: "node.expand.volume-missing", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.NodeExpandVolumeRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "node.expand.beyond-volume", does: "required_bytes is ignored",
		unary: before(func(r *csi.NodeExpandVolumeRequest) {
			if r.GetCapacityRange().GetRequiredBytes() > 64*mib {
				r.CapacityRange.RequiredBytes = 64 * mib
			}
		}),
	},
	{
		breaks: "node.publish.long-paths", does: "a target path of 128 bytes does not fit",
		unary: instead(func(r *csi.NodePublishVolumeRequest) (proto.Message, error) {
			if len(r.GetTargetPath()) == 128 {
				return nil, status.Error(codes.InvalidArgument, "target_path is too long")
			}
			return nil, nil
		}),
	},
	{
		breaks: "node.publish.long-paths", does: "the statistics of a path of 128 bytes are not found", alone: true,
		unary: instead(func(r *csi.NodeGetVolumeStatsRequest) (proto.Message, error) {
			if len(r.GetVolumePath()) == 128 {
				return nil, errMissing
			}
			return nil, nil
		}),
	},
	{
		breaks: "node.publish.capability-changed", does: "the access mode is not compared",
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if m := r.GetVolumeCapability().GetAccessMode(); m.GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY && lives(r.GetTargetPath()) {
				m.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			}
		}),
		alone: true, // what is for one reader is published again by others
	},
	{
		breaks: "node.unpublish.removes-block-target", does: "the device node stays",
		unary: func() grpc.UnaryServerInterceptor {
			var blocks sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if r.GetVolumeCapability().GetBlock() != nil && err == nil {
						blocks.Store(r.GetTargetPath(), true)
					}
				case *csi.NodeUnpublishVolumeRequest:
					if _, is := blocks.LoadAndDelete(r.GetTargetPath()); is && err == nil {
						os.WriteFile(r.GetTargetPath(), nil, 0o600)
					}
				}
				return resp, err
			}
		}(),
		alone: true, leaves: "the file",
	},
}

// afterPublish does something at the target once it is published.
func afterPublish(do func(*csi.NodePublishVolumeRequest)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err == nil {
			do(r)
		}
		return resp, err
	}
}

var kernelDefects = []defect{
	{
		breaks: "node.publish.mounts", does: "a plain directory", kernel: true,
		mayAlso: because("a directory of the node can be written", "controller.publish.readonly-enforced"),
		leaves:  "what could be written into the target stays there",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(*csi.NodeUnpublishVolumeRequest); ok && r.GetVolumeId() != "" { // the reference wants something to unmount
				os.Remove(filepath.Join(r.GetTargetPath(), "csicheck-data"))
				os.Remove(filepath.Join(r.GetTargetPath(), "csicheck-written"))
				os.Remove(filepath.Join(r.GetTargetPath(), "csicheck-mine"))
				refdriver.Bind(r.GetTargetPath(), r.GetTargetPath(), false)
			}
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err == nil {
				refdriver.Unbind(r.GetTargetPath())
			}
			return resp, err
		},
		also: because("what is written and read is in a directory of the node", "node.publish.readonly-enforced",
			"node.publish.keeps-data", "node.publish.same-data", "node.publish.mount-group",
			"source.restore.data", "source.restore.separate", "source.restore.data-source-deleted", "source.restore.data-larger",
			"source.clone.data", "source.clone.separate", "source.clone.data-source-deleted", "source.clone.data-larger",
			"snapshot.point-in-time.order", "group.point-in-time.order", "clone.point-in-time.order"),
	},
	{
		breaks: "node.publish.repeat-mounts-once", does: "every call mounts", kernel: true,
		mayAlso: because("the call that was killed has mounted; the mount on top is not read-only", "restart.publish-interrupted", "controller.publish.readonly-enforced"),
		unary: func() grpc.UnaryServerInterceptor {
			var mu sync.Mutex
			times := map[string]int{}
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				mu.Lock()
				defer mu.Unlock()
				if r, ok := req.(*csi.NodeUnpublishVolumeRequest); ok {
					for ; times[r.GetTargetPath()] > 1; times[r.GetTargetPath()]-- {
						refdriver.Unbind(r.GetTargetPath())
					}
					delete(times, r.GetTargetPath())
				}
				resp, err := handler(ctx, req)
				if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err == nil {
					if times[r.GetTargetPath()]++; times[r.GetTargetPath()] > 1 {
						refdriver.Bind(r.GetStagingTargetPath(), r.GetTargetPath(), false)
					}
				}
				return resp, err
			}
		}(),
		also: because("the mount on top is a new one", "node.publish.kubelet-restarts", "node.publish.pod-info"),
	},
	{
		breaks: "node.publish.same-data", does: "an empty directory at the second target", kernel: true,
		unary: func() grpc.UnaryServerInterceptor {
			var first sync.Map
			return afterPublish(func(r *csi.NodePublishVolumeRequest) {
				if target, other := first.LoadOrStore(r.GetVolumeId(), r.GetTargetPath()); other && target != r.GetTargetPath() {
					refdriver.Unbind(r.GetTargetPath())
					refdriver.Bind(r.GetTargetPath(), r.GetTargetPath(), false)
				}
			})
		}(),
		also: map[string]string{"node.publish.keeps-data": "its second target is another one"},
		mayAlso: because("their second target is another one", "controller.publish.readonly-enforced",
			"node.publish.mount-group-changes", "node.publish.mount-groups-together"), // with other users
		leaves: "what could be written into the target stays there",
	},
	{
		breaks: "node.publish.readonly-enforced", does: "readonly is only recorded", kernel: true,
		unary: before(func(r *csi.NodePublishVolumeRequest) {
			if r.GetTargetPath() != "" && r.GetReadonly() {
				if _, err := os.Stat(r.GetTargetPath()); err != nil { // not yet published
					r.Readonly = false
				}
			}
		}),
	},
	{
		breaks: "node.publish.keeps-data", does: "the volume is emptied when it is staged again", kernel: true,
		unary: func() grpc.UnaryServerInterceptor {
			var staged sync.Map
			return afterStage(func(r *csi.NodeStageVolumeRequest, err error) error {
				if err == nil {
					if _, again := staged.LoadOrStore(r.GetVolumeId(), true); again {
						os.Remove(filepath.Join(r.GetStagingTargetPath(), "csicheck-data"))
					}
				}
				return err
			})
		}(),
		also: because("it stages again", "source.restore.separate", "source.clone.separate"),
	},
	{
		breaks: "node.unstage.unmounts", does: "the staging path stays mounted", kernel: true, alone: true, leaves: "the mount",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodeUnstageVolumeRequest); ok && err == nil && r.GetVolumeId() != "" {
				refdriver.Bind(r.GetStagingTargetPath(), r.GetStagingTargetPath(), false)
			}
			return resp, err
		},
	},
	{
		breaks: "node.unstage.while-block-published", does: "NodeUnstageVolume detaches the device", plain: true,
		unary: func() grpc.UnaryServerInterceptor {
			var target sync.Map
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.NodePublishVolumeRequest:
					if err == nil {
						target.Store(r.GetVolumeId(), r.GetTargetPath())
					}
				case *csi.NodeUnstageVolumeRequest:
					if path, is := target.LoadAndDelete(r.GetVolumeId()); is && err != nil {
						os.Remove(path.(string))
					}
				}
				return resp, err
			}
		}(),
	},
	{
		breaks: "controller.publish.readonly-enforced", does: "only NodePublishVolume's readonly matters", kernel: true, alone: true,
		unary: before(func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = false }),
	},
}

var restartDefects = []defect{
	{
		breaks: "restart.volumes-kept", does: "it forgets everything", forgets: (*refdriver.State).Forget,
		also: map[string]string{
			"restart.attachments-kept":    "it forgets everything",
			"restart.node-continues":      "it forgets everything",
			"restart.snapshots-kept":      "it forgets everything",
			"restart.publish-interrupted": "it forgets everything",
			"response.constant":           "another ID for the name",
		},
	},
	{
		breaks: "restart.attachments-kept", does: "it forgets where volumes are", forgets: (*refdriver.State).ForgetAttachments,
		also: because("the reference does not stage what is not attached", "restart.node-continues", "restart.publish-interrupted"),
	},
	{
		breaks: "restart.node-continues", does: "it forgets what it has staged and published", forgets: (*refdriver.State).ForgetNode,
		also: because("it publishes what was staged before", "restart.publish-interrupted"),
	},
	func() defect {
		var mu sync.Mutex
		seen, dropped, half := map[string]bool{}, map[string]bool{}, map[string]bool{} // volumes, and calls by their targets
		return defect{
			breaks: "restart.publish-interrupted", does: "what was under way when it was killed cannot be published", only: true,
			forgets: func(*refdriver.State) {
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(half, dropped)
			},
			unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				r, ok := req.(*csi.NodePublishVolumeRequest)
				if !ok || r.GetTargetPath() == "" {
					return handler(ctx, req)
				}
				mu.Lock()
				again := seen[r.GetVolumeId()]
				seen[r.GetVolumeId()] = true
				mu.Unlock()
				if !again { // slow, so that it is killed meanwhile
					select {
					case <-ctx.Done():
					case <-time.After(250 * time.Millisecond):
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if half[r.GetTargetPath()] {
					return nil, status.Error(codes.Internal, "it is half published")
				}
				dropped[r.GetTargetPath()] = ctx.Err() != nil
				return handler(ctx, req)
			},
		}
	}(),
	{breaks: "restart.snapshots-kept", does: "it forgets the snapshots", forgets: (*refdriver.State).ForgetSnapshots},
}
