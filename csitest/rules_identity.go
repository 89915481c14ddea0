package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// VOLUME_CONDITION is gone with CSI v1.13, which reserves its numbers: only a driver built against
// an older version reports it, and does right.
const (
	conditionOfController csi.ControllerServiceCapability_RPC_Type = 11
	conditionOfNode       csi.NodeServiceCapability_RPC_Type       = 4
)

var identityRules = []Rule{
	{
		ID: "identity.probe.ready", Level: Must, Spec: "Probe",
		Title: "Probe answers, and a driver that works says that it is ready",
		Why: "Sidecars call Probe until it says ready, or leaves ready unset; they exit on every error but a deadline. " +
			"livenessprobe has the container killed when Probe fails. Two calls are made, since the first may have found the driver ready by chance.",
		check: func(c *ruleRun) {
			for range 2 {
				a := send(c, c.Identity.Probe, &csi.ProbeRequest{})
				if resp := a.ok(); resp.GetReady() != nil && !resp.GetReady().GetValue() {
					a.wrong("ready true or unset: the driver was ready before")
				}
			}
		},
	},
	{
		ID: "identity.capabilities.consistent", Level: Must, Spec: "GetPluginCapabilities",
		Title: "capabilities do not contradict each other",
		Why: "Some capabilities require others: LIST_VOLUMES_PUBLISHED_NODES needs PUBLISH_UNPUBLISH_VOLUME, LIST_VOLUME_HEALTH needs " +
			"GET_VOLUME_HEALTH, VolumeExpansion needs EXPAND_VOLUME of a service. A CO that relies on the one calls the other and gets UNIMPLEMENTED.",
		check: func(c *ruleRun) {
			for _, v := range violations(csispec.CheckCapabilities(c.run.has)) {
				c.error("capabilities that agree", "%s %s", v.Field, v.Text)
			}
		},
	},
	{
		ID: "identity.capabilities.useful", Level: Should, Spec: "GetPluginCapabilities",
		Title: "a CO can use every capability that is reported",
		Why: "The specification allows EXPAND_VOLUME without VolumeExpansion, a service that the plugin does not report, and an unknown or " +
			"repeated capability. A CO ignores them, and the feature is silently off. VOLUME_CONDITION, which CSI v1.13 removed, is what a driver built against an older version reports.",
		check: func(c *ruleRun) {
			for _, v := range csispec.CapabilityWarnings(c.run.has) {
				if v.Field == "controller."+conditionOfController.String() || v.Field == "node."+conditionOfNode.String() {
					continue
				}
				c.error("capabilities that a CO uses", "%s %s", v.Field, v.Text)
			}
		},
	},
	{
		ID: "identity.info.same-everywhere", Level: Must, Spec: "GetPluginCapabilities",
		Title: "the node and the controller endpoint describe the plugin alike",
		Why:   "The CO asks either process and applies the answer to all. All instances of one vendor_version have to report the same plugin capabilities.",
		Needs: needs(twoEndpoints),
		check: func(c *ruleRun) {
			one := send(c, c.Identity.GetPluginInfo, &csi.GetPluginInfoRequest{}).ok()
			other := send(c, c.ControllerIdentity.GetPluginInfo, &csi.GetPluginInfoRequest{})
			if other.ok().GetName() != one.GetName() {
				other.wrong("name %q, as the node's endpoint has it", one.GetName())
			}
			if other.Resp.GetVendorVersion() != one.GetVendorVersion() {
				c.excuse("the endpoints have different vendor_versions")
			}
			caps := send(c, c.Identity.GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{}).ok()
			if a := send(c, c.ControllerIdentity.GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{}); !proto.Equal(a.ok(), caps) {
				a.wrong("capabilities as the node's endpoint has them: %s", requestJSON(caps))
			}
		},
	},
	{
		ID: "capability.implemented", Level: Must, Spec: "Error Scheme",
		Title: "an RPC that a capability promises is implemented",
		Why:   "A CO reads the capabilities once and calls what they promise. UNIMPLEMENTED is not retried: the feature is silently off.",
		check: func(c *ruleRun) {
			for _, r := range rpcs {
				if r.served(c) && r.promised(c) {
					if a := c.invoke(r.path(), c.named(r.request()), r.response()); a.is(codes.Unimplemented) {
						c.breach(a.Call, "any code but UNIMPLEMENTED: "+r.because, a.responseText())
					}
				}
			}
			if c.run.has.SnapshotMetadata {
				s, err := c.Metadata.GetMetadataAllocated(c.context(), &csi.GetMetadataAllocatedRequest{SnapshotId: "none"})
				if err == nil {
					_, err = s.Recv()
				}
				if code(err) == codes.Unimplemented {
					c.error("any code but UNIMPLEMENTED: plugin.SNAPSHOT_METADATA_SERVICE promises it", "GetMetadataAllocated: %v", err)
				}
			}
		},
	},
	{
		ID: "capability.unimplemented", Level: Must, Spec: "Error Scheme",
		Title: "an RPC that no capability promises answers UNIMPLEMENTED",
		Why: "UNIMPLEMENTED distinguishes a missing feature from a failure. Another code is retried, perhaps forever, " +
			"and OK means that the work was done.",
		check: func(c *ruleRun) {
			for _, r := range rpcs {
				if r.served(c) && !r.promised(c) {
					if a := c.invoke(r.path(), c.filled(r.request()), r.response()); !a.is(codes.Unimplemented) {
						c.breach(a.Call, "UNIMPLEMENTED: the driver does not report "+r.because, a.responseText())
					}
				}
			}
		},
	},
}
