package driver

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controller is the CSI controller service. It checks what a request means and leaves the
// rest to the backend. csiserver's validation has checked required fields, sizes and formats,
// and refused what needs a capability that is not reported, such as topology. RPCs that are
// not offered are left to the embedded stub, which answers UNIMPLEMENTED.
type controller struct {
	csi.UnimplementedControllerServer
	backend      storage.Backend
	capabilities []csi.ControllerServiceCapability_RPC_Type
}

func newController(b storage.Backend) *controller {
	c := &controller{backend: b, capabilities: []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}}
	for _, a := range abilities {
		if len(a.controller) > 0 && a.of(b) {
			c.capabilities = append(c.capabilities, a.controller...)
		}
	}
	return c
}

// accessModes are all for one node: a device that two nodes have attached is
// destroyed by their file systems.
var accessModes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

// maxPage keeps a page of each list below gRPC's 4 MiB: of volumes that are created from
// others, with topology and a node ID as long as the spec allows, and of volumes with all
// the problems that they can have.
const maxPage = 4_000

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(c.capabilities...)}, nil
}

func (c *controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if _, err := topology.Satisfies(req.GetAccessibilityRequirements()); err != nil { // what the spec forbids
		return nil, err
	}
	accessType, err := accessTypeOf(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	mutable := ownKeys(req.GetMutableParameters())
	if err := c.checkMutable(mutable); err != nil {
		return nil, err
	}
	create, source, err := c.sourceOf(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	v, err := create(ctx, storage.VolumeSpec{
		Name:       req.GetName(),
		Capacity:   capacityRange(req.GetCapacityRange()),
		AccessType: accessType,
		Parameters: ownKeys(req.GetParameters()), Mutable: mutable, Source: source,
		Requirement: req.GetAccessibilityRequirements(), Secrets: req.GetSecrets(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(v)}, nil
}

// sourceOf returns what a new volume is created from, and what creates it.
func (c *controller) sourceOf(s *csi.VolumeContentSource) (create func(context.Context, storage.VolumeSpec) (storage.Volume, error), _ *storage.Source, err error) {
	if s == nil {
		return c.backend.CreateVolume, nil, nil
	}
	if b, ok := c.backend.(storage.Snapshotter); ok && s.GetSnapshot() != nil {
		return b.RestoreSnapshot, &storage.Source{SnapshotID: s.GetSnapshot().GetSnapshotId()}, nil
	}
	if b, ok := c.backend.(storage.Cloner); ok && s.GetVolume() != nil {
		return b.CloneVolume, &storage.Source{VolumeID: s.GetVolume().GetVolumeId()}, nil
	}
	return nil, nil, status.Error(codes.InvalidArgument, "volume_content_source: this driver creates no volumes from it")
}

func (c *controller) checkMutable(parameters map[string]string) error {
	if m, ok := c.backend.(storage.Modifier); ok {
		return m.CheckMutable(parameters)
	}
	return nil
}

func (c *controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := c.backend.DeleteVolume(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	v, err := c.volumeFor(ctx, req.GetVolumeId(), req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if err := checkVolumeContext(v, req.GetVolumeContext()); err != nil {
		return nil, err
	}
	mode := req.GetVolumeCapability().GetAccessMode().GetMode()
	a := storage.Attachment{
		NodeID:     req.GetNodeId(),
		ReadOnly:   req.GetReadonly() || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		AccessMode: mode.String(),
	}
	publishContext, err := c.backend.AttachVolume(ctx, v.ID, a)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContextOf(v, a, publishContext)}, nil
}

func (c *controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if err := c.backend.DetachVolume(ctx, req.GetVolumeId(), req.GetNodeId()); err != nil {
		return nil, err
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (c *controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if capability := req.GetVolumeCapability(); capability != nil {
		if _, err := c.volumeFor(ctx, req.GetVolumeId(), capability); err != nil {
			return nil, err
		}
	}
	v, err := c.backend.ExpandVolume(ctx, req.GetVolumeId(), capacityRange(req.GetCapacityRange()))
	if err != nil {
		return nil, err
	}
	// For raw block volumes too: the node's device need not follow the size of the volume.
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.CapacityBytes, NodeExpansionRequired: true}, nil
}

func (c *controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	v, err := c.backend.GetVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := c.validate(v, req); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: truncate(status.Convert(err).Message(), 128)}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
	}}, nil
}

// volumeFor returns the volume if it supports the capability. What
// no volume can do is found before the volume is looked for, because the CO has
// to change that first.
func (c *controller) volumeFor(ctx context.Context, id string, capability *csi.VolumeCapability) (storage.Volume, error) {
	if _, err := checkCapability(capability); err != nil {
		return storage.Volume{}, err
	}
	v, err := c.backend.GetVolume(ctx, id)
	if err != nil {
		return storage.Volume{}, err
	}
	return v, checkFits(v, capability)
}

// accessTypeOf returns the one access type that satisfies all the capabilities.
// There is none for raw block together with a file system, nor for two file
// systems: each use would destroy the other's data.
func accessTypeOf(capabilities []*csi.VolumeCapability) (string, error) {
	var chosen string
	for _, c := range capabilities {
		accessType, err := checkCapability(c)
		if err != nil {
			return "", err
		}
		if chosen != "" && chosen != accessType {
			return "", status.Errorf(codes.InvalidArgument, "volume_capabilities: one volume cannot be both %s and %s; create two volumes", chosen, accessType)
		}
		chosen = accessType
	}
	return chosen, nil
}

// checkCapability returns the access type that c asks for, or INVALID_ARGUMENT
// if no volume of this driver can be used so.
func checkCapability(c *csi.VolumeCapability) (accessType string, err error) {
	mode := c.GetAccessMode().GetMode()
	if !slices.Contains(accessModes, mode) {
		return "", status.Errorf(codes.InvalidArgument, "access mode %s is not supported; a volume can be used on one node at a time", mode)
	}
	if c.GetBlock() != nil {
		return storage.AccessBlock, nil
	}
	if c.GetMount().GetVolumeMountGroup() != "" {
		return "", status.Error(codes.InvalidArgument, "volume_mount_group is not supported: ext4 and xfs have no mount option for a group; change the group of the files instead")
	}
	fsType := cmp.Or(c.GetMount().GetFsType(), storage.DefaultFSType)
	if _, ok := storage.MinimumSizes[fsType]; !ok || fsType == storage.AccessBlock {
		return "", status.Errorf(codes.InvalidArgument, "fs_type %q is not supported; use one of %s", fsType, strings.Join(fsTypes(), ", "))
	}
	return fsType, nil
}

func fsTypes() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(storage.MinimumSizes)), func(t string) bool { return t == storage.AccessBlock })
}

// checkFits returns INVALID_ARGUMENT if v does not support c.
func checkFits(v storage.Volume, c *csi.VolumeCapability) error {
	accessType, err := checkCapability(c)
	if err != nil {
		return err
	}
	if accessType != v.AccessType {
		return status.Errorf(codes.InvalidArgument, "volume was created for access as %s and cannot be used as %s", v.AccessType, accessType)
	}
	return nil
}

// validate returns why the volume does not match the request.
func (c *controller) validate(v storage.Volume, req *csi.ValidateVolumeCapabilitiesRequest) error {
	for _, wanted := range req.GetVolumeCapabilities() {
		if err := checkFits(v, wanted); err != nil {
			return err
		}
	}
	if err := checkVolumeContext(v, req.GetVolumeContext()); err != nil {
		return err
	}
	if len(req.GetParameters()) > 0 && !maps.Equal(ownKeys(req.GetParameters()), v.Parameters) {
		return status.Error(codes.InvalidArgument, "parameters: the volume was created with others")
	}
	return c.checkMutable(ownKeys(req.GetMutableParameters()))
}

// checkVolumeContext refuses what CreateVolume did not return for the volume.
func checkVolumeContext(v storage.Volume, volumeContext map[string]string) error {
	own := ownKeys(volumeContext)
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if value, ok := v.Context[key]; !ok || value != own[key] {
			return status.Errorf(codes.InvalidArgument, "volume_context: key %q is not as in the response of CreateVolume; pass on what that returned", key)
		}
	}
	return nil
}

// ownKeys leaves out the keys that Kubernetes' sidecars and kubelet add to
// parameters and volume context.
func ownKeys(m map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range m {
		if !csispec.IsKubernetesKey(key) {
			own[key] = value
		}
	}
	return own
}

func pageSize(maxEntries int32) int {
	if maxEntries > 0 {
		return min(int(maxEntries), maxPage)
	}
	return maxPage
}

func capacityRange(r *csi.CapacityRange) storage.CapacityRange {
	return storage.CapacityRange{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
}

func csiVolume(v storage.Volume) *csi.Volume {
	m := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.CapacityBytes, VolumeContext: v.Context}
	if len(v.Segments) > 0 {
		m.AccessibleTopology = []*csi.Topology{v.Segments.Topology()}
	}
	if s := v.Source; s != nil && s.VolumeID != "" {
		m.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.VolumeID}}}
	} else if s != nil {
		m.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.SnapshotID}}}
	}
	return m
}

// truncate shortens s to at most n bytes, between characters.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
