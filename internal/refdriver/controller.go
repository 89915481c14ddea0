package refdriver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	defaultSize = 1 << 30
	poolSize    = 1 << 50
)

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for n := range csi.ControllerServiceCapability_RPC_Type_name {
		if n != 0 {
			resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_Type(n)}},
			})
		}
	}
	slices.SortFunc(resp.Capabilities, func(a, b *csi.ControllerServiceCapability) int {
		return cmp.Compare(a.GetRpc().GetType(), b.GetRpc().GetType())
	})
	return resp, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := d.supported(req.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	for _, v := range d.volumes {
		if v.made.GetName() == req.GetName() {
			if diff := v.differs(req); diff != "" {
				return nil, status.Errorf(codes.AlreadyExists, "volume %q has another %s", req.GetName(), diff)
			}
			return &csi.CreateVolumeResponse{Volume: v.Volume}, nil
		}
	}
	size := cmp.Or(req.GetCapacityRange().GetRequiredBytes(), min(defaultSize, cmp.Or(req.GetCapacityRange().GetLimitBytes(), defaultSize)))
	if source := req.GetVolumeContentSource(); source != nil {
		least, err := d.sourceSize(source)
		if err != nil {
			return nil, err
		}
		if req.GetCapacityRange() == nil {
			size = least
		}
		if size < least {
			return nil, status.Errorf(codes.OutOfRange, "%d bytes are less than the %d of the source", size, least)
		}
	}
	if size > poolSize {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are more than the %d that there are", size, int64(poolSize))
	}
	if err := d.reachable(req.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	v := &volume{
		made: req, mutable: maps.Clone(req.GetMutableParameters()),
		Volume: &csi.Volume{
			VolumeId: d.newID("volume"), CapacityBytes: size, ContentSource: req.GetVolumeContentSource(),
			VolumeContext: map[string]string{"kind": "reference"}, AccessibleTopology: []*csi.Topology{topology()},
		},
		attached:  map[string]*csi.ControllerPublishVolumeRequest{},
		staged:    map[string]*csi.NodeStageVolumeRequest{},
		published: map[string]*csi.NodePublishVolumeRequest{},
	}
	d.volumes[v.GetVolumeId()] = v
	return &csi.CreateVolumeResponse{Volume: v.Volume}, d.makeData(v)
}

func topology() *csi.Topology { return &csi.Topology{Segments: map[string]string{zoneKey: "a"}} }

// reachable: every volume is in the one zone there is.
func (d *Driver) reachable(r *csi.TopologyRequirement) error {
	for _, t := range r.GetRequisite() {
		if proto.Equal(t, topology()) {
			return nil
		}
	}
	if len(r.GetRequisite()) > 0 {
		return status.Error(codes.ResourceExhausted, "there is nothing in the zones of requisite")
	}
	return nil
}

func (d *Driver) sourceSize(s *csi.VolumeContentSource) (int64, error) {
	if s.GetSnapshot() != nil {
		if found := d.snapshots[s.GetSnapshot().GetSnapshotId()]; found != nil {
			return found.GetSizeBytes(), nil
		}
		return 0, notFound("snapshot", s.GetSnapshot().GetSnapshotId())
	}
	if found := d.volumes[s.GetVolume().GetVolumeId()]; found != nil {
		return found.GetCapacityBytes(), nil
	}
	return 0, notFound("volume", s.GetVolume().GetVolumeId())
}

// supported: one volume is either raw block or has a file system.
func (d *Driver) supported(caps []*csi.VolumeCapability) error {
	for _, c := range caps {
		if (c.GetBlock() != nil) != (caps[0].GetBlock() != nil) {
			return status.Error(codes.InvalidArgument, "a volume is raw block or has a file system")
		}
		if c.GetBlock() != nil && d.Dir != "" {
			return status.Error(codes.InvalidArgument, "raw block is not supported")
		}
		switch c.GetAccessMode().GetMode() {
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return status.Errorf(codes.InvalidArgument, "access mode %s is not supported", c.GetAccessMode().GetMode())
		}
	}
	return nil
}

func (v *volume) isBlock() bool { return v.made.GetVolumeCapabilities()[0].GetBlock() != nil }

// differs names what keeps v from being what req asks for.
func (v *volume) differs(req *csi.CreateVolumeRequest) string {
	r := req.GetCapacityRange()
	switch {
	case v.GetCapacityBytes() < r.GetRequiredBytes(), r.GetLimitBytes() > 0 && v.GetCapacityBytes() > r.GetLimitBytes():
		return "capacity"
	case v.isBlock() != (req.GetVolumeCapabilities()[0].GetBlock() != nil):
		return "access type"
	case !maps.Equal(v.made.GetParameters(), req.GetParameters()), !maps.Equal(v.made.GetMutableParameters(), req.GetMutableParameters()):
		return "parameters"
	case !proto.Equal(v.made.GetVolumeContentSource(), req.GetVolumeContentSource()):
		return "source"
	}
	return ""
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if len(v.attached) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published to %v", v.GetVolumeId(), sorted(v.attached))
	}
	delete(d.volumes, v.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, d.removeData(v)
}

// ControllerPublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerPublishVolume(_ context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	if node := req.GetNodeId(); node != NodeID && node != SecondNode {
		return nil, notFound("node", node)
	}
	if err := v.fits(req.GetVolumeCapability(), codes.InvalidArgument); err != nil {
		return nil, err
	}
	if before := v.attached[req.GetNodeId()]; before != nil {
		if before.GetReadonly() != req.GetReadonly() || !proto.Equal(before.GetVolumeCapability(), req.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "volume is published to the node in another way")
		}
	} else if len(v.attached) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume is published to %v", sorted(v.attached))
	}
	v.attached[req.GetNodeId()] = req
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": v.GetVolumeId()}}, nil
}

// fits tells whether the volume was made for such a use.
func (v *volume) fits(c *csi.VolumeCapability, otherwise codes.Code) error {
	if v.isBlock() != (c.GetBlock() != nil) {
		return status.Error(otherwise, "the volume was made for the other access type")
	}
	return nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if v := d.volumes[req.GetVolumeId()]; v != nil {
		if delete(v.attached, req.GetNodeId()); req.GetNodeId() == "" {
			clear(v.attached)
		}
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	err := d.supported(append(slices.Clone(req.GetVolumeCapabilities()), v.made.GetVolumeCapabilities()...))
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters(),
	}}, nil
}

func (v *volume) publishedTo() *csi.ListVolumesResponse_VolumeStatus {
	return &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: sorted(v.attached)}
}

// ListVolumes implements csi.ControllerServer.
func (d *Driver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	ids, next, err := page(sorted(d.volumes), req.GetStartingToken(), req.GetMaxEntries())
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, id := range ids {
		v := d.volumes[id]
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: v.Volume, Status: v.publishedTo()})
	}
	return resp, err
}

// ControllerGetVolume implements csi.ControllerServer.
func (d *Driver) ControllerGetVolume(_ context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	return &csi.ControllerGetVolumeResponse{Volume: v.Volume, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{
		PublishedNodeIds: sorted(v.attached),
	}}, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if t := req.GetAccessibleTopology(); t != nil && !proto.Equal(t, topology()) {
		return &csi.GetCapacityResponse{}, nil
	}
	return &csi.GetCapacityResponse{AvailableCapacity: poolSize}, nil
}

// cut takes the snapshot.
func (d *Driver) cut(name string, v *volume) *snapshot {
	s := &snapshot{name: name, Snapshot: &csi.Snapshot{
		SnapshotId: d.newID("snapshot"), SourceVolumeId: v.GetVolumeId(), SizeBytes: v.GetCapacityBytes(),
		CreationTime: timestamppb.Now(), ReadyToUse: true,
	}}
	d.snapshots[s.GetSnapshotId()] = s
	return s
}

// CreateSnapshot implements csi.ControllerServer.
func (d *Driver) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	for _, s := range d.snapshots {
		if s.name == req.GetName() {
			if s.GetSourceVolumeId() != req.GetSourceVolumeId() {
				return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is of volume %q", s.name, s.GetSourceVolumeId())
			}
			return &csi.CreateSnapshotResponse{Snapshot: s.Snapshot}, nil
		}
	}
	v := d.volumes[req.GetSourceVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetSourceVolumeId())
	}
	return &csi.CreateSnapshotResponse{Snapshot: d.cut(req.GetName(), v).Snapshot}, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if s := d.snapshots[req.GetSnapshotId()]; s.GetGroupID() != "" {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot is of group %s: use DeleteVolumeGroupSnapshot", s.GetGroupSnapshotId())
	}
	delete(d.snapshots, req.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, nil
}

// GetGroupID is empty for a snapshot that is none.
func (s *snapshot) GetGroupID() string {
	if s == nil {
		return ""
	}
	return s.GetGroupSnapshotId()
}

// ListSnapshots implements csi.ControllerServer.
func (d *Driver) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	ids := slices.DeleteFunc(sorted(d.snapshots), func(id string) bool {
		return req.GetSnapshotId() != "" && req.GetSnapshotId() != id ||
			req.GetSourceVolumeId() != "" && req.GetSourceVolumeId() != d.snapshots[id].GetSourceVolumeId()
	})
	ids, next, err := page(ids, req.GetStartingToken(), req.GetMaxEntries())
	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, id := range ids {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: d.snapshots[id].Snapshot})
	}
	return resp, err
}

// GetSnapshot implements csi.ControllerServer.
func (d *Driver) GetSnapshot(_ context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	s := d.snapshots[req.GetSnapshotId()]
	if s == nil {
		return nil, notFound("snapshot", req.GetSnapshotId())
	}
	return &csi.GetSnapshotResponse{Snapshot: s.Snapshot}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	r := req.GetCapacityRange()
	if r.GetRequiredBytes() > poolSize || r.GetLimitBytes() > 0 && max(r.GetRequiredBytes(), v.GetCapacityBytes()) > r.GetLimitBytes() {
		return nil, status.Errorf(codes.OutOfRange, "the volume of %d bytes cannot be grown into the range", v.GetCapacityBytes())
	}
	grown := proto.CloneOf(v.Volume) // the old one may be on its way to a client
	grown.CapacityBytes = max(v.GetCapacityBytes(), r.GetRequiredBytes())
	v.Volume = grown
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.GetCapacityBytes(), NodeExpansionRequired: true}, nil
}

// ControllerModifyVolume implements csi.ControllerServer. The keys are iops and
// throughput.
func (d *Driver) ControllerModifyVolume(_ context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	for key, value := range req.GetMutableParameters() {
		var n int
		if _, err := fmt.Sscan(value, &n); err != nil || key != "iops" && key != "throughput" {
			return nil, status.Errorf(codes.InvalidArgument, "mutable_parameters: %q cannot be set so", key)
		}
	}
	if v.mutable == nil {
		v.mutable = map[string]string{}
	}
	maps.Copy(v.mutable, req.GetMutableParameters())
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// ControllerGetVolumeHealth implements csi.ControllerServer.
func (d *Driver) ControllerGetVolumeHealth(_ context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if d.volumes[req.GetVolumeId()] == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: req.GetVolumeId()}}, nil
}

// ControllerListVolumeHealth implements csi.ControllerServer: all are well.
func (d *Driver) ControllerListVolumeHealth(_ context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	_, _, err := page(nil, req.GetStartingToken(), req.GetMaxEntries())
	return &csi.ControllerListVolumeHealthResponse{}, err
}
