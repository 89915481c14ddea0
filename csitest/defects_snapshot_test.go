package csitest

import (
	"context"
	"path"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// snapshotChanged changes the snapshots of every answer.
func snapshotChanged(change func(*csi.Snapshot)) grpc.UnaryServerInterceptor {
	return chain(
		after(func(r *csi.CreateSnapshotResponse) { change(r.Snapshot) }),
		after(func(r *csi.GetSnapshotResponse) { change(r.Snapshot) }),
		after(func(r *csi.ListSnapshotsResponse) {
			for _, e := range r.Entries {
				change(e.Snapshot)
			}
		}))
}

// knownSnapshots remembers the snapshots that were created.
type knownSnapshots struct {
	mu   sync.Mutex
	made map[string]*csi.CreateSnapshotRequest // by ID
	live map[string]string                     // ID by name
	gone map[string]*csi.Snapshot              // by ID
	all  map[string]*csi.Snapshot
}

// aroundSnapshots passes every request to change, and every answer to changeBack.
func aroundSnapshots(change func(k *knownSnapshots, req any) error, changeBack func(k *knownSnapshots, req, resp any)) grpc.UnaryServerInterceptor {
	k := &knownSnapshots{made: map[string]*csi.CreateSnapshotRequest{}, live: map[string]string{}, gone: map[string]*csi.Snapshot{}, all: map[string]*csi.Snapshot{}}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if change != nil {
			if err := change(k, req); err != nil {
				return nil, err
			}
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return nil, err
		}
		resp = proto.Clone(resp.(proto.Message))
		switch r := req.(type) {
		case *csi.CreateSnapshotRequest:
			s := resp.(*csi.CreateSnapshotResponse).GetSnapshot()
			k.made[s.GetSnapshotId()], k.live[r.GetName()], k.all[s.GetSnapshotId()] = r, s.GetSnapshotId(), s
		case *csi.DeleteSnapshotRequest:
			if s := k.all[r.GetSnapshotId()]; s != nil {
				k.gone[r.GetSnapshotId()] = s
				if name := k.made[r.GetSnapshotId()].GetName(); k.live[name] == r.GetSnapshotId() {
					delete(k.live, name)
				}
			}
		}
		if changeBack != nil {
			changeBack(k, req, resp)
		}
		return resp, nil
	}
}

var snapshotLifecycleDefects = []defect{
	{
		breaks: "controller.snapshot.stays-ready", does: "the third time it is not ready",
		unary: after(func() func(*csi.CreateSnapshotResponse) {
			var mu sync.Mutex
			n := map[string]int{}
			return func(r *csi.CreateSnapshotResponse) {
				mu.Lock()
				defer mu.Unlock()
				n[r.GetSnapshot().GetSnapshotId()]++
				r.Snapshot.ReadyToUse = n[r.GetSnapshot().GetSnapshotId()] != 3
			}
		}()),
	},
	{
		breaks: "controller.snapshot.creation-time", does: "the time of another day",
		unary: snapshotChanged(func(s *csi.Snapshot) { s.CreationTime.Seconds -= 86400 }),
	},
	{
		breaks: "controller.snapshot.size-enough", does: "half the size",
		unary: snapshotChanged(func(s *csi.Snapshot) { s.SizeBytes /= 2 }),
	},
	{
		breaks: "controller.snapshot.list-agrees", does: "another size in the list",
		unary: after(func(r *csi.ListSnapshotsResponse) {
			for _, e := range r.Entries {
				e.Snapshot.SizeBytes++
			}
		}),
	},
	{
		breaks: "controller.snapshot.list-deleted", does: "deleted snapshots are listed by their volume",
		unary: aroundSnapshots(nil, func(k *knownSnapshots, req, resp any) {
			r, ok := req.(*csi.ListSnapshotsRequest)
			for _, s := range k.gone {
				if ok && r.GetSourceVolumeId() == s.GetSourceVolumeId() && r.GetMaxEntries() == 0 {
					list := resp.(*csi.ListSnapshotsResponse)
					list.Entries = append(list.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s})
				}
			}
		}),
	},
	{
		breaks: "controller.snapshot.list-both-filters", does: "only the ID is used",
		unary: before(func(r *csi.ListSnapshotsRequest) {
			if r.GetSnapshotId() != "" {
				r.SourceVolumeId = ""
			}
		}),
	},
	{
		breaks: "controller.snapshot.list-pages", does: "max_entries is ignored with a filter",
		unary: before(func(r *csi.ListSnapshotsRequest) {
			if r.GetSourceVolumeId() != "" {
				r.MaxEntries = min(r.MaxEntries, 0)
			}
		}),
	},
	{
		breaks: "controller.snapshot.list-negative-max", does: "a negative max_entries is no limit",
		unary: before(func(r *csi.ListSnapshotsRequest) { r.MaxEntries = max(r.MaxEntries, 0) }),
	},
	{
		breaks: "controller.snapshot.get-agrees", does: "another size",
		unary: after(func(r *csi.GetSnapshotResponse) { r.Snapshot.SizeBytes++ }),
	},
	{
		breaks: "controller.snapshot.get-deleted", does: "INTERNAL for a snapshot that was deleted",
		unary: fails(func(r *csi.GetSnapshotRequest, err error) error {
			if !strings.HasPrefix(r.GetSnapshotId(), "csicheck-") && status.Code(err) == codes.NotFound {
				return status.Error(codes.Internal, "it was deleted")
			}
			return err
		}),
		also: map[string]string{"group.delete.members": "it asks for members that were deleted"},
	},
	{
		breaks: "controller.snapshot.name-reusable", does: "the name of a deleted snapshot is taken for other volumes",
		unary: aroundSnapshots(func(k *knownSnapshots, req any) error {
			r, ok := req.(*csi.CreateSnapshotRequest)
			for id := range k.gone {
				if was := k.made[id]; ok && was.GetName() == r.GetName() && was.GetSourceVolumeId() != r.GetSourceVolumeId() {
					return status.Error(codes.AlreadyExists, "it was once")
				}
			}
			return nil
		}, nil),
	},
	{
		breaks: "controller.snapshot.several", does: "a snapshot is not found when another of the volume was deleted",
		unary: aroundSnapshots(func(k *knownSnapshots, req any) error {
			if r, ok := req.(*csi.CreateVolumeRequest); ok && r.GetVolumeContentSource().GetSnapshot() != nil {
				for _, s := range k.gone {
					if s.GetSourceVolumeId() == k.all[r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()].GetSourceVolumeId() {
						return errMissing
					}
				}
			}
			return nil
		}, nil),
		also: map[string]string{
			"controller.snapshot.late-delete": "it deletes one and restores another",
			"source.restore.source-deleted":   "it repeats CreateVolume when the snapshot is deleted",
		},
	},
	{
		breaks: "controller.snapshot.delete-again", does: "an ID that follows from the name is deleted once", leaves: "it does not delete", alone: true, namedIDs: true,
		unary: func() grpc.UnaryServerInterceptor {
			var deleted sync.Map // IDs
			return instead(func(r *csi.DeleteSnapshotRequest) (proto.Message, error) {
				if _, again := deleted.LoadOrStore(r.GetSnapshotId(), true); again {
					return &csi.DeleteSnapshotResponse{}, nil
				}
				return nil, nil
			})
		}(),
	},
	{
		breaks: "controller.snapshot.late-delete", does: "DeleteSnapshot goes by the name",
		unary: aroundSnapshots(func(k *knownSnapshots, req any) error {
			if r, ok := req.(*csi.DeleteSnapshotRequest); ok && k.gone[r.GetSnapshotId()] != nil {
				if now := k.live[k.made[r.GetSnapshotId()].GetName()]; now != "" {
					r.SnapshotId = now
				}
			}
			return nil
		}, nil),
	},
	{
		breaks: "controller.snapshot.name-too-long", does: "a long name is truncated",
		unary: before(func(r *csi.CreateSnapshotRequest) { r.Name = r.Name[:min(len(r.Name), 128)] }),
	},
	{
		breaks: "controller.snapshot.name-control-characters", does: "escape is removed",
		unary: before(func(r *csi.CreateSnapshotRequest) { r.Name = strings.ReplaceAll(r.Name, "\x1b", "") }),
	},
	{
		breaks: "controller.snapshot.list-pages", does: "no next_token after the first page", alone: true,
		unary: after(func(r *csi.ListSnapshotsResponse) { r.NextToken = "" }),
	},
}

// streamed is around the streams of one RPC: asked may change the request, sent
// decides whether a message is sent, and ended changes the error.
func streamed(rpc string, asked func(proto.Message), sent func(n int, req, m proto.Message) bool, ended func(req proto.Message, err error) error) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if path.Base(info.FullMethod) != rpc {
			return handler(srv, ss)
		}
		w := &streamWatch{ServerStream: ss, asked: asked, sent: sent}
		err := handler(srv, w)
		if ended != nil {
			err = ended(w.req, err)
		}
		return err
	}
}

type streamWatch struct {
	grpc.ServerStream
	asked func(proto.Message)
	sent  func(n int, req, m proto.Message) bool
	req   proto.Message
	n     int
}

func (s *streamWatch) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if s.req = m.(proto.Message); err == nil && s.asked != nil {
		s.asked(s.req)
	}
	return err
}

func (s *streamWatch) SendMsg(m any) error {
	s.n++
	if s.sent != nil && !s.sent(s.n, s.req, m.(proto.Message)) {
		return nil
	}
	return s.ServerStream.SendMsg(m)
}

// recoded ends streams that end with one code with another.
func recoded(rpc string, from, to codes.Code) grpc.StreamServerInterceptor {
	return streamed(rpc, nil, nil, func(_ proto.Message, err error) error {
		if status.Code(err) == from {
			return status.Error(to, "in another way") // nil for OK
		}
		return err
	})
}

var streamDefects = []defect{
	{
		breaks: "snapshot.metadata.resumes", does: "a block is left out behind starting_offset",
		stream: streamed("GetMetadataAllocated", nil, func(n int, req, _ proto.Message) bool {
			return n > 1 || req.(*csi.GetMetadataAllocatedRequest).GetStartingOffset() == 0
		}, nil),
	},
	{
		breaks: "snapshot.metadata.small-messages", does: "max_results ends the stream",
		stream: streamed("GetMetadataAllocated", nil, func(n int, req, _ proto.Message) bool {
			return req.(*csi.GetMetadataAllocatedRequest).GetMaxResults() != 1 || n == 1
		}, nil),
	},
	{
		breaks: "snapshot.metadata.within-volume", does: "no volume_capacity_bytes",
		stream: streamed("GetMetadataAllocated", nil, func(_ int, _, m proto.Message) bool {
			m.(*csi.GetMetadataAllocatedResponse).VolumeCapacityBytes = 0
			return true
		}, nil),
		also: map[string]string{
			"snapshot.metadata.delta-within-allocated": "that of the delta is another",
			"response.metadata-start":                  "every starting_offset is behind it",
		},
	},
	{
		breaks: "snapshot.metadata.within-volume", does: "the last block is too long",
		stream: streamed("GetMetadataAllocated", nil, func(_ int, _, m proto.Message) bool {
			r := m.(*csi.GetMetadataAllocatedResponse)
			r.BlockMetadataType = csi.BlockMetadataType_VARIABLE_LENGTH
			if b := r.GetBlockMetadata()[0]; end(b) == r.GetVolumeCapacityBytes() {
				b.SizeBytes++
			}
			return true
		}, nil),
		also: map[string]string{"snapshot.metadata.resumes": "it resumes behind the last block"},
	},
	{
		breaks: "snapshot.metadata.snapshot-missing", does: "an empty stream for a snapshot that is not there",
		stream: recoded("GetMetadataAllocated", codes.NotFound, codes.OK),
	},
	{
		breaks: "snapshot.metadata.no-snapshot", does: "INTERNAL without a snapshot",
		stream: recoded("GetMetadataAllocated", codes.InvalidArgument, codes.Internal),
	},
	{
		breaks: "snapshot.metadata.negative-offset", does: "a negative offset is the beginning",
		stream: streamed("GetMetadataAllocated", func(m proto.Message) {
			r := m.(*csi.GetMetadataAllocatedRequest)
			r.StartingOffset = max(r.StartingOffset, 0)
		}, nil, nil),
	},
	{
		breaks: "snapshot.metadata.delta", does: "a stream from beyond the volume is empty",
		stream: recoded("GetMetadataDelta", codes.OutOfRange, codes.OK),
		also:   map[string]string{"snapshot.metadata.delta-negative-offset": "it is as far from the volume"},
	},
	{
		breaks: "snapshot.metadata.delta-missing", does: "INTERNAL for a snapshot that is not there",
		stream: recoded("GetMetadataDelta", codes.NotFound, codes.Internal),
	},
	{
		breaks: "snapshot.metadata.delta-required", does: "NOT_FOUND without a snapshot",
		stream: recoded("GetMetadataDelta", codes.InvalidArgument, codes.NotFound),
	},
	{
		breaks: "snapshot.metadata.delta-other-volume", does: "nothing has changed between snapshots of two volumes",
		stream: streamed("GetMetadataDelta", nil, nil, func(req proto.Message, err error) error {
			if r := req.(*csi.GetMetadataDeltaRequest); r.GetBaseSnapshotId() != "" && r.GetTargetSnapshotId() != "" && status.Code(err) == codes.InvalidArgument {
				return nil
			}
			return err
		}),
	},
	{
		breaks: "snapshot.metadata.delta-within-allocated", does: "another size in the delta",
		stream: streamed("GetMetadataDelta", nil, func(_ int, _, m proto.Message) bool {
			m.(*csi.GetMetadataDeltaResponse).VolumeCapacityBytes++
			return true
		}, nil),
	},
	{
		breaks: "snapshot.metadata.delta-negative-offset", does: "a negative offset is the beginning",
		stream: streamed("GetMetadataDelta", func(m proto.Message) {
			r := m.(*csi.GetMetadataDeltaRequest)
			r.StartingOffset = max(r.StartingOffset, 0)
		}, nil, nil),
	},
	{
		breaks: "snapshot.metadata.delta-small-messages", does: "max_results ends the stream",
		stream: streamed("GetMetadataDelta", nil, func(n int, req, _ proto.Message) bool {
			return req.(*csi.GetMetadataDeltaRequest).GetMaxResults() != 1 || n == 1
		}, nil),
	},
	{
		breaks: "snapshot.metadata.delta", does: "a stream that is resumed begins with the next block but one", alone: true,
		stream: streamed("GetMetadataDelta", nil, func(n int, req, _ proto.Message) bool {
			return n > 1 || req.(*csi.GetMetadataDeltaRequest).GetStartingOffset() == 0
		}, nil),
	},
}

var contentDefects = []defect{
	{
		breaks: "snapshot.metadata.covers-writes", does: "a part of the volume is left out", plain: true,
		stream: streamed("GetMetadataAllocated", nil, func(_ int, _, m proto.Message) bool {
			m.(*csi.GetMetadataAllocatedResponse).BlockMetadata = withoutEnd(m.(*csi.GetMetadataAllocatedResponse).GetBlockMetadata())
			return true
		}, nil),
	},
	{
		breaks: "snapshot.metadata.delta-covers-changes", does: "a part of the volume is left out", plain: true,
		stream: streamed("GetMetadataDelta", nil, func(_ int, _, m proto.Message) bool {
			m.(*csi.GetMetadataDeltaResponse).BlockMetadata = withoutEnd(m.(*csi.GetMetadataDeltaResponse).GetBlockMetadata())
			return true
		}, nil),
	},
}

// withoutEnd leaves the last of 64 MiB out.
func withoutEnd(blocks []*csi.BlockMetadata) []*csi.BlockMetadata {
	for _, b := range blocks {
		b.SizeBytes = min(b.SizeBytes, 63*mib)
	}
	return blocks
}

// restoreRefused refuses volumes from the members of groups, if that is so.
func restoreRefused(is func(gone map[string]bool, source string) bool) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	source, gone := map[string]string{}, map[string]bool{}
	return chain(
		exchange(func(_ *csi.CreateVolumeGroupSnapshotRequest, resp *csi.CreateVolumeGroupSnapshotResponse, err error) (*csi.CreateVolumeGroupSnapshotResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range resp.GetGroupSnapshot().GetSnapshots() {
				source[s.GetSnapshotId()] = s.GetSourceVolumeId()
			}
			return resp, err
		}),
		before(func(r *csi.DeleteVolumeRequest) {
			mu.Lock()
			defer mu.Unlock()
			gone[r.GetVolumeId()] = true
		}),
		instead(func(r *csi.CreateVolumeRequest) (proto.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			if from := source[r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()]; from != "" && is(gone, from) {
				return nil, errMissing
			}
			return nil, nil
		}))
}

var moreGroupDefects = []defect{
	{
		breaks: "group.create.name-taken", does: "INTERNAL for a taken name",
		unary: recode[csi.CreateVolumeGroupSnapshotRequest](codes.AlreadyExists, codes.Internal),
	},
	{
		breaks: "group.create.source-missing-cleanup", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.CreateVolumeGroupSnapshotRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "group.create.source-missing", does: "a group without the member that is not there",
		unary: exchange(func(r *csi.CreateVolumeGroupSnapshotRequest, resp *csi.CreateVolumeGroupSnapshotResponse, err error) (*csi.CreateVolumeGroupSnapshotResponse, error) {
			if status.Code(err) != codes.NotFound {
				return resp, err
			}
			return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{
				GroupSnapshotId: "part-of-" + r.GetName(), CreationTime: timestamppb.Now(), ReadyToUse: true,
				Snapshots: []*csi.Snapshot{{
					SnapshotId: "member-of-" + r.GetName(), SourceVolumeId: r.GetSourceVolumeIds()[0], GroupSnapshotId: "part-of-" + r.GetName(),
					CreationTime: timestamppb.Now(), ReadyToUse: true,
				}},
			}}, nil
		}),
	},
	{
		breaks: "group.create.members-listed", does: "the list does not return the group",
		unary: after(func(r *csi.ListSnapshotsResponse) {
			for _, e := range r.Entries {
				e.Snapshot.GroupSnapshotId = ""
			}
		}),
	},
	{
		breaks: "group.create.restores", does: "no volume from a member",
		unary:   restoreRefused(func(map[string]bool, string) bool { return true }),
		also:    map[string]string{"group.survives-volumes": "it restores as well"},
		mayAlso: because("it restores as well", "group.delete.in-use"),
	},
	{
		breaks: "group.survives-volumes", does: "no volume from a member whose volume is deleted",
		unary: restoreRefused(func(gone map[string]bool, source string) bool { return gone[source] }),
	},
	{
		breaks: "group.create.name-too-long", does: "a long name is truncated",
		unary: before(func(r *csi.CreateVolumeGroupSnapshotRequest) { r.Name = r.Name[:min(len(r.Name), 128)] }),
	},
	{
		breaks: "group.create.name-reusable", does: "a name is taken forever",
		unary: func() grpc.UnaryServerInterceptor {
			var first sync.Map
			return instead(func(r *csi.CreateVolumeGroupSnapshotRequest) (proto.Message, error) {
				if was, taken := first.LoadOrStore(r.GetName(), len(r.GetSourceVolumeIds())); taken && was.(int) != len(r.GetSourceVolumeIds()) && r.GetName() != "" && len(r.GetSourceVolumeIds()) > 0 {
					return nil, status.Error(codes.AlreadyExists, "it was once")
				}
				return nil, nil
			})
		}(),
	},
	{
		breaks: "group.delete.members", does: "INTERNAL for a group that was deleted",
		unary: fails(func(r *csi.GetVolumeGroupSnapshotRequest, err error) error {
			if !strings.HasPrefix(r.GetGroupSnapshotId(), "csicheck-") && status.Code(err) == codes.NotFound {
				return status.Error(codes.Internal, "it was deleted")
			}
			return err
		}),
	},
	{
		breaks: "group.delete.other-members", mayAlso: because("it leaves out members, too", "group.delete.no-snapshot-ids"), does: "FAILED_PRECONDITION for other members",
		unary: recode[csi.DeleteVolumeGroupSnapshotRequest](codes.InvalidArgument, codes.FailedPrecondition),
		also:  map[string]string{"group.delete.required-fields": "the code is the same"},
	},
	{
		breaks: "group.get.other-members", mayAlso: because("it leaves out members, too", "group.get.no-snapshot-ids"), does: "FAILED_PRECONDITION for other members",
		unary: recode[csi.GetVolumeGroupSnapshotRequest](codes.InvalidArgument, codes.FailedPrecondition),
		also:  map[string]string{"group.get.required-fields": "the code is the same"},
	},
	{
		breaks: "group.member.delete", does: "OK, and the member stays",
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.DeleteSnapshotRequest); ok && r.GetSnapshotId() != "" && status.Code(err) == codes.InvalidArgument {
				return &csi.DeleteSnapshotResponse{}, nil
			}
			return resp, err
		},
	},
	{
		breaks: "group.create.ready", does: "the group is ready later than its members", alone: true, // the others wait for it
		unary: after(func(r *csi.CreateVolumeGroupSnapshotResponse) { r.GroupSnapshot.ReadyToUse = false }),
	},
	{
		breaks: "group.delete.in-use", does: "what was restored from a member is deleted with it",
		unary: func() grpc.UnaryServerInterceptor {
			var made, gone sync.Map // volumes by snapshot, and those that are deleted
			return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if r, ok := req.(*csi.ControllerPublishVolumeRequest); ok {
					if _, is := gone.Load(r.GetVolumeId()); is {
						return nil, errMissing
					}
				}
				resp, err := handler(ctx, req)
				switch r := req.(type) {
				case *csi.CreateVolumeRequest:
					if s := r.GetVolumeContentSource().GetSnapshot(); s != nil && err == nil {
						made.Store(s.GetSnapshotId(), resp.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId())
					}
				case *csi.DeleteVolumeGroupSnapshotRequest:
					for _, id := range r.GetSnapshotIds() {
						if v, is := made.Load(id); is && err == nil {
							gone.Store(v, true)
						}
					}
				}
				return resp, err
			}
		}(),
	},
}

// lastVolume remembers the ID of the newest volume, and of the one deleted last.
type lastVolume struct {
	mu         sync.Mutex
	made, gone string
}

func (l *lastVolume) watch() grpc.UnaryServerInterceptor {
	return chain(
		after(func(r *csi.CreateVolumeResponse) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.made = r.GetVolume().GetVolumeId()
		}),
		before(func(r *csi.DeleteVolumeRequest) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.gone = r.GetVolumeId(); l.made == l.gone {
				l.made = ""
			}
		}))
}

func sick(id string) *csi.VolumeHealth {
	return &csi.VolumeHealth{VolumeId: id, HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Slow"}}}
}

// listed answers ControllerListVolumeHealth with these, on one page.
func listed(ids func(*lastVolume) string) grpc.UnaryServerInterceptor {
	l := new(lastVolume)
	return chain(l.watch(), instead(func(r *csi.ControllerListVolumeHealthRequest) (proto.Message, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if id := ids(l); id != "" && r.GetStartingToken() == "" && r.GetMaxEntries() == 0 {
			return &csi.ControllerListVolumeHealthResponse{Entries: []*csi.VolumeHealth{sick(id)}}, nil
		}
		return nil, nil
	}))
}

var healthDefects = []defect{
	{
		breaks: "controller.health.get", does: "the health of another volume",
		unary: after(func(r *csi.ControllerGetVolumeHealthResponse) { r.VolumeHealth.VolumeId = "other" }),
	},
	{
		breaks: "controller.health.healthy", does: "every volume is degraded",
		unary: after(func(r *csi.ControllerGetVolumeHealthResponse) {
			r.VolumeHealth = sick(r.GetVolumeHealth().GetVolumeId())
		}),
	},
	{
		breaks: "controller.health.volume-missing", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.ControllerGetVolumeHealthRequest](codes.NotFound, codes.Internal),
	},
	{
		breaks: "controller.health.required-fields", does: "NOT_FOUND without volume_id",
		unary: recode[csi.ControllerGetVolumeHealthRequest](codes.InvalidArgument, codes.NotFound),
	},
	{
		breaks: "controller.health.list-agrees", does: "the list has a problem that the volume has not",
		unary: listed(func(l *lastVolume) string { return l.made }),
	},
	{
		breaks: "controller.health.list-deleted", does: "the list has a volume that was deleted",
		unary: listed(func(l *lastVolume) string { return l.gone }),
	},
	{
		breaks: "controller.health.list-pages", does: "a volume is on two pages",
		unary: func() grpc.UnaryServerInterceptor {
			l := new(lastVolume)
			return chain(l.watch(), instead(func(r *csi.ControllerListVolumeHealthRequest) (proto.Message, error) {
				l.mu.Lock()
				defer l.mu.Unlock()
				if r.GetMaxEntries() != 1 || l.made == "" {
					return nil, nil
				}
				resp := &csi.ControllerListVolumeHealthResponse{Entries: []*csi.VolumeHealth{sick(l.made)}}
				if r.GetStartingToken() == "" {
					resp.NextToken = "after-1"
				}
				return resp, nil
			}))
		}(),
	},
	{
		breaks: "controller.health.list-bad-token", does: "an unknown token is the beginning",
		unary: before(func(r *csi.ControllerListVolumeHealthRequest) { r.StartingToken = "" }),
	},
	{
		breaks: "controller.health.list-negative-max", does: "a negative max_entries is no limit",
		unary: before(func(r *csi.ControllerListVolumeHealthRequest) { r.MaxEntries = max(r.MaxEntries, 0) }),
	},
	{
		breaks: "node.health.get", does: "the health of another volume",
		unary: after(func(r *csi.NodeGetVolumeHealthResponse) { r.VolumeHealth.VolumeId = "other" }),
	},
	{
		breaks: "node.health.volume-missing", does: "INTERNAL for a volume that is not there",
		unary: recode[csi.NodeGetVolumeHealthRequest](codes.NotFound, codes.Internal),
	},
}
