package csitest

import (
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var mutable = Need{"mutable parameters that the driver takes", FacilityMutableParameters, func(r *run) bool { return len(r.cfg.MutableParameters) > 0 }}

const noKey = "csicheck-no-key"

func (v *volume) modifyRequest(p map[string]string) *csi.ControllerModifyVolumeRequest {
	return &csi.ControllerModifyVolumeRequest{VolumeId: v.id, MutableParameters: p}
}

// withUnknown are the parameters and one that no driver has.
func withUnknown(p map[string]string) map[string]string {
	p = maps.Clone(p)
	if p == nil {
		p = map[string]string{}
	}
	p[noKey] = "x"
	return p
}

var modifyRules = []Rule{
	{
		ID: "controller.modify.idempotent", Level: Must, Spec: "ControllerModifyVolume",
		Title: "parameters can be set, and set again to the same",
		Why:   "external-resizer retries the call until it receives OK.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			v := c.volume()
			for range 2 {
				send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(c.run.cfg.MutableParameters)).ok()
			}
		},
	},
	{
		ID: "controller.modify.one-by-one", Level: Must, Spec: "ControllerModifyVolume",
		Title: "each of several parameters can be set without the others",
		Why:   "Only what is named is changed; what is absent means nothing.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			v := c.volume()
			for k, value := range c.run.cfg.MutableParameters {
				send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(map[string]string{k: value})).ok()
			}
		},
	},
	{
		ID: "controller.modify.volume-missing", Level: Must, Spec: "ControllerModifyVolume",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "With this code the CO does not retry.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(c.run.cfg.MutableParameters)).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.modify.unknown-key", Level: Must, Spec: "ControllerModifyVolume",
		Title: "a parameter that the driver does not know is INVALID_ARGUMENT",
		Why:   "OK would make Kubernetes report that the VolumeAttributesClass is in force.",
		Needs: needs(createVolume, modifyVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(withUnknown(nil))).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.modify.no-parameters", Level: Must, Spec: "ControllerModifyVolume",
		Title: "ControllerModifyVolume without mutable_parameters is INVALID_ARGUMENT, or changes nothing",
		Why:   "The field is required. csi-sanity v5.6.0 leaves it out, and takes the RPC for broken unless it is OK: that is accepted, too.",
		Needs: needs(createVolume, modifyVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(nil)).wants(codes.InvalidArgument, codes.OK)
			if a := send(c, c.Controller.CreateVolume, v.made); a.ok().GetVolume().GetVolumeId() != v.id {
				a.wrong("volume_id %q: the volume is as it was made", v.id)
			}
		},
	},
	{
		ID: "controller.modify.all-or-nothing", Level: Must, Spec: "ControllerModifyVolume",
		Title: "a parameter that is not known among good ones is INVALID_ARGUMENT, and the volume is as it was",
		Why: "Nothing may be applied when the call fails: external-resizer goes back to the old class and believes it in force. " +
			"What the volume has shows as far as CreateVolume compares it.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			v := c.volume()
			send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(withUnknown(c.run.cfg.MutableParameters))).wants(codes.InvalidArgument)
			if a := send(c, c.Controller.CreateVolume, v.made); a.ok().GetVolume().GetVolumeId() != v.id {
				a.wrong("volume_id %q: the volume is as it was made", v.id)
			}
		},
	},
	{
		ID: "controller.modify.at-create", Level: Must, Spec: "CreateVolume",
		Title: "CreateVolume takes mutable_parameters, and returns the same volume to a retry",
		Why:   "A claim names its VolumeAttributesClass from the beginning.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			v := c.volume(c.mutated)
			if a := send(c, c.Controller.CreateVolume, v.made); a.ok().GetVolume().GetVolumeId() != v.id {
				a.wrong("volume_id %q, as the first time", v.id)
			}
		},
	},
	{
		ID: "controller.modify.unknown-at-create", Level: Must, Spec: "CreateVolume",
		Title: "CreateVolume with a mutable parameter that the driver does not know is INVALID_ARGUMENT",
		Why:   "OK would make Kubernetes report that the VolumeAttributesClass is in force.",
		Needs: needs(createVolume, modifyVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.MutableParameters = withUnknown(c.run.cfg.MutableParameters)
			send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.modify.overrides-parameters", Level: Must, Spec: "CreateVolume",
		Title: "mutable_parameters go before the parameters of the same key",
		Why:   "The StorageClass has the default, and the VolumeAttributesClass what the user chose.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			plain := c.createRequest()
			if plain.Parameters == nil {
				plain.Parameters = map[string]string{}
			}
			maps.Copy(plain.Parameters, c.run.cfg.MutableParameters)
			if send(c, c.Controller.CreateVolume, plain).is(codes.InvalidArgument) {
				c.excuse("the driver does not take them as parameters")
			}
			req := c.createRequest()
			req.Parameters, req.MutableParameters = maps.Clone(plain.GetParameters()), c.run.cfg.MutableParameters
			for k := range c.run.cfg.MutableParameters {
				req.Parameters[k] = "csicheck-overridden"
			}
			send(c, c.Controller.CreateVolume, req).ok()
		},
	},
}

func (c *ruleRun) mutated(_ *ruleRun, r *csi.CreateVolumeRequest) {
	r.MutableParameters = maps.Clone(c.run.cfg.MutableParameters)
}
