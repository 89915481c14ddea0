package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controller is the CSI controller service. It checks what a request means and
// leaves the rest to the backend; required fields, sizes and formats were
// checked by csiserver's validation before a request gets here. What is not
// offered is left to the embedded stub, which answers UNIMPLEMENTED.
type controller struct {
	csi.UnimplementedControllerServer
	backend  Backend
	topology bool // the plugin has VOLUME_ACCESSIBILITY_CONSTRAINTS
}

func newController(b Backend, topology bool) *controller {
	return &controller{backend: b, topology: topology}
}

// controllerCapabilities must agree with the RPCs below.
var controllerCapabilities = []csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
	csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	csi.ControllerServiceCapability_RPC_GET_VOLUME,
	csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
	csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
}

// accessModes are all for one node: an image that two nodes have attached is
// destroyed by their file systems.
var accessModes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

const defaultFSType = "ext4"

// fsTypes are the file systems on offer. Package nodeops knows btrfs as well; to
// offer it, whose clones need Linux 6.7, add it here and to minimumSize.
var fsTypes = []string{"ext4", "xfs"}

// volumeParameters are the keys that a StorageClass may set: none so far. Add
// yours.
var volumeParameters []string

// maxPage keeps a page of each list below gRPC's 4 MiB: of volumes that are created from
// others, with topology and a node ID as long as the spec allows, and of volumes with all
// the problems that they can have.
const maxPage = 4_000

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(controllerCapabilities...)}, nil
}

func (c *controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := c.checkRequirement(req.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	mutable := ownKeys(req.GetMutableParameters())
	if err := checkMutable(mutable); err != nil {
		return nil, err
	}
	accessType, err := accessTypeOf(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	parameters := ownKeys(req.GetParameters())
	if err := checkParameters(parameters); err != nil {
		return nil, err
	}
	source, err := contentSource(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	v, err := c.backend.CreateVolume(ctx, VolumeSpec{
		Name:       req.GetName(),
		Capacity:   capacityRange(req.GetCapacityRange()),
		AccessType: accessType,
		Parameters: parameters, Mutable: mutable, Source: source, Requirement: req.GetAccessibilityRequirements(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(v)}, nil
}

func (c *controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := c.backend.DeleteVolume(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if err := checkVolumeContext(req.GetVolumeContext()); err != nil {
		return nil, err
	}
	v, err := c.volumeFor(ctx, req.GetVolumeId(), req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	mode := req.GetVolumeCapability().GetAccessMode().GetMode()
	publishContext, err := c.backend.AttachVolume(ctx, v.ID, Attachment{
		NodeID:     req.GetNodeId(),
		ReadOnly:   req.GetReadonly() || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		AccessMode: mode.String(),
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext}, nil
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
	// For raw block volumes too: the node's loop device does not follow
	// the size of its image.
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.CapacityBytes, NodeExpansionRequired: true}, nil
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

func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	page, next, err := c.backend.ListVolumes(ctx, req.GetStartingToken(), pageSize(req.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	// One allocation for all: a list may have thousands of entries.
	all := make([]struct {
		entry  csi.ListVolumesResponse_Entry
		volume csi.Volume
		status csi.ListVolumesResponse_VolumeStatus
	}, len(page))
	resp := &csi.ListVolumesResponse{NextToken: next, Entries: make([]*csi.ListVolumesResponse_Entry, len(page))}
	for i := range page {
		x := &all[i]
		fillVolume(&x.volume, &page[i])
		x.status.PublishedNodeIds = publishedNodes(&page[i])
		x.entry.Volume, x.entry.Status = &x.volume, &x.status
		resp.Entries[i] = &x.entry
	}
	return resp, nil
}

func (c *controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v, err := c.backend.GetVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: csiVolume(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: publishedNodes(&v)},
	}, nil
}

func publishedNodes(v *Volume) []string {
	if v.Attachment == nil {
		return nil
	}
	return []string{v.Attachment.NodeID}
}

// ControllerModifyVolume only writes down what the node applies: see tuning.go.
func (c *controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	mutable := ownKeys(req.GetMutableParameters())
	if _, err := c.backend.GetVolume(ctx, req.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkMutable(mutable); err != nil {
		return nil, err
	}
	if err := c.backend.ModifyVolume(ctx, req.GetVolumeId(), mutable); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// GetCapacity answers for Kubernetes' scheduler, which sends no volume
// capabilities, and the parameters of the storage class as they are. For a node
// whose driver reports no segments external-provisioner sets accessible_topology and
// leaves it empty: that is not set.
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if len(req.GetAccessibleTopology().GetSegments()) > 0 && !c.topology {
		return nil, status.Error(codes.InvalidArgument, "accessible_topology: this driver does not offer the capability; send the request without it")
	}
	if checkParameters(ownKeys(req.GetParameters())) != nil {
		return &csi.GetCapacityResponse{}, nil
	}
	least := minimumSize[accessBlock]
	if len(req.GetVolumeCapabilities()) > 0 {
		accessType, err := accessTypeOf(req.GetVolumeCapabilities())
		if err != nil {
			return &csi.GetCapacityResponse{}, nil // no volume of that kind can be created
		}
		least = minimumSize[accessType]
	}
	places, err := c.backend.Places(ctx)
	if err != nil {
		return nil, err
	}
	for i := range places { // volumes have whole MiB
		places[i].Free = places[i].Free / mib * mib
	}
	resp := topology.Capacity(req.GetAccessibleTopology(), places)
	resp.MinimumVolumeSize = wrapperspb.Int64(least)
	return resp, nil
}

// volumeFor returns the volume if it supports the capability. What
// no volume can do is found before the volume is looked for, because the CO has
// to change that first.
func (c *controller) volumeFor(ctx context.Context, id string, capability *csi.VolumeCapability) (Volume, error) {
	if _, err := checkCapability(capability); err != nil {
		return Volume{}, err
	}
	v, err := c.backend.GetVolume(ctx, id)
	if err != nil {
		return Volume{}, err
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
		return accessBlock, nil
	}
	if c.GetMount().GetVolumeMountGroup() != "" {
		return "", status.Error(codes.InvalidArgument, "volume_mount_group is not supported: ext4 and xfs have no mount option for a group; change the group of the files instead")
	}
	fsType := cmp.Or(c.GetMount().GetFsType(), defaultFSType)
	if !slices.Contains(fsTypes, fsType) {
		return "", status.Errorf(codes.InvalidArgument, "fs_type %q is not supported; use one of %s", fsType, strings.Join(fsTypes, ", "))
	}
	return fsType, nil
}

// checkFits returns INVALID_ARGUMENT if v does not support c.
func checkFits(v Volume, c *csi.VolumeCapability) error {
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
func validate(v Volume, req *csi.ValidateVolumeCapabilitiesRequest) error {
	for _, c := range req.GetVolumeCapabilities() {
		if err := checkFits(v, c); err != nil {
			return err
		}
	}
	if err := checkVolumeContext(req.GetVolumeContext()); err != nil {
		return err
	}
	if len(req.GetParameters()) > 0 && !maps.Equal(ownKeys(req.GetParameters()), v.Parameters) {
		return status.Error(codes.InvalidArgument, "parameters: the volume was created with others")
	}
	return checkMutable(ownKeys(req.GetMutableParameters()))
}

// checkVolumeContext refuses what cannot come from this driver: its volumes
// have no context.
func checkVolumeContext(volumeContext map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(ownKeys(volumeContext))) {
		return status.Errorf(codes.InvalidArgument, "volume_context: key %q is not from this driver; pass on what CreateVolume returned", key)
	}
	return nil
}

func checkParameters(parameters map[string]string) error {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if !slices.Contains(volumeParameters, key) {
			unknown = append(unknown, fmt.Sprintf("%q", key))
		}
	}
	if len(unknown) > 0 {
		return status.Errorf(codes.InvalidArgument, "parameters: unknown: %s; remove them from the storage class", strings.Join(unknown, ", "))
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

func capacityRange(r *csi.CapacityRange) CapacityRange {
	return CapacityRange{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
}

func csiVolume(v Volume) *csi.Volume {
	m := new(csi.Volume)
	fillVolume(m, &v)
	return m
}

func fillVolume(m *csi.Volume, v *Volume) {
	m.VolumeId, m.CapacityBytes, m.ContentSource = v.ID, v.CapacityBytes, csiSource(v.Source)
	if len(v.Segments) > 0 {
		m.AccessibleTopology = []*csi.Topology{v.Segments.Topology()}
	}
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
