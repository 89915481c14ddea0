package refdriver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	defaultSize = 1 << 30
	poolSize    = 1 << 50 // of a zone
	minSize     = 1 << 20
	// attachLimit is how many volumes a node takes.
	attachLimit = 16
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
	if err := checkParameters(req); err != nil {
		return nil, err
	}
	limit := req.GetCapacityRange().GetLimitBytes()
	size := max(minSize, cmp.Or(req.GetCapacityRange().GetRequiredBytes(), min(defaultSize, cmp.Or(limit, defaultSize))))
	if source := req.GetVolumeContentSource(); source != nil {
		least, err := d.sourceSize(source)
		if err != nil {
			return nil, err
		}
		if req.GetCapacityRange().GetRequiredBytes() == 0 && (limit == 0 || limit >= least) {
			size = least
		}
		if size < least {
			return nil, status.Errorf(codes.OutOfRange, "%d bytes are less than the %d of the source", size, least)
		}
	}
	if limit > 0 && size > limit {
		return nil, status.Errorf(codes.OutOfRange, "a volume has %d bytes at least", size)
	}
	if size > poolSize {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are more than the %d that there are", size, int64(poolSize))
	}
	where, err := choose(req.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	v := &volume{
		made: req, mutable: maps.Clone(req.GetMutableParameters()),
		Volume: &csi.Volume{
			VolumeId: d.newID("volume", req.GetName()), CapacityBytes: size, ContentSource: req.GetVolumeContentSource(),
			VolumeContext: map[string]string{"kind": "reference"}, AccessibleTopology: []*csi.Topology{where},
		},
		attached:  map[string]*csi.ControllerPublishVolumeRequest{},
		staged:    map[string]*csi.NodeStageVolumeRequest{},
		published: map[string]*csi.NodePublishVolumeRequest{},
	}
	d.volumes[v.GetVolumeId()] = v
	err = d.makeData(v)
	if s := req.GetVolumeContentSource(); s != nil && err == nil {
		err = d.copyData(cmp.Or(s.GetSnapshot().GetSnapshotId(), s.GetVolume().GetVolumeId()), v.GetVolumeId())
	}
	return &csi.CreateVolumeResponse{Volume: v.Volume}, err
}

// SecondTopology is the zone in which no node is.
func SecondTopology() map[string]string { return map[string]string{zoneKey: "b"} }

func topology() *csi.Topology { return &csi.Topology{Segments: map[string]string{zoneKey: "a"}} }

func isZone(t *csi.Topology) bool {
	return proto.Equal(t, topology()) || proto.Equal(t, &csi.Topology{Segments: SecondTopology()})
}

// choose takes the first of preferred and then of requisite that is a zone.
func choose(r *csi.TopologyRequirement) (*csi.Topology, error) {
	for _, t := range slices.Concat(r.GetPreferred(), r.GetRequisite()) {
		if isZone(t) {
			return t, nil
		}
	}
	if r != nil {
		return nil, status.Error(codes.ResourceExhausted, "there is nothing in these zones")
	}
	return topology(), nil
}

// checkParameters: they are the mutable ones, which go before the plain ones.
func checkParameters(req *csi.CreateVolumeRequest) error {
	all := maps.Clone(req.GetParameters())
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, req.GetMutableParameters())
	return checkMutable(all)
}

func checkMutable(all map[string]string) error {
	for key, value := range all {
		if strings.HasPrefix(key, "csi.storage.k8s.io/") { // of Kubernetes, not of the driver
			continue
		}
		var n int
		if _, err := fmt.Sscan(value, &n); err != nil || key != "iops" && key != "throughput" {
			return status.Errorf(codes.InvalidArgument, "parameters: %q cannot be set so", key)
		}
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
			csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
			csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
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
	case req.GetAccessibilityRequirements() != nil && !accessible(req.GetAccessibilityRequirements(), v.GetAccessibleTopology()[0]):
		return "place"
	}
	return ""
}

func accessible(r *csi.TopologyRequirement, from *csi.Topology) bool {
	return slices.ContainsFunc(slices.Concat(r.GetRequisite(), r.GetPreferred()), func(t *csi.Topology) bool { return proto.Equal(t, from) })
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
	if c := req.GetVolumeContext(); len(c) > 0 && !maps.Equal(c, v.GetVolumeContext()) {
		return nil, status.Error(codes.InvalidArgument, "volume_context is that of another volume")
	}
	if before := v.attached[req.GetNodeId()]; before != nil {
		if before.GetReadonly() != req.GetReadonly() || !proto.Equal(before.GetVolumeCapability(), req.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "volume is published to the node in another way")
		}
	} else if len(v.attached) > 0 && req.GetVolumeCapability().GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY {
		return nil, status.Errorf(codes.FailedPrecondition, "volume is published to %v", sorted(v.attached))
	} else if d.attachedTo(req.GetNodeId()) >= attachLimit {
		return nil, status.Errorf(codes.ResourceExhausted, "node has %d volumes", attachLimit)
	}
	v.attached[req.GetNodeId()] = req
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": v.GetVolumeId()}}, nil
}

func (d *Driver) attachedTo(node string) (n int) {
	for _, v := range d.volumes {
		if v.attached[node] != nil {
			n++
		}
	}
	return n
}

// fits reports whether the volume was created for such a use.
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
	if c := req.GetVolumeContext(); err == nil && len(c) > 0 && !maps.Equal(c, v.GetVolumeContext()) {
		err = status.Error(codes.InvalidArgument, "volume_context is that of another volume")
	}
	if err == nil {
		err = checkParameters(&csi.CreateVolumeRequest{Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters()})
	}
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
	if err := d.supported(req.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	if err := checkMutable(req.GetParameters()); err != nil {
		return nil, err
	}
	if t := req.GetAccessibleTopology(); len(t.GetSegments()) > 0 && !isZone(t) {
		return &csi.GetCapacityResponse{}, nil
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: poolSize, MaximumVolumeSize: wrapperspb.Int64(poolSize), MinimumVolumeSize: wrapperspb.Int64(minSize),
	}, nil
}

// takeSnapshot records a new snapshot.
func (d *Driver) takeSnapshot(name string, v *volume) *snapshot {
	s := &snapshot{name: name, Snapshot: &csi.Snapshot{
		SnapshotId: d.newID("snapshot", name), SourceVolumeId: v.GetVolumeId(), SizeBytes: v.GetCapacityBytes(),
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
	where, err := choose(req.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	s := d.takeSnapshot(req.GetName(), v)
	s.AccessibleTopology = []*csi.Topology{where}
	return &csi.CreateSnapshotResponse{Snapshot: s.Snapshot}, d.copyData(v.GetVolumeId(), s.GetSnapshotId())
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if s := d.snapshots[req.GetSnapshotId()]; s.GetGroupID() != "" {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot is of group %s: use DeleteVolumeGroupSnapshot", s.GetGroupSnapshotId())
	}
	delete(d.snapshots, req.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, d.removeCopy(req.GetSnapshotId())
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
	if capability := req.GetVolumeCapability(); capability != nil {
		if err := v.fits(capability, codes.InvalidArgument); err != nil {
			return nil, err
		}
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
	if err := checkMutable(req.GetMutableParameters()); err != nil {
		return nil, err
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
