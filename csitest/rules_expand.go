package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
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
}
