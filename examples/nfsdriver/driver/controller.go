package driver

import (
	"context"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controller is the CSI controller service. It translates requests for the storage;
// csiserver's validation has already checked required fields, sizes and formats. RPCs
// that are not offered return UNIMPLEMENTED, from the embedded stub.
type controller struct {
	csi.UnimplementedControllerServer
	backend      storage.Backend
	capabilities []csi.ControllerServiceCapability_RPC_Type
}

// ability is what an optional file of this package adds to the driver, if the storage has
// it: delete the file, and the driver does not have it.
type ability struct {
	of         func(storage.Backend) bool
	controller []csi.ControllerServiceCapability_RPC_Type
}

// abilities is filled by the init functions of the optional files.
var abilities []ability

// implements is an ability's of: the type implements the interface T.
func implements[T any](b storage.Backend) bool {
	_, ok := b.(T)
	return ok
}

// NewController returns the Controller service of a storage. There is nothing to publish in
// it: a node mounts a share without it.
func NewController(b storage.Backend) csi.ControllerServer {
	c := &controller{backend: b, capabilities: []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}}
	for _, a := range abilities {
		if a.of(b) {
			c.capabilities = append(c.capabilities, a.controller...)
		}
	}
	return c
}

// maxPage keeps a page of a list below gRPC's limit of 4 MiB, with the longest IDs and
// subDirs.
const maxPage = 2_000

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(c.capabilities...)}, nil
}

func (c *controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if req.GetAccessibilityRequirements() != nil || len(req.GetMutableParameters()) > 0 {
		return nil, status.Error(codes.InvalidArgument, "accessibility_requirements and mutable_parameters: this driver does not have the capability; send the request without them")
	}
	flags, err := mountFlags(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	create, source, err := c.sourceOf(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	own, metadata := storage.SplitKeys(req.GetParameters())
	v, err := create(ctx, storage.VolumeSpec{
		Name: req.GetName(), Capacity: capacityRange(req.GetCapacityRange()),
		Parameters: own, Metadata: metadata, MountFlags: flags, Source: source, Secrets: req.GetSecrets(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(v)}, nil
}

// sourceOf returns what a new volume is created from, and what creates it.
func (c *controller) sourceOf(s *csi.VolumeContentSource) (create func(context.Context, storage.VolumeSpec) (storage.Volume, error), _ *storage.Source, err error) {
	snapshots, _ := c.backend.(storage.Snapshotter)
	clones, _ := c.backend.(storage.Cloner)
	switch {
	case s == nil:
		return c.backend.CreateVolume, nil, nil
	case s.GetSnapshot() != nil && c.has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT):
		return snapshots.RestoreSnapshot, &storage.Source{SnapshotID: s.GetSnapshot().GetSnapshotId()}, nil
	case s.GetVolume() != nil && c.has(csi.ControllerServiceCapability_RPC_CLONE_VOLUME):
		return clones.CloneVolume, &storage.Source{VolumeID: s.GetVolume().GetVolumeId()}, nil
	}
	return nil, nil, status.Error(codes.InvalidArgument, "volume_content_source: this driver creates no volumes from it")
}

func (c *controller) has(t csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(c.capabilities, t)
}

func capacityRange(r *csi.CapacityRange) storage.CapacityRange {
	return storage.CapacityRange{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
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
	v, err := c.backend.ExpandVolume(ctx, req.GetVolumeId(), capacityRange(req.GetCapacityRange()))
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.CapacityBytes}, nil // no node expansion required
}

func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	flags, err := mountFlags(req.GetVolumeCapabilities())
	if err != nil {
		return &csi.GetCapacityResponse{}, nil // no capacity for unsupported volumes
	}
	own, _ := storage.SplitKeys(req.GetParameters())
	free, largest, err := c.backend.Capacity(ctx, own, flags)
	if err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{AvailableCapacity: free, MaximumVolumeSize: wrapperspb.Int64(largest)}, nil
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
func validate(v storage.Volume, req *csi.ValidateVolumeCapabilitiesRequest) error {
	if _, err := mountFlags(req.GetVolumeCapabilities()); err != nil {
		return err
	}
	attributes, _ := storage.SplitKeys(req.GetVolumeContext())
	for key, value := range attributes {
		if want := v.Context[key]; value != want && key != storage.ContextMountOptions {
			return status.Errorf(codes.InvalidArgument, "volume_context: %s is %q, not %q", key, want, value)
		}
	}
	if own, _ := storage.SplitKeys(req.GetParameters()); len(req.GetParameters()) > 0 && !maps.Equal(own, v.Parameters) {
		return status.Error(codes.InvalidArgument, "parameters: the volume was created with different ones")
	}
	if len(req.GetMutableParameters()) > 0 {
		return status.Error(codes.InvalidArgument, "mutable_parameters: this driver has none")
	}
	return nil
}

func pageSize(wanted int32) int {
	if wanted == 0 {
		return maxPage
	}
	return min(int(wanted), maxPage)
}

// mountFlags returns the mount flags of all capabilities, which have to be supported.
func mountFlags(all []*csi.VolumeCapability) (flags []string, err error) {
	for _, c := range all {
		if err := checkCapability(c); err != nil {
			return nil, err
		}
		flags = append(flags, c.GetMount().GetMountFlags()...)
	}
	return flags, nil
}

// checkCapability refuses block access and foreign file system types. All access modes
// are supported: a share may be mounted on any node, any number of times.
func checkCapability(c *csi.VolumeCapability) error {
	if c.GetBlock() != nil {
		return status.Error(codes.InvalidArgument, "access type block: a share is not a block device; request a file system (volumeMode: Filesystem)")
	}
	if fsType := c.GetMount().GetFsType(); !slices.Contains(storage.FSTypes, fsType) {
		return status.Errorf(codes.InvalidArgument, "fs_type %q is not supported; omit it, or use %s", fsType, storage.FSTypes[1])
	}
	return nil
}

func csiVolume(v storage.Volume) *csi.Volume {
	out := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.CapacityBytes, VolumeContext: v.Context}
	switch {
	case v.Source == nil:
	case v.Source.SnapshotID != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Source.SnapshotID}}}
	default:
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source.VolumeID}}}
	}
	return out
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
