package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var validateRules = []Rule{
	{
		ID: "controller.validate.confirms", Level: Must, Spec: "ValidateVolumeCapabilities",
		Title: "the capabilities that a volume was created with are confirmed as they were sent",
		Why:   "The CO compares what is confirmed with its request.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.volume().validateRequest()
			a := send(c, c.Controller.ValidateVolumeCapabilities, req)
			got := a.ok().GetConfirmed().GetVolumeCapabilities()
			if len(got) != 1 || !proto.Equal(got[0], req.GetVolumeCapabilities()[0]) {
				a.wrong("confirmed.volume_capabilities as sent")
			}
		},
	},
	{
		ID: "controller.validate.unsupported", Level: Must, Spec: "ValidateVolumeCapabilities",
		Title: "a capability that the driver refuses in CreateVolume is not confirmed, with OK",
		Why:   "OK without confirmed is how a driver says no; an error says that it could not find out.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			other := c.createRequest()
			other.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
			if !send(c, c.Controller.CreateVolume, other).is(codes.InvalidArgument) {
				c.excuse("the driver takes every access mode")
			}
			req := v.validateRequest()
			req.VolumeCapabilities = append(req.VolumeCapabilities, other.VolumeCapabilities...)
			a := send(c, c.Controller.ValidateVolumeCapabilities, req)
			if a.ok().GetConfirmed() != nil {
				a.wrong("OK without confirmed: CreateVolume refused %s", requestJSON(other.VolumeCapabilities[0]))
			}
		},
	},
	{
		ID: "controller.validate.volume-missing", Level: Must, Spec: "ValidateVolumeCapabilities",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "A statement about a volume that is not there is wrong either way.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest()).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.validate.idempotent", Level: Must, Spec: "ValidateVolumeCapabilities",
		Title: "the same capabilities are confirmed again, also while the volume is published",
		Why:   "The CO asks about a volume whenever a claim is bound to it. What it may be used for does not depend on whether it is in use.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			first := send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest()).ok()
			v.attach()
			for range 2 {
				if a := send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest()); !proto.Equal(a.ok().GetConfirmed(), first.GetConfirmed()) {
					a.wrong("confirmed as the first time: %s", requestJSON(first))
				}
			}
		},
	},
}
