package csitest

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var (
	onlineExpansion = Need{Text: "plugin.VolumeExpansion.ONLINE", met: func(r *run) bool {
		return slices.Contains(r.has.Expansion, csi.PluginCapability_VolumeExpansion_ONLINE)
	}}
	offlineExpansionOnly = Need{Text: "plugin.VolumeExpansion.OFFLINE and not ONLINE", met: func(r *run) bool {
		return slices.Contains(r.has.Expansion, csi.PluginCapability_VolumeExpansion_OFFLINE) && !onlineExpansion.met(r)
	}}
)

var expandRules = []Rule{
	{
		ID: "controller.expand.grows", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a volume grows to required_bytes, and a retry is OK",
		Why:   "external-resizer retries the call until OK, and records the capacity that is returned.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v, want := c.volume(), 2*c.run.cfg.Size
			for range 2 {
				a := send(c, c.Controller.ControllerExpandVolume, v.expandRequest(want))
				if a.ok().GetCapacityBytes() < want {
					a.wrong("capacity_bytes of %d at least", want)
				}
			}
		},
	},
	{
		ID: "controller.expand.capability-optional", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a volume grows without volume_capability in the request",
		Why:   "The field is OPTIONAL: a CO that does not know how the volume is used leaves it out.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v, want := c.volume(), 2*c.run.cfg.Size
			req := v.expandRequest(want)
			req.VolumeCapability = nil
			a := send(c, c.Controller.ControllerExpandVolume, req)
			if a.ok().GetCapacityBytes() < want {
				a.wrong("capacity_bytes of %d at least", want)
			}
		},
	},
	{
		ID: "controller.expand.never-shrinks", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a volume that is larger than required_bytes stays as it is, with OK",
		Why:   "A file system that is larger than its device is lost.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			a := send(c, c.Controller.ControllerExpandVolume, v.expandRequest(c.run.cfg.Size/2))
			if got := a.ok().GetCapacityBytes(); got < v.created.GetCapacityBytes() {
				a.wrong("capacity_bytes of %d at least, which it had before", v.created.GetCapacityBytes())
			}
		},
	},
	{
		ID: "controller.expand.volume-missing", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "external-resizer treats NOT_FOUND as infeasible and retries rarely.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			send(c, c.Controller.ControllerExpandVolume, v.expandRequest(2*c.run.cfg.Size)).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.expand.bad-range", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a range that is negative, empty or inverted is refused, and the volume stays as it is",
		Why:   "Neither end may be negative, one must not be zero, and no volume is larger than its limit.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			for _, r := range []*csi.CapacityRange{
				{RequiredBytes: -1}, {}, {RequiredBytes: 2 * c.run.cfg.Size, LimitBytes: 2*c.run.cfg.Size - 1},
			} {
				req := v.expandRequest(0)
				req.CapacityRange = r
				send(c, c.Controller.ControllerExpandVolume, req).wants(codes.InvalidArgument, codes.OutOfRange)
			}
			if again := send(c, c.Controller.CreateVolume, v.made); again.ok().GetVolume().GetCapacityBytes() != v.created.GetCapacityBytes() {
				again.wrong("capacity_bytes %d as before", v.created.GetCapacityBytes())
			}
		},
	},
	{
		ID: "controller.expand.online", Level: Must, Spec: "GetPluginCapabilities",
		Title: "a plugin with ONLINE expansion expands a volume while it is published",
		Why:   "external-resizer does not wait for the pod to end when the plugin reports ONLINE.",
		Needs: needs(createVolume, expandVolume, onlineExpansion),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			if c.has(nodeService) {
				v.stage().publish("a")
			}
			want := 2 * max(c.run.cfg.Size, v.created.GetCapacityBytes())
			a := send(c, c.Controller.ControllerExpandVolume, v.expandRequest(want))
			if a.is(codes.Aborted, codes.Unavailable, codes.DeadlineExceeded) {
				step(c, c.Controller.ControllerExpandVolume, v.expandRequest(want))
				return
			}
			if a.ok().GetCapacityBytes() < want {
				a.wrong("capacity_bytes of %d at least", want)
			}
		},
	},
	{
		ID: "controller.expand.offline", Level: Must, Spec: "GetPluginCapabilities",
		Title: "a plugin with only OFFLINE expansion refuses to expand a volume that is published: FAILED_PRECONDITION",
		Why:   "OFFLINE says that the volume must not be in use. The file system that is mounted would be larger than it knows, or damaged.",
		Needs: needs(createVolume, expandVolume, attachVolume, offlineExpansionOnly),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			req := v.expandRequest(2 * max(c.run.cfg.Size, v.created.GetCapacityBytes()))
			send(c, c.Controller.ControllerExpandVolume, req).wants(codes.FailedPrecondition)
			v.detach()
			step(c, c.Controller.ControllerExpandVolume, req)
		},
	},
}
