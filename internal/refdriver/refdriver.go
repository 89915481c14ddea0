// Package refdriver is a small CSI driver that passes every rule and has every
// capability, without storage. Tests of checkers break it, one rule at a
// time, by interceptors.
package refdriver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// NodeID and SecondNode are the nodes that there are.
const (
	NodeID     = "node-1"
	SecondNode = "node-2"
	zoneKey    = "ref.csikit.dev/zone"
)

// A Driver is one process of the driver. Its State outlives it.
type Driver struct {
	// Validate checks requests, as csispec.Validate does.
	Validate func(proto.Message) error
	// Dir is where file system volumes lie that are mounted for real. Empty: none
	// is, targets are plain directories and files.
	Dir string
	// Directories makes volumes directories of one file system, which does not grow with
	// them.
	Directories bool
	// NamedIDs makes an ID of what has a name follow from it, so that what is created again
	// under the name has the ID of what was deleted.
	NamedIDs bool
	// NoStaging makes volumes be published without being staged, and staging_target_path
	// mean nothing.
	NoStaging bool
	// Copied, if set, is called after every copy of data, with the names of the two
	// directories below Dir: a volume's or a snapshot's ID.
	Copied func(from, to string)
	// Log, if set, is called with every error.
	Log func(string)

	*State

	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedSnapshotMetadataServer
	csi.UnimplementedNodeServer
}

// State is what the driver knows, as if on a disk.
type State struct {
	mu        sync.Mutex
	lastID    int
	volumes   map[string]*volume
	snapshots map[string]*snapshot
	groups    map[string]*group
}

// NewState is that of a driver that was never used.
func NewState() *State {
	return &State{volumes: map[string]*volume{}, snapshots: map[string]*snapshot{}, groups: map[string]*group{}}
}

// ForgetAttachments loses where volumes are published, as a restart may.
func (s *State) ForgetAttachments() { s.each(func(v *volume) { clear(v.attached) }) }

// ForgetNode loses what is staged and published.
func (s *State) ForgetNode() {
	s.each(func(v *volume) {
		clear(v.staged)
		clear(v.published)
	})
}

// ForgetNames loses what the volumes were made for.
func (s *State) ForgetNames() { s.each(func(v *volume) { v.made = renamed(v.made) }) }

// ForgetSizes loses what the volumes have grown by.
func (s *State) ForgetSizes() {
	s.each(func(v *volume) {
		v.Volume = proto.CloneOf(v.Volume)
		v.CapacityBytes = max(minSize, min(v.GetCapacityBytes(), v.made.GetCapacityRange().GetRequiredBytes()))
	})
}

// ForgetVolumes loses the newest volume.
func (s *State) ForgetVolumes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ids := sorted(s.volumes); len(ids) > 0 {
		delete(s.volumes, ids[len(ids)-1])
	}
}

// Inventory lists what there is.
func (s *State) Inventory(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(sorted(s.volumes), sorted(s.snapshots), sorted(s.groups)), nil
}

// Orphan adds a snapshot that has no name, as a restart may that begins a copy again.
func (s *State) Orphan() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	id := fmt.Sprintf("snapshot-%06d", s.lastID)
	s.snapshots[id] = &snapshot{Snapshot: &csi.Snapshot{SnapshotId: id, CreationTime: timestamppb.Now(), ReadyToUse: true}}
}

// ForgetSnapshots loses the snapshots.
func (s *State) ForgetSnapshots() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.snapshots)
}

// Forget loses everything.
func (s *State) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.volumes)
	clear(s.snapshots)
	clear(s.groups)
}

func (s *State) each(do func(*volume)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		do(v)
	}
}

func renamed(r *csi.CreateVolumeRequest) *csi.CreateVolumeRequest {
	r = proto.CloneOf(r)
	r.Name = ""
	return r
}

type volume struct {
	*csi.Volume
	made      *csi.CreateVolumeRequest
	mutable   map[string]string
	attached  map[string]*csi.ControllerPublishVolumeRequest
	staged    map[string]*csi.NodeStageVolumeRequest
	published map[string]*csi.NodePublishVolumeRequest
}

type snapshot struct {
	*csi.Snapshot
	name string
}

type group struct {
	*csi.VolumeGroupSnapshot
	name string
	made *csi.CreateVolumeGroupSnapshotRequest
}

// Serve serves on lis until ctx ends. The interceptors are called in their order,
// around the validation.
func (d *Driver) Serve(ctx context.Context, lis net.Listener, unary []grpc.UnaryServerInterceptor, streams []grpc.StreamServerInterceptor) error {
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(append(slices.Clone(unary), d.validated)...), grpc.ChainStreamInterceptor(streams...))
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterGroupControllerServer(s, d)
	csi.RegisterSnapshotMetadataServer(s, d)
	csi.RegisterNodeServer(s, d)
	defer context.AfterFunc(ctx, s.Stop)()
	if err := s.Serve(lis); ctx.Err() == nil {
		return err
	}
	return nil
}

// validated refuses bad requests, and handles one at a time.
func (d *Driver) validated(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := d.Validate(req.(proto.Message)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	resp, err := handler(ctx, req)
	if err != nil && d.Log != nil {
		d.Log(fmt.Sprintf("%s: %v\n", info.FullMethod, err))
	}
	return resp, err
}

func (d *Driver) newID(kind, name string) string {
	if d.NamedIDs {
		return fmt.Sprintf("%s-%.8x", kind, sha256.Sum256([]byte(name)))
	}
	d.lastID++
	return fmt.Sprintf("%s-%06d", kind, d.lastID) // sorted, they are in the order of their making
}

func notFound(kind, id string) error { return status.Errorf(codes.NotFound, "no %s %q", kind, id) }

// sorted returns the IDs in order, to be paged through.
func sorted[T any](m map[string]T) (ids []string) { return slices.Sorted(maps.Keys(m)) }

// page returns a part of a sorted list of IDs; the token is the last one of the page before.
func page(ids []string, token string, most int32) (some []string, next string, err error) {
	if token != "" {
		last, found := strings.CutPrefix(token, "after-")
		if !found {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q is not of this list", token)
		}
		at, there := slices.BinarySearch(ids, last)
		if there {
			at++
		}
		ids = ids[at:]
	}
	if most > 0 && len(ids) > int(most) {
		return ids[:most], "after-" + ids[most-1], nil
	}
	return ids, "", nil
}

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "ref.csikit.dev", VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
	}}}}
	for _, t := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE,
		csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t},
		}})
	}
	return resp, nil
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) CreateVolumeGroupSnapshot(_ context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	for _, g := range d.groups {
		if g.name == req.GetName() {
			if !slices.Equal(slices.Sorted(slices.Values(g.made.SourceVolumeIds)), slices.Sorted(slices.Values(req.SourceVolumeIds))) ||
				!maps.Equal(g.made.Parameters, req.Parameters) {
				return nil, status.Errorf(codes.AlreadyExists, "group %q has other volumes or parameters", g.name)
			}
			return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.VolumeGroupSnapshot}, nil
		}
	}
	for _, id := range req.GetSourceVolumeIds() {
		if d.volumes[id] == nil {
			return nil, notFound("volume", id)
		}
	}
	g := &group{name: req.GetName(), made: req, VolumeGroupSnapshot: &csi.VolumeGroupSnapshot{
		GroupSnapshotId: d.newID("group", req.GetName()), CreationTime: timestamppb.Now(), ReadyToUse: true,
	}}
	var copies []string
	for _, id := range req.GetSourceVolumeIds() {
		s := d.takeSnapshot(fmt.Sprintf("%s of %s", req.GetName(), id), d.volumes[id])
		s.GroupSnapshotId = g.GetGroupSnapshotId()
		g.Snapshots = append(g.Snapshots, s.Snapshot)
		copies = append(copies, id, s.GetSnapshotId())
	}
	d.groups[g.GetGroupSnapshotId()] = g
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.VolumeGroupSnapshot}, d.copyData(copies...)
}

func (g *group) mismatch(ids []string) error {
	var members []string
	for _, s := range g.GetSnapshots() {
		members = append(members, s.GetSnapshotId())
	}
	if !slices.Equal(slices.Sorted(slices.Values(ids)), slices.Sorted(slices.Values(members))) {
		return status.Errorf(codes.InvalidArgument, "snapshot_ids are not those of group %q", g.GetGroupSnapshotId())
	}
	return nil
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) DeleteVolumeGroupSnapshot(_ context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if g := d.groups[req.GetGroupSnapshotId()]; g != nil {
		if err := g.mismatch(req.GetSnapshotIds()); err != nil {
			return nil, err
		}
		for _, s := range g.GetSnapshots() {
			delete(d.snapshots, s.GetSnapshotId())
			if err := d.removeCopy(s.GetSnapshotId()); err != nil {
				return nil, err
			}
		}
		delete(d.groups, req.GetGroupSnapshotId())
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) GetVolumeGroupSnapshot(_ context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	g := d.groups[req.GetGroupSnapshotId()]
	if g == nil {
		return nil, notFound("group", req.GetGroupSnapshotId())
	}
	if err := g.mismatch(req.GetSnapshotIds()); err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.VolumeGroupSnapshot}, nil
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (d *Driver) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// GetMetadataAllocated implements csi.SnapshotMetadataServer: everything is.
func (d *Driver) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, out csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	size, from, err := d.metadata(req.GetStartingOffset(), req.GetSnapshotId())
	for at := from; err == nil && at < size; at += blockSize {
		err = out.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: csi.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: size,
			BlockMetadata: []*csi.BlockMetadata{{ByteOffset: at, SizeBytes: blockSize}},
		})
	}
	return err
}

// GetMetadataDelta implements csi.SnapshotMetadataServer: everything has changed.
func (d *Driver) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, out csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	size, from, err := d.metadata(req.GetStartingOffset(), req.GetTargetSnapshotId(), req.GetBaseSnapshotId())
	for at := from; err == nil && at < size; at += blockSize {
		err = out.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: csi.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: size,
			BlockMetadata: []*csi.BlockMetadata{{ByteOffset: at, SizeBytes: blockSize}},
		})
	}
	return err
}

const blockSize = 256 << 20

func (d *Driver) metadata(offset int64, ids ...string) (size, from int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var source string
	for _, id := range ids {
		if id == "" {
			return 0, 0, status.Error(codes.InvalidArgument, "a snapshot ID is required")
		}
		s := d.snapshots[id]
		if s == nil {
			return 0, 0, notFound("snapshot", id)
		}
		if source != "" && s.GetSourceVolumeId() != source {
			return 0, 0, status.Error(codes.InvalidArgument, "the snapshots are of different volumes")
		}
		source = s.GetSourceVolumeId()
		size = cmp.Or(size, s.GetSizeBytes())
	}
	if offset < 0 || offset > size {
		return 0, 0, status.Errorf(codes.OutOfRange, "starting_offset %d is not in the volume of %d bytes", offset, size)
	}
	return size, offset / blockSize * blockSize, nil
}
