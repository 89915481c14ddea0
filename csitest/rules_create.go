package csitest

import (
	"crypto/rand"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// kubernetesPrefix begins the keys of parameters that are Kubernetes' own.
const kubernetesPrefix = "csi.storage.k8s.io/"

var createRules = []Rule{
	{
		ID: "controller.create.idempotent", Level: Must, Spec: "CreateVolume",
		Title: "the same request again returns the same volume",
		Why:   "The CO retries CreateVolume with the same name after a timeout or a crash. A second volume would be orphaned.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			a := send(c, c.Controller.CreateVolume, v.made)
			if got := a.ok().GetVolume(); got.GetVolumeId() != v.id || got.GetCapacityBytes() != v.created.GetCapacityBytes() {
				a.wrong("volume_id %q and capacity_bytes %d, as the first time", v.id, v.created.GetCapacityBytes())
			}
		},
	},
	{
		ID: "controller.create.conflict-capacity", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume of another size is ALREADY_EXISTS",
		Why:   "With OK the CO would get a volume that is not what it asked for.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			if v.created.GetCapacityBytes() == 0 { // "the capacity of the volume is unknown": no range is incompatible
				c.excuse("CreateVolume does not return capacity_bytes")
			}
			req := proto.CloneOf(v.made)
			req.CapacityRange = &csi.CapacityRange{RequiredBytes: 2*max(c.run.cfg.Size, v.created.GetCapacityBytes()) + 1}
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists)
		},
	},
	{
		ID: "controller.create.conflict-access-type", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume that cannot be used as requested is ALREADY_EXISTS",
		Why: "A volume with a file system and a raw block volume under one name are different volumes, unless every volume of the driver can be used as both. " +
			"Whether it can is asked with ValidateVolumeCapabilities.",
		Needs: needs(createVolume, mountAccess, blockAccess),
		check: func(c *ruleRun) {
			v := c.volume()
			other := v.validateRequest()
			other.VolumeCapabilities = []*csi.VolumeCapability{blockCapability(c.run)}
			if send(c, c.Controller.ValidateVolumeCapabilities, other).ok().GetConfirmed() != nil {
				c.excuse("a volume with a file system can be used as raw block as well")
			}
			req := proto.CloneOf(v.made)
			req.VolumeCapabilities = other.VolumeCapabilities
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists)
		},
	},
	{
		ID: "controller.create.capacity-in-range", Level: Must, Spec: "CreateVolume",
		Title: "a volume is at least required_bytes and at most limit_bytes large",
		Why:   "limit_bytes is a quota, or what a snapshot's size allows. OUT_OF_RANGE is the answer of a driver that cannot stay within the limit.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			for _, r := range []*csi.CapacityRange{
				{RequiredBytes: c.run.cfg.Size, LimitBytes: c.run.cfg.Size},
				{RequiredBytes: c.run.cfg.Size + 1, LimitBytes: c.run.cfg.Size + 2},
				{LimitBytes: c.run.cfg.Size},
			} {
				req := c.createRequest()
				req.CapacityRange = r
				a := send(c, c.Controller.CreateVolume, req)
				a.wants(codes.OK, codes.OutOfRange)
				got := a.Resp.GetVolume().GetCapacityBytes()
				if a.Err == nil && got != 0 && (got < r.RequiredBytes || got > r.LimitBytes) {
					a.wrong("capacity_bytes from %d to %d, 0 for unknown, or OUT_OF_RANGE", r.RequiredBytes, r.LimitBytes)
				}
			}
		},
	},
	{
		ID: "controller.create.bad-range", Level: Must, Spec: "CapacityRange",
		Title: "a range that is negative, empty or inverted is refused",
		Why:   "Neither end may be negative, one must not be zero, and no volume is larger than its limit. The driver must not guess what was meant.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			for _, r := range []*csi.CapacityRange{
				{RequiredBytes: -1},
				{RequiredBytes: c.run.cfg.Size, LimitBytes: -1},
				{},
				{RequiredBytes: c.run.cfg.Size, LimitBytes: c.run.cfg.Size - 1},
			} {
				req := c.createRequest()
				req.CapacityRange = r
				send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument, codes.OutOfRange)
			}
		},
	},
	{
		ID: "controller.create.name-too-long", Level: Must, Spec: "Size Limits",
		Title: "a name of more than 128 bytes is INVALID_ARGUMENT",
		Why:   "A driver that truncates names confuses two volumes.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.Name += strings.Repeat("x", 129-len(req.Name))
			send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.create.name-any-unicode", Level: Must, Spec: "CreateVolume",
		Title: "a name may hold any Unicode of up to 128 bytes but control characters",
		Why:   "The CO chooses names. A driver whose storage allows less has to encode them, and may neither refuse nor confuse them.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			ids := map[string]string{}
			// A driver that uses them in a shell must not do harm elsewhere: what follows the space is
			// no other file's name, and no ASCII white space is last, before what the driver appends.
			word := "csicheck-" + strings.ToLower(rand.Text()[:6])
			for _, tail := range []string{"ä " + word + "ß/..x\\'\"$%", "ä " + word + "ß/..x\\'\"$%\u00a0", "Ä " + word + "ß/..x\\'\"$%", "日本" + strings.Repeat("x", 40)} {
				req := c.createRequest()
				req.Name = c.run.cfg.Prefix + "-" + tail
				req.Name = req.Name[:min(128, len(req.Name))]
				a := send(c, c.Controller.CreateVolume, req)
				id := a.ok().GetVolume().GetVolumeId()
				if other, taken := ids[id]; taken {
					a.wrong("an ID other than that of the volume named %q", other)
				}
				ids[id] = req.Name
			}
		},
	},
	{
		ID: "controller.create.name-control-characters", Level: Must, Spec: "CreateVolume",
		Title: "a name with control characters is INVALID_ARGUMENT",
		Why:   "U+0000 to 0008, 000B, 000C, 000E to 001F and 007F to 009F are not allowed. They end C strings, forge log lines and confuse terminals.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			for _, bad := range []string{"\x00", "\x07", "\x1b[31m", "\x7f", "\u0085"} {
				req := c.createRequest()
				req.Name += bad
				send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument)
			}
		},
	},
	{
		ID: "controller.create.bad-capability", Level: Must, Spec: "VolumeCapability",
		Title: "a volume capability without access type or mode, or with an unknown mode, is INVALID_ARGUMENT",
		Why:   "An enum number that the driver does not know comes from a newer CO, and means something that the driver would not do.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			for _, change := range []func(*csi.VolumeCapability){
				func(v *csi.VolumeCapability) { v.AccessType = nil },
				func(v *csi.VolumeCapability) { v.AccessMode = nil },
				func(v *csi.VolumeCapability) { v.AccessMode.Mode = csi.VolumeCapability_AccessMode_UNKNOWN },
				func(v *csi.VolumeCapability) { v.AccessMode.Mode = unknownMode },
			} {
				req := c.createRequest()
				change(req.VolumeCapabilities[0])
				send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument)
			}
		},
	},
	{
		ID: "controller.create.several-capabilities", Level: Must, Spec: "CreateVolume",
		Title: "a volume with several capabilities has all of them, or is refused with INVALID_ARGUMENT",
		Why: "A claim with two access modes is created with a capability for each. " +
			"A driver that confirms both for a volume that has one of them can create it.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			reader := proto.CloneOf(v.capability())
			reader.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
			others := []*csi.VolumeCapability{reader}
			if c.has(mountAccess) && c.has(blockAccess) {
				others = append(others, blockCapability(c.run))
			}
			for _, other := range others {
				req, ask := c.createRequest(), v.validateRequest()
				req.VolumeCapabilities = append(req.VolumeCapabilities, other)
				ask.VolumeCapabilities = req.VolumeCapabilities
				a := send(c, c.Controller.CreateVolume, req)
				a.wants(codes.OK, codes.InvalidArgument, codes.OutOfRange)
				switch {
				case a.Err == nil:
					ask = c.volumeOf(req, a.Resp.GetVolume()).validateRequest()
					ask.VolumeCapabilities = req.VolumeCapabilities
					if b := send(c, c.Controller.ValidateVolumeCapabilities, ask); b.ok().GetConfirmed() == nil {
						b.wrong("confirmed: the volume was created with these capabilities")
					}
				case other == reader && send(c, c.Controller.ValidateVolumeCapabilities, ask).ok().GetConfirmed() != nil:
					a.wrong("OK: ValidateVolumeCapabilities confirms both for a volume that was created with the first")
				}
			}
		},
	},
	{
		ID: "controller.create.unsupported-fs-type", Level: Must, Spec: "Error Scheme",
		Title: "a file system that the driver does not support is INVALID_ARGUMENT",
		Why:   "A field that is not supported has this code: the CO repeats or misunderstands others. A driver that formats later may accept the name here.",
		Needs: needs(createVolume, mountAccess),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.VolumeCapabilities[0].GetMount().FsType = "csicheck-none"
			send(c, c.Controller.CreateVolume, req).wants(codes.OK, codes.InvalidArgument)
		},
	},
	{
		ID: "controller.create.snapshot-missing", Level: Must, Spec: "CreateVolume",
		Title: "a volume from a snapshot that does not exist is NOT_FOUND",
		Why:   "An empty volume in place of a restored one is data loss that goes unnoticed.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.VolumeContentSource = snapshotSource(c.name())
			send(c, c.Controller.CreateVolume, req).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.create.clone-missing", Level: Must, Spec: "CreateVolume",
		Title: "a clone of a volume that does not exist is NOT_FOUND",
		Why:   "An empty volume in place of a clone is data loss that goes unnoticed.",
		Needs: needs(createVolume, cloneVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.VolumeContentSource = volumeSource(c.unknownID())
			send(c, c.Controller.CreateVolume, req).wants(codes.NotFound)
		},
	},
	{
		// content_source is OPTIONAL in the specification, and the provisioner relies on it.
		ID: "controller.create.source-reported", Level: Should, Spec: "external-provisioner",
		Title: "a volume from a source names that source, also in the answer to a retry",
		Why:   "Kubernetes treats a volume without content_source as empty, deletes it and reports that the driver cannot clone.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			source := snapshotSource(c.volume().snapshot().GetSnapshotId())
			v := c.volume(from(source))
			for _, got := range []*csi.Volume{v.created, send(c, c.Controller.CreateVolume, v.made).ok().GetVolume()} {
				if !proto.Equal(got.GetContentSource(), source) {
					c.fail("content_source "+requestJSON(source), "%s", requestJSON(got))
				}
			}
		},
	},
	{
		ID: "controller.create.single-node-writer", Level: Must, Spec: "ControllerGetCapabilities",
		Title: "SINGLE_NODE_WRITER is accepted by a driver with SINGLE_NODE_MULTI_WRITER, by the controller and by the node",
		Why:   "A CO that does not know the newer access modes sends the older one, and so does Kubernetes for volumes that were created before.",
		Needs: needs(createVolume, controllerCap(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)),
		check: func(c *ruleRun) {
			req := c.createRequest()
			withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)(c, req)
			v := c.volumeOf(req, send(c, c.Controller.CreateVolume, req).ok().GetVolume())
			if v.attach(); c.has(nodeService) {
				v.stage()
				send(c, c.Node.NodePublishVolume, v.publishRequest("a")).ok()
			}
		},
	},
	{
		ID: "controller.create.kubernetes-parameters", Level: Should, Spec: "external-provisioner",
		Title: "parameters of Kubernetes are ignored: CreateVolume and CreateSnapshot with csi.storage.k8s.io/… are OK",
		Why:   "external-provisioner and csi-snapshotter with --extra-create-metadata add the names of the claim and the snapshot. A driver that refuses what it does not know creates nothing then.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			if req.Parameters == nil {
				req.Parameters = map[string]string{}
			}
			for _, key := range []string{"pvc/name", "pvc/namespace", "pv/name"} {
				req.Parameters[kubernetesPrefix+key] = c.name()
			}
			v := c.volumeOf(req, send(c, c.Controller.CreateVolume, req).ok().GetVolume())
			if c.has(createSnapshot) {
				snapshot := v.snapshotRequest()
				snapshot.Parameters = map[string]string{}
				for _, key := range []string{"volumesnapshot/name", "volumesnapshot/namespace", "volumesnapshotcontent/name"} {
					snapshot.Parameters[kubernetesPrefix+key] = c.name()
				}
				send(c, c.Controller.CreateSnapshot, snapshot).ok()
			}
		},
	},
}
