package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var rangeRules = []Rule{
	{
		ID: "controller.create.no-range", Level: Must, Spec: "CreateVolume",
		Title: "a volume is created without capacity_range",
		Why:   "The field is optional; the plugin chooses the size.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.CapacityRange = nil
			send(c, c.Controller.CreateVolume, req).ok()
		},
	},
	{
		ID: "controller.create.too-small", Level: Must, Spec: "CreateVolume",
		Title: "a limit below the smallest volume of the driver is OUT_OF_RANGE",
		Why:   "OUT_OF_RANGE means that the size has to change. A larger volume breaks the limit, and any other code is retried.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.CapacityRange = &csi.CapacityRange{LimitBytes: 1}
			a := send(c, c.Controller.CreateVolume, req)
			a.wants(codes.OK, codes.OutOfRange)
			if a.Resp.GetVolume().GetCapacityBytes() > 1 {
				a.wrong("capacity_bytes 1, or OUT_OF_RANGE")
			}
		},
	},
	{
		ID: "controller.create.too-large", Level: Must, Spec: "CreateVolume",
		Title: "a size beyond all storage is OUT_OF_RANGE",
		Why: "OUT_OF_RANGE shows the user that the claim is wrong, RESOURCE_EXHAUSTED that there is no room now. INTERNAL, as after an " +
			"overflow, explains nothing.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			for _, size := range []int64{1 << 62, 1<<63 - 1} { // rounding up must not overflow
				req := c.createRequest()
				req.CapacityRange = &csi.CapacityRange{RequiredBytes: size}
				a := send(c, c.Controller.CreateVolume, req)
				a.wants(codes.OK, codes.OutOfRange, codes.ResourceExhausted)
				if got := a.Resp.GetVolume().GetCapacityBytes(); a.Err == nil && got != 0 && got < size {
					a.wrong("capacity_bytes of %d at least, or OUT_OF_RANGE", size)
				}
			}
		},
	},
	{
		ID: "controller.create.existing-compatible", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume whose size suits is OK",
		Why:   "The existing volume is compatible with the requested range, which is what idempotency demands.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			size := v.created.GetCapacityBytes()
			if size == 0 {
				c.excuse("CreateVolume does not return capacity_bytes")
			}
			for _, r := range []*csi.CapacityRange{{RequiredBytes: size, LimitBytes: size}, {RequiredBytes: max(1, size-1), LimitBytes: size + 1}, {LimitBytes: 2 * size}, nil} {
				req := proto.CloneOf(v.made)
				req.CapacityRange = r
				if a := send(c, c.Controller.CreateVolume, req); a.ok().GetVolume().GetVolumeId() != v.id {
					a.wrong("volume_id %q: the volume has %d bytes", v.id, size)
				}
			}
		},
	},
	{
		ID: "controller.create.conflict-limit", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume above limit_bytes is ALREADY_EXISTS",
		Why:   "With OK the CO would get a volume that is larger than it may be.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			if v.created.GetCapacityBytes() < 2 {
				c.excuse("CreateVolume does not return capacity_bytes")
			}
			req := proto.CloneOf(v.made)
			req.CapacityRange = &csi.CapacityRange{LimitBytes: v.created.GetCapacityBytes() - 1}
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists, codes.OutOfRange)
		},
	},
	{
		ID: "controller.expand.in-range", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a volume grows to required_bytes at least and limit_bytes at most",
		Why:   "limit_bytes is a quota. OUT_OF_RANGE is the answer of a driver that cannot stay within the limit.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v, size := c.volume(), 2*c.run.cfg.Size
			for _, r := range []*csi.CapacityRange{{RequiredBytes: size, LimitBytes: size}, {RequiredBytes: size + 1, LimitBytes: size + 2}} {
				req := v.expandRequest(0)
				req.CapacityRange = r
				a := send(c, c.Controller.ControllerExpandVolume, req)
				a.wants(codes.OK, codes.OutOfRange)
				if got := a.Resp.GetCapacityBytes(); a.Err == nil && (got < r.RequiredBytes || got > r.LimitBytes) {
					a.wrong("capacity_bytes from %d to %d, or OUT_OF_RANGE", r.RequiredBytes, r.LimitBytes)
				}
			}
		},
	},
	{
		ID: "controller.expand.limit-below-size", Level: Must, Spec: "ControllerExpandVolume",
		// Two sentences meet: the volume "MUST not be bigger than" limit_bytes, and one "already larger
		// than or equal to the target capacity" SHOULD be OK. Neither allows it to shrink, nor to be
		// reported as smaller than it is.
		Title: "a volume that is larger than limit_bytes stays as it is: OUT_OF_RANGE, or OK with its size",
		Why:   "It must not shrink: the file system would lose its end. The CO that reads the capacity sees that it is above the limit.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			if v.created.GetCapacityBytes() < 2 {
				c.excuse("CreateVolume does not return capacity_bytes")
			}
			req := v.expandRequest(0)
			req.CapacityRange = &csi.CapacityRange{LimitBytes: v.created.GetCapacityBytes() - 1}
			a := send(c, c.Controller.ControllerExpandVolume, req)
			a.wants(codes.OK, codes.OutOfRange, codes.InvalidArgument)
			if a.Err == nil && a.Resp.GetCapacityBytes() < v.created.GetCapacityBytes() {
				a.wrong("capacity_bytes of %d at least, which it has, or OUT_OF_RANGE", v.created.GetCapacityBytes())
			}
		},
	},
	{
		ID: "controller.expand.too-large", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a size beyond all storage is OUT_OF_RANGE, and the volume stays as it is",
		Why:   "external-resizer treats OUT_OF_RANGE as infeasible and lets the user ask for less.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			for _, size := range []int64{1 << 62, 1<<63 - 1} {
				a := send(c, c.Controller.ControllerExpandVolume, v.expandRequest(size))
				if a.Err == nil && a.Resp.GetCapacityBytes() >= size {
					c.excuse("the driver has room for %d bytes", size)
				}
				a.wants(codes.OutOfRange, codes.ResourceExhausted)
			}
			if again := send(c, c.Controller.CreateVolume, v.made); again.ok().GetVolume().GetCapacityBytes() != v.created.GetCapacityBytes() {
				again.wrong("capacity_bytes %d as before", v.created.GetCapacityBytes())
			}
		},
	},
	{
		ID: "controller.expand.after-later", Level: Must, Spec: "ControllerExpandVolume",
		Title: "a delayed retry of an earlier, smaller expansion leaves the volume as large as it is",
		Why:   "Calls that timed out may arrive after those that came later. The answer has the actual size.",
		Needs: needs(createVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			first, second := v.expandRequest(2*c.run.cfg.Size), v.expandRequest(3*c.run.cfg.Size)
			step(c, c.Controller.ControllerExpandVolume, first)
			size := step(c, c.Controller.ControllerExpandVolume, second).GetCapacityBytes()
			if a := send(c, c.Controller.ControllerExpandVolume, first); a.ok().GetCapacityBytes() < size {
				a.wrong("capacity_bytes %d, which the volume had already", size)
			}
		},
	},
}
