package csitest

import (
	"context"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A driver that does as the specification allows, and otherwise than the reference.
type legal struct {
	name   string
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
	lacks  bool // it differs only by what it lacks
	waits  bool // calls take longer
	plain  bool // the reference does not mount such volumes
	// directories of one file system are what is mounted: there is nothing else to see.
	directories bool
	namedIDs    bool // follow from names
	noStaging   bool
	// advice has the rules of level SHOULD that it does not keep.
	advice []string
	// config changes the run's, as a user would who knows the driver.
	config func(*Config)
}

// No rule fails a driver for what the specification leaves to it. Under the race detector only
// those drivers are run on which calls take longer, and meet others.
func TestLegal(t *testing.T) {
	for _, kernel := range []bool{false, true} {
		for _, l := range legalDrivers() {
			if kernel && (l.plain || l.lacks && !torture) || !kernel && l.directories || underRace && !l.waits {
				continue
			}
			name := l.name
			if kernel {
				name += ", mounted"
			}
			t.Run(name, func(t *testing.T) {
				if kernel {
					gate.UserNS(t)
				}
				t.Parallel()
				target, cfg := reference(t, defect{unary: l.unary, stream: l.stream, kernel: kernel, directories: l.directories, namedIDs: l.namedIDs, noStaging: l.noStaging})
				if l.config != nil {
					l.config(&cfg)
				}
				report, err := Check(t.Context(), target, cfg)
				if err != nil {
					t.Fatal(err)
				}
				var advice []string
				for _, x := range slices.Concat(report.ResultsWith(Failed), report.ResultsWith(Broken)) {
					if x.Outcome == Failed && x.Rule.Level == Should && slices.Contains(l.advice, x.Rule.ID) {
						advice = append(advice, x.Rule.ID)
						continue
					}
					t.Errorf("%s %s: %s\n%s%v", x.Rule.Level, x.Rule.ID, x.Rule.Title, x.Reason, x.Failures)
				}
				if slices.Sort(advice); !slices.Equal(advice, slices.Sorted(slices.Values(l.advice))) {
					t.Errorf("%s failed, want %s", advice, l.advice)
				}
				for _, left := range report.NotCleaned {
					t.Errorf("not cleaned: %s", left)
				}
			})
		}
	}
}

// Each run has its own drivers: they keep state.
func legalDrivers() []legal {
	return slices.Concat([]legal{
		{name: "slow", waits: true, unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			time.Sleep(5 * time.Millisecond)
			return handler(ctx, req)
		}},
		{name: "ABORTED while another call for the object is under way", waits: true, unary: oneAtATime()},
		{name: "large extents", unary: largeExtents(256 << 20)},
		{name: "only raw block", plain: true, unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool {
			return slices.ContainsFunc(r.GetVolumeCapabilities(), func(c *csi.VolumeCapability) bool { return c.GetMount() != nil })
		})},
		{name: "only file systems", unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool {
			return slices.ContainsFunc(r.GetVolumeCapabilities(), func(c *csi.VolumeCapability) bool { return c.GetBlock() != nil })
		})},
		{
			name: "a parameter is required", config: func(c *Config) { c.Parameters = map[string]string{"iops": "7"} },
			unary: refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool { return r.GetName() != "" && r.GetParameters()["iops"] == "" }),
		},
		{
			name: "secrets are required", config: func(c *Config) { c.Secrets = map[string]string{"password": "x"} },
			unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if r, ok := req.(interface{ GetSecrets() map[string]string }); ok && r.GetSecrets()["password"] != "x" {
					return nil, status.Error(codes.InvalidArgument, "who are you?")
				}
				return handler(ctx, req)
			},
		},
		{name: "snapshots are not ready immediately", unary: after(func() func(*csi.CreateSnapshotResponse) {
			var mu sync.Mutex
			asked := map[string]int{}
			return func(r *csi.CreateSnapshotResponse) {
				mu.Lock()
				defer mu.Unlock()
				asked[r.GetSnapshot().GetSnapshotId()]++
				r.Snapshot.ReadyToUse = asked[r.GetSnapshot().GetSnapshotId()] > 1
			}
		}())},
		{name: "no sizes", unary: chain(
			volumeChanged(func(v *csi.Volume) { v.CapacityBytes = 0 }),
			snapshotChanged(func(s *csi.Snapshot) { s.SizeBytes = 0 }),
		)},
		{name: "no contexts", unary: chain(
			volumeChanged(func(v *csi.Volume) { v.VolumeContext = nil }),
			after(func(r *csi.ControllerPublishVolumeResponse) { r.PublishContext = nil }),
			after(func(r *csi.ControllerGetVolumeResponse) { r.Volume.VolumeContext = nil }),
			after(func(r *csi.ListVolumesResponse) {
				for _, e := range r.Entries {
					e.Volume.VolumeContext = nil
				}
			}),
		)},
		{name: "small pages", unary: chain(
			before(func(r *csi.ListVolumesRequest) { r.MaxEntries = cutPage(r.MaxEntries) }),
			before(func(r *csi.ListSnapshotsRequest) { r.MaxEntries = cutPage(r.MaxEntries) }),
		)},
		{name: "snapshots and clones keep their source", unary: keepsSources()},
		{name: "unknown parameters are ignored", unary: before(func(r *csi.CreateVolumeRequest) {
			maps.DeleteFunc(r.Parameters, func(k, _ string) bool { return k != "iops" && k != "throughput" })
		})},
		{name: "expands only while not published", unary: offlineExpansion()},
		{name: "copies only what is not published", unary: offlineCopies()},
		blockMetadata(),
		{name: "node IDs have a form", unary: chain(
			refusing(codes.InvalidArgument, func(r *csi.ControllerPublishVolumeRequest) bool { return strings.HasPrefix(r.GetNodeId(), "csicheck-") }),
			refusing(codes.InvalidArgument, func(r *csi.ControllerUnpublishVolumeRequest) bool {
				return strings.HasPrefix(r.GetNodeId(), "csicheck-")
			}),
		)},
		{name: "lists lag", unary: lagging(50 * time.Millisecond)},
		{name: "written for CSI v1.12", unary: chain(
			after(func(r *csi.ControllerGetCapabilitiesResponse) {
				r.Capabilities = append(r.Capabilities, csispec.ControllerCapabilities(conditionOfController)...)
			}),
			after(func(r *csi.NodeGetCapabilitiesResponse) {
				r.Capabilities = append(r.Capabilities, csispec.NodeCapabilities(conditionOfNode)...)
			}),
		)},
		{name: "volumes are directories of a larger file system", directories: true},
		{name: "IDs follow from names", namedIDs: true},
		{name: "nothing is staged", noStaging: true},
		{name: "volumes and snapshots are in two places", lacks: true, unary: inTwoPlaces()},
		{name: "inline volumes", lacks: true, unary: inlineVolumes(func(path string) error { return os.Remove(path) })},
		{name: "secrets are checked", lacks: true, unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(interface{ GetSecrets() map[string]string }); ok && strings.HasPrefix(r.GetSecrets()["password"], "wrong-") {
				return nil, status.Error(codes.Unauthenticated, "the password is wrong")
			}
			return handler(ctx, req)
		}},
		{name: "sizes are not known, and not compared", lacks: true, unary: chain(
			ifTaken(func(r, first *csi.CreateVolumeRequest) { r.CapacityRange = proto.CloneOf(first.GetCapacityRange()) }),
			volumeChanged(func(v *csi.Volume) { v.CapacityBytes = 0 }),
		)},
		{name: "a limit is not compared with the size of a volume that is there", lacks: true, unary: before(func(r *csi.ControllerExpandVolumeRequest) {
			if c := r.GetCapacityRange(); c.GetRequiredBytes() == 0 && c.GetLimitBytes() > 0 {
				c.RequiredBytes, c.LimitBytes = 1, 0
			}
		})},
		{name: "only capabilities are confirmed", lacks: true, unary: before(func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeContext, r.Parameters = nil, nil })},
		{name: "tokens are positions", lacks: true, unary: positionTokens},
		{name: "IDs begin with a server", lacks: true, unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(interface{ GetVolumeId() string }); ok && strings.Contains(r.GetVolumeId(), "/") {
				return nil, status.Error(codes.Internal, "cannot reach the server")
			}
			return handler(ctx, req)
		}},
		{name: "advice is not taken", lacks: true, unary: chain(
			firstUnknown(),
			recode[csi.CreateSnapshotRequest](codes.NotFound, codes.Internal),
			recode[csi.CreateVolumeGroupSnapshotRequest](codes.NotFound, codes.Internal),
			volumeChanged(func(v *csi.Volume) { v.ContentSource = nil }),
			instead(func(r *csi.ControllerUnpublishVolumeRequest) (proto.Message, error) {
				if strings.HasPrefix(r.GetNodeId(), "csicheck-") {
					return nil, errMissing
				}
				return nil, nil
			}),
		), advice: []string{
			"status.not-unknown", "controller.snapshot.source-missing-code", "group.create.source-missing-cleanup", "controller.create.source-reported",
			"source.clone.reported", "controller.unpublish.node-missing",
		}},
	}, withoutEach())
}

// inTwoPlaces reports every volume and snapshot to be in both zones.
func inTwoPlaces() grpc.UnaryServerInterceptor {
	both := func(t []*csi.Topology) []*csi.Topology {
		there := &csi.Topology{Segments: refdriver.SecondTopology()}
		if len(t) == 1 && proto.Equal(t[0], there) {
			there = proto.CloneOf(t[0])
			for k := range there.Segments {
				there.Segments[k] = "a"
			}
		}
		return append(slices.Clone(t), there)
	}
	return chain(
		volumeChanged(func(v *csi.Volume) { v.AccessibleTopology = both(v.AccessibleTopology) }),
		after(func(r *csi.ControllerGetVolumeResponse) {
			r.Volume.AccessibleTopology = both(r.Volume.AccessibleTopology)
		}),
		after(func(r *csi.ListVolumesResponse) {
			for _, e := range r.Entries {
				e.Volume.AccessibleTopology = both(e.Volume.AccessibleTopology)
			}
		}),
		snapshotChanged(func(s *csi.Snapshot) { s.AccessibleTopology = both(s.AccessibleTopology) }),
	)
}

// inlineVolumes publishes them as empty directories; remove is called by NodeUnpublishVolume.
func inlineVolumes(remove func(path string) error) grpc.UnaryServerInterceptor {
	isInline := func(id string) bool { return strings.HasPrefix(id, "csi-") }
	return chain(
		instead(func(r *csi.NodePublishVolumeRequest) (proto.Message, error) {
			if r.GetVolumeContext()[kubernetesPrefix+"ephemeral"] != "true" || !isInline(r.GetVolumeId()) {
				return nil, nil
			}
			if err := os.Mkdir(r.GetTargetPath(), 0o750); err != nil && !os.IsExist(err) {
				return nil, status.Error(codes.Unavailable, err.Error())
			}
			return &csi.NodePublishVolumeResponse{}, nil
		}),
		instead(func(r *csi.NodeUnpublishVolumeRequest) (proto.Message, error) {
			if !isInline(r.GetVolumeId()) {
				return nil, nil
			}
			if err := remove(r.GetTargetPath()); err != nil && !os.IsNotExist(err) {
				return nil, status.Error(codes.Unavailable, err.Error())
			}
			return &csi.NodeUnpublishVolumeResponse{}, nil
		}),
	)
}

// oneAtATime refuses a call while another about the same object is under way.
func oneAtATime() grpc.UnaryServerInterceptor {
	var busy sync.Map
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		id := volumeOf(req.(proto.Message))
		if _, other := busy.LoadOrStore(id, true); other && id != "" {
			return nil, status.Error(codes.Aborted, "another call is under way")
		}
		defer busy.Delete(id)
		time.Sleep(2 * time.Millisecond)
		return handler(ctx, req)
	}
}

// largeExtents makes volumes of a multiple of a size.
func largeExtents(unit int64) grpc.UnaryServerInterceptor {
	round := func(r *csi.CapacityRange) *csi.CapacityRange {
		if r.GetRequiredBytes() <= 0 || r.GetRequiredBytes() > 1<<50 {
			return r
		}
		r.RequiredBytes = (r.GetRequiredBytes() + unit - 1) / unit * unit
		return r
	}
	tooSmall := func(r *csi.CapacityRange) bool {
		l := r.GetLimitBytes()
		return l > 0 && r.GetRequiredBytes() >= 0 && l >= r.GetRequiredBytes() && l/unit*unit < max(r.GetRequiredBytes(), 1)
	}
	return chain(
		refusing(codes.OutOfRange, func(r *csi.CreateVolumeRequest) bool { return tooSmall(r.GetCapacityRange()) }),
		before(func(r *csi.CreateVolumeRequest) {
			if r.GetCapacityRange().GetRequiredBytes() == 0 && r.GetCapacityRange().GetLimitBytes() > 0 {
				r.CapacityRange.RequiredBytes = 1
			}
			r.CapacityRange = round(r.GetCapacityRange())
		}),
		instead(func(r *csi.ControllerExpandVolumeRequest) (proto.Message, error) {
			if tooSmall(r.GetCapacityRange()) {
				return nil, status.Error(codes.OutOfRange, "not between two extents")
			}
			return nil, nil
		}),
		before(func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = round(r.GetCapacityRange()) }),
		after(func(r *csi.GetCapacityResponse) {
			if r.MinimumVolumeSize != nil {
				r.MinimumVolumeSize.Value = unit
			}
		}))
}

func cutPage(n int32) int32 {
	if n == 0 || n > 2 {
		return 2
	}
	return n
}

// positionTokens pages lists with tokens that have a letter for every entry before.
func positionTokens(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	isPosition := func(token string) bool { return strings.Trim(token, "p") == "" }
	switch r := req.(type) {
	case *csi.ListVolumesRequest:
		if token, most := r.GetStartingToken(), r.GetMaxEntries(); most > 0 && isPosition(token) {
			all, err := handler(ctx, &csi.ListVolumesRequest{})
			if err != nil {
				return nil, err
			}
			resp := proto.CloneOf(all.(*csi.ListVolumesResponse))
			resp.Entries, resp.NextToken = positions(resp.GetEntries(), token, int(most))
			return resp, nil
		}
	case *csi.ListSnapshotsRequest:
		if token, most := r.GetStartingToken(), r.GetMaxEntries(); most > 0 && isPosition(token) {
			all, err := handler(ctx, &csi.ListSnapshotsRequest{SourceVolumeId: r.GetSourceVolumeId(), SnapshotId: r.GetSnapshotId()})
			if err != nil {
				return nil, err
			}
			resp := proto.CloneOf(all.(*csi.ListSnapshotsResponse))
			resp.Entries, resp.NextToken = positions(resp.GetEntries(), token, int(most))
			return resp, nil
		}
	}
	return handler(ctx, req)
}

func positions[E any](all []E, token string, most int) (some []E, next string) {
	all = all[min(len(token), len(all)):]
	if len(all) > most {
		return all[:most], token + strings.Repeat("p", most)
	}
	return all, ""
}

// keepsSources refuses to delete what something was made from.
func keepsSources() grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	from := map[string]string{} // source by what was made of it
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		switch r := req.(type) {
		case *csi.DeleteVolumeRequest, *csi.DeleteSnapshotRequest:
			id := volumeOf(r.(proto.Message))
			for _, source := range from {
				if source == id && id != "" {
					return nil, status.Error(codes.FailedPrecondition, "something depends on it")
				}
			}
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return nil, err
		}
		switch r := req.(type) {
		case *csi.DeleteVolumeRequest:
			delete(from, r.GetVolumeId())
		case *csi.DeleteSnapshotRequest:
			delete(from, r.GetSnapshotId())
		case *csi.DeleteVolumeGroupSnapshotRequest:
			for _, id := range r.GetSnapshotIds() {
				delete(from, id)
			}
		case *csi.CreateVolumeRequest:
			if s := r.GetVolumeContentSource(); s != nil {
				from[resp.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId()] = s.GetSnapshot().GetSnapshotId() + s.GetVolume().GetVolumeId()
			}
		case *csi.CreateSnapshotRequest:
			from[resp.(*csi.CreateSnapshotResponse).GetSnapshot().GetSnapshotId()] = r.GetSourceVolumeId()
		case *csi.CreateVolumeGroupSnapshotRequest:
			for _, s := range resp.(*csi.CreateVolumeGroupSnapshotResponse).GetGroupSnapshot().GetSnapshots() {
				from[s.GetSnapshotId()] = s.GetSourceVolumeId()
			}
		}
		return resp, nil
	}
}

// unpublished refuses requests about volumes that are published to a node.
func unpublished(volumes func(req any) []string) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	at := map[string]bool{}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		if slices.ContainsFunc(volumes(req), func(id string) bool { return at[id] }) {
			return nil, status.Error(codes.FailedPrecondition, "it is published")
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return nil, err
		}
		switch r := req.(type) {
		case *csi.ControllerPublishVolumeRequest:
			at[r.GetVolumeId()] = true
		case *csi.ControllerUnpublishVolumeRequest:
			delete(at, r.GetVolumeId())
		}
		return resp, nil
	}
}

// offlineExpansion expands what is not published to a node.
func offlineExpansion() grpc.UnaryServerInterceptor {
	return chain(after(func(r *csi.GetPluginCapabilitiesResponse) {
		for _, c := range r.GetCapabilities() {
			if e := c.GetVolumeExpansion(); e != nil {
				e.Type = csi.PluginCapability_VolumeExpansion_OFFLINE
			}
		}
	}), unpublished(func(req any) []string {
		if r, ok := req.(*csi.ControllerExpandVolumeRequest); ok {
			return []string{r.GetVolumeId()}
		}
		return nil
	}))
}

// offlineCopies makes snapshots and clones of what is not published to a node.
func offlineCopies() grpc.UnaryServerInterceptor {
	return unpublished(func(req any) []string {
		switch r := req.(type) {
		case *csi.CreateSnapshotRequest:
			return []string{r.GetSourceVolumeId()}
		case *csi.CreateVolumeGroupSnapshotRequest:
			return r.GetSourceVolumeIds()
		case *csi.CreateVolumeRequest:
			return []string{r.GetVolumeContentSource().GetVolume().GetVolumeId()}
		}
		return nil
	})
}

// lagging answers lists as they were a while ago.
func lagging(lag time.Duration) grpc.UnaryServerInterceptor {
	type state struct {
		at   time.Time
		resp proto.Message
	}
	var mu sync.Mutex
	known := map[string]state{}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		name := path.Base(info.FullMethod)
		if !strings.HasPrefix(name, "List") {
			return handler(ctx, req)
		}
		mu.Lock()
		defer mu.Unlock()
		key := name + req.(interface{ String() string }).String()
		if was, ok := known[key]; ok && time.Since(was.at) < lag {
			return was.resp, nil
		}
		resp, err := handler(ctx, req)
		if err == nil {
			known[key] = state{time.Now(), proto.Clone(resp.(proto.Message))}
		}
		return resp, err
	}
}

// blockMetadata knows the blocks of raw block volumes, and of no others.
func blockMetadata() legal {
	var mu sync.Mutex
	mounted := map[string]bool{} // IDs of file system volumes and of their snapshots
	note := func(id string, is bool) {
		mu.Lock()
		defer mu.Unlock()
		mounted[id] = mounted[id] || is
	}
	is := func(id string) bool {
		mu.Lock()
		defer mu.Unlock()
		return mounted[id]
	}
	return legal{
		name: "block metadata only of raw block volumes", plain: true,
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			switch r := resp.(type) {
			case *csi.CreateVolumeResponse:
				note(r.GetVolume().GetVolumeId(), req.(*csi.CreateVolumeRequest).GetVolumeCapabilities()[0].GetMount() != nil)
			case *csi.CreateSnapshotResponse:
				note(r.GetSnapshot().GetSnapshotId(), is(r.GetSnapshot().GetSourceVolumeId()))
			}
			return resp, err
		},
		stream: func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, &refusingStream{s, func(m any) error {
				a, isAllocated := m.(*csi.GetMetadataAllocatedRequest)
				d, isDelta := m.(*csi.GetMetadataDeltaRequest)
				if isAllocated && is(a.GetSnapshotId()) || isDelta && (is(d.GetBaseSnapshotId()) || is(d.GetTargetSnapshotId())) {
					return status.Error(codes.InvalidArgument, "not of a raw block volume")
				}
				return nil
			}})
		},
	}
}

// A refusingStream refuses requests.
type refusingStream struct {
	grpc.ServerStream
	check func(any) error
}

func (s *refusingStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.check(m)
}

// withoutEach are drivers that lack a capability, and those that need it.
func withoutEach() (all []legal) {
	for _, names := range [][]string{
		{"PUBLISH_READONLY"}, {"LIST_VOLUMES_PUBLISHED_NODES"}, {"LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES"}, {"GET_CAPACITY"},
		{"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "GET_SNAPSHOT", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", "SNAPSHOT_METADATA_SERVICE"},
		{"LIST_SNAPSHOTS"}, {"GET_SNAPSHOT"}, {"CLONE_VOLUME"}, {"EXPAND_VOLUME", "VOLUME_EXPANSION"}, {"GET_VOLUME"}, {"MODIFY_VOLUME"},
		{"GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH"}, {"LIST_VOLUME_HEALTH"}, {"GET_VOLUME_STATS"}, {"SINGLE_NODE_MULTI_WRITER"},
		{"VOLUME_MOUNT_GROUP"}, {"GET_STORAGE_HEALTH"}, {"VOLUME_ACCESSIBILITY_CONSTRAINTS"},
		{"SNAPSHOT_METADATA_SERVICE"},
	} {
		all = append(all, legal{name: "without " + names[0], lacks: true, unary: withoutCapabilities(names...)})
	}
	return all
}

// withoutCapabilities does not report them, and does not have their RPCs.
func withoutCapabilities(names ...string) grpc.UnaryServerInterceptor {
	gone := func(name string) bool { return slices.Contains(names, name) }
	return chain(
		after(func(r *csi.GetPluginCapabilitiesResponse) {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.PluginCapability) bool {
				return gone(c.GetService().GetType().String()) || c.GetVolumeExpansion() != nil && gone("VOLUME_EXPANSION")
			})
		}),
		after(func(r *csi.ControllerGetCapabilitiesResponse) {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool { return gone(c.GetRpc().GetType().String()) })
		}),
		after(func(r *csi.NodeGetCapabilitiesResponse) {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.NodeServiceCapability) bool { return gone(c.GetRpc().GetType().String()) })
		}),
		after(func(r *csi.GroupControllerGetCapabilitiesResponse) {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.GroupControllerServiceCapability) bool { return gone(c.GetRpc().GetType().String()) })
		}),
		after(func(r *csi.ListVolumesResponse) {
			for _, e := range r.Entries {
				if gone("LIST_VOLUMES_PUBLISHED_NODES") {
					e.Status = nil
				}
				if gone("VOLUME_ACCESSIBILITY_CONSTRAINTS") {
					e.Volume.AccessibleTopology = nil
				}
			}
		}),
		after(func(r *csi.ControllerGetVolumeResponse) {
			if gone("LIST_VOLUMES_PUBLISHED_NODES") {
				r.Status = &csi.ControllerGetVolumeResponse_VolumeStatus{}
			}
			if gone("VOLUME_ACCESSIBILITY_CONSTRAINTS") {
				r.Volume.AccessibleTopology = nil
			}
		}),
		volumeChanged(func(v *csi.Volume) {
			if gone("VOLUME_ACCESSIBILITY_CONSTRAINTS") {
				v.AccessibleTopology = nil
			}
		}),
		after(func(r *csi.NodeGetInfoResponse) {
			if gone("VOLUME_ACCESSIBILITY_CONSTRAINTS") {
				r.AccessibleTopology = nil
			}
		}),
		refusing(codes.InvalidArgument, func(r *csi.CreateVolumeRequest) bool {
			s := r.GetVolumeContentSource()
			return gone("CLONE_VOLUME") && s.GetVolume() != nil || gone("CREATE_DELETE_SNAPSHOT") && s.GetSnapshot() != nil ||
				gone("MODIFY_VOLUME") && len(r.GetMutableParameters()) > 0 ||
				gone("SINGLE_NODE_MULTI_WRITER") && slices.ContainsFunc(r.GetVolumeCapabilities(), func(c *csi.VolumeCapability) bool {
					return c.GetAccessMode().GetMode() == multiWriter || c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
				})
		}),
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			for _, r := range rpcs {
				if r.method != path.Base(info.FullMethod) {
					continue
				}
				if !slices.ContainsFunc(r.by, func(n Need) bool {
					_, name, ok := strings.Cut(n.Text, ".")
					return !ok || !gone(name) && n.Text != nodeCap(conditionOfNode).Text // which the reference does not have
				}) {
					return nil, status.Error(codes.Unimplemented, "not there")
				}
			}
			return handler(ctx, req)
		})
}
