package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controller is the controller service. csiserver has validated each request, and volumelock
// has locked what it changes. An error that wraps no kind of csierr becomes UNAVAILABLE,
// after which the CO repeats the call; every method can be repeated at any point.
type controller struct {
	csi.UnimplementedControllerServer
	store
	nodeID string // of the only node
}

const (
	mib     = 1 << 20
	maxPage = 5000 // gRPC limits a response to 4 MiB
)

var minimumSize = map[string]int64{"block": mib, "ext4": 16 * mib, "xfs": 300 * mib}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: csispec.ControllerCapabilities(
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	)}, nil
}

func (c *controller) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	accessType, err := accessTypeOf(req.GetVolumeCapabilities()...)
	if err = cmp.Or(err, checkEmpty("parameters", req.GetParameters())); err != nil {
		return nil, err
	}
	ids, err := c.ids(idPrefix(req.GetName()), ".img")
	if err != nil {
		return nil, err
	}
	var v volume
	if len(ids) > 0 {
		v, err = c.existing(ids[0], accessType, req.GetCapacityRange())
	} else if v.Size, err = c.sizeFor(req.GetCapacityRange(), 0, minimumSize[accessType]); err == nil {
		v.ID = idPrefix(req.GetName()) + accessType + "-" + rand.Text()
		err = c.create(v.ID, ".img", func(f *os.File) error { return f.Truncate(v.Size) })
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size}}, err
}

// existing returns the volume if it is what the request for its name wants.
func (c *controller) existing(id, accessType string, r *csi.CapacityRange) (volume, error) {
	v, err := c.load(id)
	if errors.Is(err, csierr.NotFound) {
		err = fmt.Errorf("%w: volume %s is being deleted", csierr.Busy, id)
	} else if err == nil && (v.AccessType != accessType || v.Size < r.GetRequiredBytes() || r.GetLimitBytes() > 0 && v.Size > r.GetLimitBytes()) {
		err = fmt.Errorf("%w: volume %s is for access as %s and has %d bytes", csierr.Conflict, id, v.AccessType, v.Size)
	}
	return v, cmp.Or(err, c.dir.Sync()) // an earlier call may have ended before that
}

func (c *controller) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	v, err := c.load(req.GetVolumeId())
	if v.Node != "" {
		err = fmt.Errorf("%w: volume %s is attached to node %q", csierr.Precondition, v.ID, v.Node)
	} else if err == nil {
		err = c.remove(v.ID, ".img")
	} else if errors.Is(err, csierr.NotFound) {
		err = c.dir.Sync()
	}
	return &csi.DeleteVolumeResponse{}, err
}

func (c *controller) ControllerPublishVolume(_ context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	v, err := c.usable(req.GetVolumeId(), req.GetVolumeContext(), req.GetVolumeCapability())
	node, mode := req.GetNodeId(), req.GetVolumeCapability().GetAccessMode().GetMode().String()
	switch {
	case err != nil:
	case node != c.nodeID:
		err = fmt.Errorf("%w: node %q; the only node is %q", csierr.NotFound, node, c.nodeID)
	case v.Node == "":
		err = c.create(v.ID, ".attached", func(f *os.File) error { _, err := f.WriteString(node + "\n" + mode); return err })
	case v.Node != node:
		err = fmt.Errorf("%w: volume %s is attached to node %q", csierr.Precondition, v.ID, v.Node)
	case v.Mode != mode:
		err = fmt.Errorf("%w: volume %s is attached as %s", csierr.Conflict, v.ID, v.Mode)
	default:
		err = c.dir.Sync()
	}
	return &csi.ControllerPublishVolumeResponse{}, err
}

func (c *controller) ControllerUnpublishVolume(_ context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	v, err := c.load(req.GetVolumeId())
	if err == nil && (req.GetNodeId() == "" || req.GetNodeId() == v.Node) {
		err = c.remove(v.ID, ".attached")
	} else if err == nil || errors.Is(err, csierr.NotFound) {
		err = c.dir.Sync()
	}
	return &csi.ControllerUnpublishVolumeResponse{}, err
}

// ControllerExpandVolume requires the node for raw block volumes too: a loop device does not
// follow the size of its image.
func (c *controller) ControllerExpandVolume(_ context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	v, err := c.load(req.GetVolumeId())
	if capability := req.GetVolumeCapability(); err == nil && capability != nil {
		v, err = c.usable(v.ID, nil, capability)
	}
	if err != nil {
		return nil, err
	}
	size, err := c.sizeFor(req.GetCapacityRange(), v.Size, v.Size)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, c.grow(v, size)
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := c.load(req.GetVolumeId()); err != nil {
		return nil, err
	}
	_, err := c.usable(req.GetVolumeId(), req.GetVolumeContext(), req.GetVolumeCapabilities()...)
	if cmp.Or(err, checkEmpty("parameters", req.GetParameters())) != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "not the capabilities, context and parameters of the volume"}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters(),
	}}, nil
}

// ListVolumes has the last ID of a page as the token for the next.
func (c *controller) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	token, resp := req.GetStartingToken(), new(csi.ListVolumesResponse)
	if token != "" && !idPattern.MatchString(token) {
		return nil, fmt.Errorf("%w: starting_token %q is not from this list", csierr.Busy, token) // ABORTED
	}
	ids, err := c.ids("", ".img")
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if id <= token {
			continue
		}
		if n := len(resp.Entries); n == maxPage || n > 0 && n == int(req.GetMaxEntries()) {
			resp.NextToken = resp.Entries[n-1].GetVolume().GetVolumeId()
			break
		}
		v, err := c.load(id)
		if errors.Is(err, csierr.NotFound) {
			continue // deleted meanwhile
		} else if err != nil {
			return nil, err
		}
		entry := &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: id, CapacityBytes: v.Size}, Status: new(csi.ListVolumesResponse_VolumeStatus)}
		if v.Node != "" {
			entry.Status.PublishedNodeIds = []string{v.Node}
		}
		resp.Entries = append(resp.Entries, entry)
	}
	return resp, nil
}

func (c *controller) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	accessType, err := accessTypeOf(req.GetVolumeCapabilities()...)
	if cmp.Or(err, checkEmpty("parameters", req.GetParameters())) != nil {
		return new(csi.GetCapacityResponse), nil // no such volume can be created
	}
	bytes, err := free(c.path)
	return &csi.GetCapacityResponse{AvailableCapacity: bytes / mib * mib, MinimumVolumeSize: wrapperspb.Int64(minimumSize[cmp.Or(accessType, "block")])}, err
}

// sizeFor returns the size of a volume that has some bytes now. Images are sparse: nothing is
// reserved, but none is created that could never be filled.
func (c *controller) sizeFor(r *csi.CapacityRange, has, minimum int64) (int64, error) {
	bytes, err := free(c.path)
	if err != nil {
		return 0, err
	}
	return csispec.RoundCapacity(r, minimum, mib, csispec.WithDefaultCapacity(max(has, 1<<30)), csispec.WithMaximumCapacity(has+bytes))
}

// usable returns the volume if it has the capabilities and the context. No volume has a context.
func (s store) usable(id string, volumeContext map[string]string, capabilities ...*csi.VolumeCapability) (volume, error) {
	accessType, err := accessTypeOf(capabilities...)
	if err = cmp.Or(err, checkEmpty("volume_context", volumeContext)); err != nil {
		return volume{}, err
	}
	v, err := s.load(id)
	if err == nil && accessType != v.AccessType {
		err = fmt.Errorf("%w: volume %s is for access as %s, not as %s", csierr.Invalid, id, v.AccessType, accessType)
	}
	return v, err
}

// accessTypeOf returns "block" or the file system, if a volume can have all the capabilities.
func accessTypeOf(capabilities ...*csi.VolumeCapability) (accessType string, err error) {
	for _, x := range capabilities {
		this, mode := "block", x.GetAccessMode().GetMode()
		if x.GetMount() != nil {
			this = cmp.Or(x.GetMount().GetFsType(), nodeops.DefaultFSType)
		}
		if !csispec.IsSinglePublish(mode) && mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
			return "", fmt.Errorf("%w: access mode %s is not supported", csierr.Invalid, mode)
		} else if minimumSize[this] == 0 || x.GetMount().GetFsType() == "block" {
			return "", fmt.Errorf("%w: fs_type %q is not supported", csierr.Invalid, this)
		} else if accessType != "" && accessType != this {
			return "", fmt.Errorf("%w: one volume cannot be both %s and %s", csierr.Invalid, accessType, this)
		}
		accessType = this
	}
	return accessType, nil
}

// checkEmpty allows only the keys that Kubernetes adds.
func checkEmpty(field string, m map[string]string) error {
	for key := range m {
		if !csispec.IsKubernetesKey(key) {
			return fmt.Errorf("%w: %s: unknown key %q", csierr.Invalid, field, key)
		}
	}
	return nil
}
