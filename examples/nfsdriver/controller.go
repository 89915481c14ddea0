package main

import (
	"context"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controller is the CSI controller service. It translates requests for the backend;
// csiserver's validation has already checked required fields, sizes and formats. RPCs
// that are not offered return UNIMPLEMENTED, from the embedded stub.
type controller struct {
	csi.UnimplementedControllerServer
	backend Backend
	lists   bool // offer the list RPCs, because the exports are known
}

func newController(b Backend, lists bool) *controller { return &controller{backend: b, lists: lists} }

// capabilities must agree with the RPCs below. There is nothing to publish in a
// controller: a node mounts a share without it.
func (c *controller) capabilities() []csi.ControllerServiceCapability_RPC_Type {
	all := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if c.lists {
		all = append(all, csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	}
	return all
}

// fsTypes are the file system types that a volume can be mounted as; "" is nfs.
var fsTypes = []string{"", "nfs", "nfs4"}

// maxPage keeps a page of a list below gRPC's limit of 4 MiB, with the longest IDs and
// subDirs.
const maxPage = 2_000

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(c.capabilities()...)}, nil
}

func (c *controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	spec, err := volumeSpec(req)
	if err != nil {
		return nil, err
	}
	v, err := c.backend.CreateVolume(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(v)}, nil
}

// volumeSpec translates a request. The locks need it as well, for the volume's
// directory.
func volumeSpec(req *csi.CreateVolumeRequest) (VolumeSpec, error) {
	if req.GetAccessibilityRequirements() != nil || len(req.GetMutableParameters()) > 0 {
		return VolumeSpec{}, status.Error(codes.InvalidArgument, "accessibility_requirements and mutable_parameters: this driver does not have the capability; send the request without them")
	}
	var flags []string
	for _, capability := range req.GetVolumeCapabilities() {
		if err := checkCapability(capability); err != nil {
			return VolumeSpec{}, err
		}
		flags = append(flags, capability.GetMount().GetMountFlags()...)
	}
	ref, a, err := planVolume(req.GetName(), req.GetParameters(), flags)
	if err == nil {
		_, err = mountOptions(ref.export, flags, "") // fail now and not when a pod starts
	}
	var inUse bool
	if err == nil {
		inUse, err = copyInUse(req.GetParameters())
	}
	if err != nil {
		return VolumeSpec{}, status.Error(codes.InvalidArgument, err.Error())
	}
	source := req.GetVolumeContentSource()
	return VolumeSpec{
		Name: req.GetName(), Ref: ref, Access: a,
		Capacity:   CapacityRange{Required: req.GetCapacityRange().GetRequiredBytes(), Limit: req.GetCapacityRange().GetLimitBytes()},
		Parameters: ownKeys(req.GetParameters()),
		SourceID:   source.GetSnapshot().GetSnapshotId() + source.GetVolume().GetVolumeId(),
		CopyInUse:  inUse,
	}, nil
}

func (c *controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := c.backend.DeleteVolume(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if capability := req.GetVolumeCapability(); capability != nil {
		if err := checkCapability(capability); err != nil {
			return nil, err
		}
	}
	r := req.GetCapacityRange()
	v, err := c.backend.ExpandVolume(ctx, req.GetVolumeId(), CapacityRange{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.CapacityBytes}, nil // no node expansion required
}

func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	for _, capability := range req.GetVolumeCapabilities() {
		if checkCapability(capability) != nil {
			return &csi.GetCapacityResponse{}, nil // no capacity for unsupported volumes
		}
	}
	var e export
	if p := req.GetParameters(); p[paramServer] != "" || p[paramShare] != "" {
		err := knownKeys("parameters", p, volumeParameters)
		var flags []string
		for _, capability := range req.GetVolumeCapabilities() {
			flags = append(flags, capability.GetMount().GetMountFlags()...)
		}
		if err == nil {
			e, err = exportOf(p, flags)
		}
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	free, total, err := c.backend.Capacity(ctx, e)
	if err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{AvailableCapacity: free, MaximumVolumeSize: wrapperspb.Int64(total)}, nil
}

func (c *controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	v, err := c.backend.GetVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := validate(v, req); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: truncate(status.Convert(err).Message(), 128)}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
	}}, nil
}

// validate returns how the volume differs from the request.
func validate(v Volume, req *csi.ValidateVolumeCapabilitiesRequest) error {
	for _, capability := range req.GetVolumeCapabilities() {
		if err := checkCapability(capability); err != nil {
			return err
		}
	}
	for key, value := range ownKeys(req.GetVolumeContext()) {
		if want := csiVolume(v).GetVolumeContext()[key]; value != want && key != attrMountOptions {
			return status.Errorf(codes.InvalidArgument, "volume_context: %s is %q, not %q", key, want, value)
		}
	}
	if len(req.GetParameters()) > 0 && !maps.Equal(ownKeys(req.GetParameters()), v.Parameters) {
		return status.Error(codes.InvalidArgument, "parameters: the volume was created with different ones")
	}
	if len(req.GetMutableParameters()) > 0 {
		return status.Error(codes.InvalidArgument, "mutable_parameters: this driver has none")
	}
	return nil
}

func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if !c.lists {
		return c.UnimplementedControllerServer.ListVolumes(ctx, req)
	}
	page, next, err := c.backend.ListVolumes(ctx, req.GetStartingToken(), pageSize(req.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range page {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: csiVolume(v)})
	}
	return resp, nil
}

func pageSize(wanted int32) int {
	if wanted == 0 {
		return maxPage
	}
	return min(int(wanted), maxPage)
}

func (c *controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	err := knownKeys("parameters", req.GetParameters(), []string{paramCopyInUse})
	var inUse bool
	if err == nil {
		inUse, err = copyInUse(req.GetParameters())
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s, err := c.backend.CreateSnapshot(ctx, req.GetName(), req.GetSourceVolumeId(), inUse)
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: csiSnapshot(s)}, nil
}

func (c *controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := c.backend.DeleteSnapshot(ctx, req.GetSnapshotId()); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	s, err := c.backend.GetSnapshot(ctx, req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: csiSnapshot(s)}, nil
}

func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if !c.lists {
		return c.UnimplementedControllerServer.ListSnapshots(ctx, req)
	}
	resp := &csi.ListSnapshotsResponse{}
	add := func(s Snapshot) {
		if source := req.GetSourceVolumeId(); source == "" || source == s.VolumeID {
			resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(s)})
		}
	}
	if id := req.GetSnapshotId(); id != "" {
		s, err := c.backend.GetSnapshot(ctx, id)
		if status.Code(err) == codes.NotFound {
			return resp, nil
		}
		if err != nil {
			return nil, err
		}
		add(s)
		return resp, nil
	}
	limit := pageSize(req.GetMaxEntries())
	for token := req.GetStartingToken(); ; {
		page, next, err := c.backend.ListSnapshots(ctx, token, limit-len(resp.Entries))
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			add(s)
		}
		if next == "" || len(resp.Entries) == limit {
			resp.NextToken = next
			return resp, nil
		}
		token = next // the page had no snapshot of that volume
	}
}

// checkCapability refuses block access and foreign file system types. All access modes
// are supported: a share may be mounted on any node, any number of times.
func checkCapability(c *csi.VolumeCapability) error {
	if c.GetBlock() != nil {
		return status.Error(codes.InvalidArgument, "access type block: an NFS share is not a block device; request a file system (volumeMode: Filesystem)")
	}
	if fsType := c.GetMount().GetFsType(); !slices.Contains(fsTypes, fsType) {
		return status.Errorf(codes.InvalidArgument, "fs_type %q is not supported; omit it, or use nfs", fsType)
	}
	return nil
}

func csiVolume(v Volume) *csi.Volume {
	out := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.CapacityBytes}
	if ref, err := parseVolumeID(v.ID); err == nil {
		out.VolumeContext = map[string]string{paramServer: ref.Server, paramShare: ref.Share, paramSubDir: v.SubDir}
	}
	if _, err := parseSnapshotID(v.SourceID); err == nil {
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.SourceID}}}
	} else if v.SourceID != "" {
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.SourceID}}}
	}
	return out
}

func csiSnapshot(s Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.VolumeID, SizeBytes: s.SizeBytes,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: true, // an incomplete copy is not a snapshot yet
	}
}

// truncate shortens s to at most n bytes, at a character boundary.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
