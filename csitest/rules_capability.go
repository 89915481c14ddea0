package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// otherType is a capability of the access type that the volume was not made for. A driver
// whose volumes have both excuses the rule.
func (v *volume) otherType() *csi.VolumeCapability {
	other := blockCapability(v.c.run)
	if v.isBlock() {
		other = mountCapability(v.c.run)
	}
	req := v.validateRequest()
	req.VolumeCapabilities = []*csi.VolumeCapability{other}
	if send(v.c, v.c.Controller.ValidateVolumeCapabilities, req).Resp.GetConfirmed() != nil {
		v.c.excuse("a volume has both access types")
	}
	return other
}

// exceedingRules are about volumes that are used as what they are not.
var exceedingRules = []Rule{
	{
		ID: "controller.expand.exceeds-capabilities", Level: Should, Spec: "ControllerExpandVolume",
		Title: "ControllerExpandVolume with the access type that the volume does not have is INVALID_ARGUMENT",
		Why: "The CO and the driver do not agree on what the volume is, and what would be grown is not what the CO means. The field is OPTIONAL: a driver may not look at it, " +
			"and the rule is at SHOULD.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			req := v.expandRequest(2 * c.run.cfg.Size)
			req.VolumeCapability = v.otherType()
			send(c, c.Controller.ControllerExpandVolume, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "node.stage.exceeds-capabilities", Level: Must, Spec: "NodeStageVolume",
		Title: "NodeStageVolume with the access type that the volume does not have is FAILED_PRECONDITION",
		Why:   "A raw block volume that is staged as a file system may be formatted: its data is lost.",
		Needs: needs(createVolume, stageVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			other := v.otherType()
			req := v.attach().stageRequest()
			req.VolumeCapability = other
			send(c, c.Node.NodeStageVolume, req).wants(codes.FailedPrecondition, codes.InvalidArgument)
		},
	},
	{
		ID: "node.publish.exceeds-capabilities", Level: Must, Spec: "NodePublishVolume",
		Title: "NodePublishVolume with the access type that the volume does not have is FAILED_PRECONDITION",
		Why:   "The pod would get a device in place of a file system, or the other way round.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume()
			other := v.otherType()
			req := v.attach().stage().publishRequest("a")
			req.VolumeCapability = other
			send(c, c.Node.NodePublishVolume, req).wants(codes.FailedPrecondition, codes.InvalidArgument)
		},
	},
}
