package driver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controller is the CSI controller service. It checks what a request means and leaves the
// rest to the backend; required fields, sizes and formats were checked by csiserver's
// validation before. What is not offered is left to the embedded stub, which answers
// UNIMPLEMENTED.
type controller struct {
	csi.UnimplementedControllerServer
	backend      storage.Backend
	topology     bool // the plugin has VOLUME_ACCESSIBILITY_CONSTRAINTS
	capabilities []csi.ControllerServiceCapability_RPC_Type
}

func newController(b storage.Backend, topology bool) *controller {
	c := &controller{backend: b, topology: topology, capabilities: []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
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
	if err := c.checkRequirement(req.GetAccessibilityRequirements()); err != nil {
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

// checkMutable refuses mutable parameters that the storage does not have.
func (c *controller) checkMutable(parameters map[string]string) error {
	if m, ok := c.backend.(storage.Modifier); ok && c.has(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME) {
		return m.CheckMutable(parameters)
	}
	if len(parameters) > 0 {
		return status.Error(codes.InvalidArgument, "mutable_parameters: this driver does not offer the capability; send the request without them")
	}
	return nil
}

func (c *controller) has(t csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(c.capabilities, t)
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
	return &csi.ControllerPublishVolumeResponse{PublishContext: newAttached(v, a).addTo(publishContext)}, nil
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

func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	page, next, err := c.backend.ListVolumes(ctx, req.GetStartingToken(), pageSize(req.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range page {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{
			Volume: csiVolume(v), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: publishedNodes(v)},
		})
	}
	return resp, nil
}

func (c *controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v, err := c.backend.GetVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: csiVolume(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: publishedNodes(v)},
	}, nil
}

func publishedNodes(v storage.Volume) []string {
	if v.Attachment == nil {
		return nil
	}
	return []string{v.Attachment.NodeID}
}

// GetCapacity answers for Kubernetes' scheduler, which sends no volume
// capabilities, and the parameters of the storage class as they are. For a node
// whose driver reports no segments external-provisioner sets accessible_topology and
// leaves it empty: that is not set.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if len(req.GetAccessibleTopology().GetSegments()) > 0 && !c.topology {
		return nil, status.Error(codes.InvalidArgument, "accessible_topology: this driver does not offer the capability; send the request without it")
	}
	least := storage.MinimumSizes[storage.AccessBlock]
	if len(req.GetVolumeCapabilities()) > 0 {
		accessType, err := accessTypeOf(req.GetVolumeCapabilities())
		if err != nil {
			return &csi.GetCapacityResponse{}, nil // no volume of that kind can be created
		}
		least = storage.MinimumSizes[accessType]
	}
	places, err := c.backend.Places(ctx, ownKeys(req.GetParameters()))
	if errors.Is(err, csierr.Invalid) {
		return &csi.GetCapacityResponse{}, nil // nor one with these parameters
	}
	if err != nil {
		return nil, err
	}
	resp := topology.Capacity(req.GetAccessibleTopology(), places)
	resp.MinimumVolumeSize = wrapperspb.Int64(least)
	return resp, nil
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

// checkRequirement refuses what belongs to a capability that this driver does not
// have, because to ignore it would create a volume in the wrong zone, and a
// requirement that the spec forbids. Topologies without segments exclude nothing.
func (c *controller) checkRequirement(r *csi.TopologyRequirement) error {
	all := slices.Concat(r.GetRequisite(), r.GetPreferred())
	isSet := r != nil && (len(all) == 0 || slices.ContainsFunc(all, func(t *csi.Topology) bool { return len(t.GetSegments()) > 0 }))
	if isSet && !c.topology {
		return status.Error(codes.InvalidArgument, "accessibility_requirements: this driver does not offer the capability; send the request without it")
	}
	_, err := topology.Satisfies(r)
	return err
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
		m.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.VolumeID},
		}}
	} else if s != nil {
		m.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.SnapshotID},
		}}
	}
	return m
}

// truncate shortens s to at most n bytes, between characters.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
