package csiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Info identifies a plugin.
type Info struct {
	// Name is a domain name such as csi.example.com, up to 63 bytes of letters,
	// digits, '-' and '.'.
	Name string
	// VendorVersion is required: any text up to 128 bytes.
	VendorVersion string
	// Manifest is optional, up to 4 KiB of keys and values.
	Manifest map[string]string
}

func (i Info) response() *csi.GetPluginInfoResponse {
	return &csi.GetPluginInfoResponse{Name: i.Name, VendorVersion: i.VendorVersion, Manifest: i.Manifest}
}

// identity is the built-in Identity service. It holds no lock and touches no
// volume.
type identity struct {
	csi.UnimplementedIdentityServer
	info         Info
	capabilities csispec.Capabilities
	ready        func(context.Context) (bool, error)
}

func (s *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return s.info.response(), nil
}

func (s *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range s.capabilities.Plugin {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t},
		}})
	}
	for _, t := range s.capabilities.Expansion {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: t},
		}})
	}
	return r, nil
}

func (s *identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	ready := true
	if s.ready != nil {
		var err error
		if ready, err = s.ready(ctx); err != nil {
			if st, _ := statusOf(err); st != nil {
				return nil, err
			}
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}

// capabilities collects what the services of c report.
func (c *config) capabilities(ctx context.Context, info Info) (csispec.Capabilities, error) {
	var caps csispec.Capabilities
	if c.controller != nil {
		r, err := c.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		if err != nil {
			return caps, fmt.Errorf("ControllerGetCapabilities: %w", err)
		}
		caps.Controller = []csi.ControllerServiceCapability_RPC_Type{}
		for _, x := range r.GetCapabilities() {
			caps.Controller = append(caps.Controller, x.GetRpc().GetType())
		}
	}
	if c.group != nil {
		r, err := c.group.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
		if err != nil {
			return caps, fmt.Errorf("GroupControllerGetCapabilities: %w", err)
		}
		caps.Group = []csi.GroupControllerServiceCapability_RPC_Type{}
		for _, x := range r.GetCapabilities() {
			caps.Group = append(caps.Group, x.GetRpc().GetType())
		}
	}
	if c.node != nil {
		r, err := c.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		if err != nil {
			return caps, fmt.Errorf("NodeGetCapabilities: %w", err)
		}
		caps.Node = []csi.NodeServiceCapability_RPC_Type{}
		for _, x := range r.GetCapabilities() {
			caps.Node = append(caps.Node, x.GetRpc().GetType())
		}
	}
	caps.SnapshotMetadata = c.snapshotMetadata != nil
	if c.identity != nil {
		return caps, c.askIdentity(ctx, info, &caps)
	}
	caps.Plugin = slices.Clone(c.services)
	for _, derived := range []struct {
		served bool
		t      csi.PluginCapability_Service_Type
	}{
		{c.controller != nil, csi.PluginCapability_Service_CONTROLLER_SERVICE},
		{c.group != nil, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE},
		{c.snapshotMetadata != nil, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE},
	} {
		if derived.served && !slices.Contains(caps.Plugin, derived.t) {
			caps.Plugin = append(caps.Plugin, derived.t)
		}
	}
	slices.Sort(caps.Plugin)
	caps.Expansion = slices.Clone(c.expansion)
	return caps, nil
}

// askIdentity reads the plugin's capabilities from an Identity service of the
// driver.
func (c *config) askIdentity(ctx context.Context, info Info, caps *csispec.Capabilities) error {
	if len(c.services) > 0 || len(c.expansion) > 0 || c.ready != nil {
		return errors.New("WithIdentity excludes WithPluginCapabilities, WithVolumeExpansion and WithReady: answer them in the Identity service")
	}
	r, err := c.identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Errorf("GetPluginInfo: %w", err)
	}
	if r.GetName() != info.Name || r.GetVendorVersion() != info.VendorVersion {
		return fmt.Errorf("GetPluginInfo answers %q, version %q, but Info says %q, version %q: make them agree",
			r.GetName(), r.GetVendorVersion(), info.Name, info.VendorVersion)
	}
	p, err := c.identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("GetPluginCapabilities: %w", err)
	}
	for _, x := range p.GetCapabilities() {
		switch t := x.GetType().(type) {
		case *csi.PluginCapability_Service_:
			caps.Plugin = append(caps.Plugin, t.Service.GetType())
		case *csi.PluginCapability_VolumeExpansion_:
			caps.Expansion = append(caps.Expansion, t.VolumeExpansion.GetType())
		}
	}
	return nil
}
