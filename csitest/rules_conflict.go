package csitest

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// modes are all the access modes, those of one node first.
var singleNodeModes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

var multiNodeModes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
}

// tryMode creates a volume of that access mode, or nil if the driver does not take it. A
// file system that several nodes share is not what every driver has: raw block is
// tried as well.
func (c *ruleRun) tryMode(mode csi.VolumeCapability_AccessMode_Mode) *volume {
	for _, kind := range []volumeOption{nil, block} {
		req := c.createRequest()
		if kind != nil {
			kind(c, req)
		}
		withMode(mode)(c, req)
		a := send(c, c.Controller.CreateVolume, req)
		if a.Err == nil || uncertain(a.Err) {
			return c.volumeOf(req, step(c, c.Controller.CreateVolume, req).GetVolume())
		}
	}
	return nil
}

// conflictRules are about requests for an object that exists with other properties.
var conflictRules = []Rule{
	{
		ID: "controller.create.conflict-parameters", Level: Must, Spec: "CreateVolume",
		Title: "a taken name with parameters that the driver refuses is not OK",
		Why:   "OK would let the CO believe that the volume has what the parameters ask for.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			bad := c.refusedParameters()
			v := c.volume()
			req := proto.CloneOf(v.made)
			req.Parameters = bad
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists, codes.InvalidArgument)
		},
	},
	{
		ID: "controller.create.conflict-source", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume from a source is ALREADY_EXISTS without that source",
		Why:   "With OK the CO would get a volume with data in place of an empty one.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume(from(snapshotSource(c.volume().snapshot().GetSnapshotId())))
			req := proto.CloneOf(v.made)
			req.VolumeContentSource = nil
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists)
		},
	},
	{
		ID: "controller.create.conflict-other-source", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume from another snapshot is ALREADY_EXISTS",
		Why:   "With OK the CO would get the data of another point in time.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			src := c.volume()
			v := c.volume(from(snapshotSource(src.snapshot().GetSnapshotId())))
			req := proto.CloneOf(v.made)
			req.VolumeContentSource = snapshotSource(src.snapshot().GetSnapshotId())
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists)
		},
	},
	{
		ID: "controller.create.conflict-access-mode", Level: Must, Spec: "CreateVolume",
		Title: "a taken name with an access mode that the volume does not have is not OK",
		Why:   "OK would let the CO publish the volume in a mode that it does not have. ValidateVolumeCapabilities is the call that checks for a mode.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume(withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER))
			for _, mode := range multiNodeModes {
				ask := v.validateRequest()
				ask.VolumeCapabilities[0].AccessMode.Mode = mode
				if a := send(c, c.Controller.ValidateVolumeCapabilities, ask); a.Err != nil || a.Resp.GetConfirmed() != nil {
					continue
				}
				req := proto.CloneOf(v.made)
				req.VolumeCapabilities = ask.GetVolumeCapabilities()
				send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists, codes.InvalidArgument)
				return
			}
			c.excuse("every volume has every access mode")
		},
	},
	{
		ID: "controller.create.name-reusable", Level: Must, Spec: "CreateVolume",
		Title: "the name of a deleted volume can be used again, also for another size",
		Why:   "A name that stays taken is an error that no user can repair.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			req := proto.CloneOf(v.made)
			req.CapacityRange = &csi.CapacityRange{RequiredBytes: 2 * c.run.cfg.Size}
			a := send(c, c.Controller.CreateVolume, req)
			if got := a.ok().GetVolume().GetCapacityBytes(); got != 0 && got < 2*c.run.cfg.Size {
				a.wrong("capacity_bytes of %d at least", 2*c.run.cfg.Size)
			}
		},
	},
	{
		ID: "controller.create.several", Level: Must, Spec: "CreateVolume",
		Title: "two names are two volumes, and the deletion of one keeps the other",
		Why:   "Two requests are the same if their names are.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			one, two := c.volume(), c.volume()
			if one.id == two.id {
				c.fail("two IDs for two names", "%s for both", one.id)
			}
			one.delete()
			send(c, c.Controller.ValidateVolumeCapabilities, two.validateRequest()).ok()
		},
	},
	{
		// volume_id "MUST contain enough information to uniquely identify this specific volume": with
		// another ID the successor is another volume. That an ID is used again is not forbidden.
		ID: "controller.delete.late", Level: Must, Spec: "DeleteVolume",
		Title: "a delayed retry of DeleteVolume does not delete the successor of that name, which has another ID",
		Why:   "A call that timed out may arrive late. The ID is of the volume that was deleted, and not of its successor.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			old := c.volume()
			old.delete()
			v := old.successor()
			send(c, c.Controller.DeleteVolume, old.deleteRequest()).wants(codes.OK, codes.FailedPrecondition)
			send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest()).ok()
		},
	},
	{
		ID: "controller.delete.create-after", Level: Must, Spec: "CreateVolume",
		Title: "a delayed retry of CreateVolume after DeleteVolume creates a volume, or fails; it does not return the deleted one",
		Why:   "With OK and the ID of a deleted volume the CO has a volume that cannot be used.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			a := send(c, c.Controller.CreateVolume, v.made)
			if a.Err != nil {
				return
			}
			again := c.volumeOf(v.made, a.Resp.GetVolume())
			send(c, c.Controller.ValidateVolumeCapabilities, again.validateRequest()).ok()
		},
	},
	{
		ID: "controller.unpublish.late", Level: Must, Spec: "ControllerUnpublishVolume",
		Title: "a delayed retry of ControllerUnpublishVolume does not unpublish the successor of that name, which has another ID",
		Why:   "A call that timed out may arrive late. The pod of the new volume would lose its disk.",
		Needs: needs(createVolume, attachVolume, attachReadonly),
		check: func(c *ruleRun) {
			old := c.volume().attach().detach()
			old.delete()
			v := old.successor().attach()
			send(c, c.Controller.ControllerUnpublishVolume, old.detachRequest()).wants(codes.OK, codes.NotFound)
			v.stillAttached()
		},
	},
	{
		ID: "controller.unpublish.other-node", Level: Must, Spec: "ControllerUnpublishVolume",
		Title: "ControllerUnpublishVolume from another node leaves the volume published where it is",
		Why:   "After a move the call for the old node may come late. The pod on the new one would lose its disk.",
		Needs: needs(createVolume, attachVolume, attachReadonly, secondNode),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			req := v.detachRequest()
			req.NodeId = c.run.target.SecondNode
			send(c, c.Controller.ControllerUnpublishVolume, req).ok()
			v.stillAttached()
		},
	},
	{
		// "If the volume […] or the node […] cannot be found by the Plugin and the volume can be safely
		// regarded as ControllerUnpublished from the node, the plugin SHOULD return OK": this one was
		// never published.
		ID: "controller.unpublish.node-missing", Level: Should, Spec: "ControllerUnpublishVolume",
		Title: "a volume is unpublished with OK from a node that does not exist, or with INVALID_ARGUMENT if no node can have that ID",
		Why: "Nodes are lost with their volumes published. Until OK the VolumeAttachment stays, and the volume cannot move. NOT_FOUND is for a " +
			"driver that cannot determine that the volume is safe.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			req := c.volume().detachRequest()
			req.NodeId = c.name()
			send(c, c.Controller.ControllerUnpublishVolume, req).wants(codes.OK, codes.InvalidArgument)
		},
	},
	{
		ID: "controller.publish.capability-changed", Level: Should, Spec: "ControllerPublishVolume",
		Title: "a volume that is published to the node with another access mode is ALREADY_EXISTS",
		Why:   "OK would let the CO believe that the volume is now published as it asked.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume(withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)).attach()
			req := v.attachRequest()
			req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.AlreadyExists, codes.InvalidArgument)
		},
	},
	{
		ID: "controller.publish.access-type", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume is not published with an access type that it does not have",
		Why:   "The node would format, or mount, what a database writes raw. ValidateVolumeCapabilities is the call that checks for a type.",
		Needs: needs(createVolume, attachVolume, mountAccess, blockAccess),
		check: func(c *ruleRun) {
			v := c.volume()
			ask := v.validateRequest()
			ask.VolumeCapabilities = []*csi.VolumeCapability{blockCapability(c.run)}
			if send(c, c.Controller.ValidateVolumeCapabilities, ask).ok().GetConfirmed() != nil {
				c.excuse("a volume with a file system can be used as raw block as well")
			}
			req := v.attachRequest()
			req.VolumeCapability = ask.GetVolumeCapabilities()[0]
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists)
		},
	},
	{
		ID: "controller.publish.context-compared", Level: Should, Spec: "ControllerPublishVolume",
		Title: "a volume_context that is not the volume's is refused",
		Why:   "It must match what CreateVolume returned. One that does not is of another volume, which the CO means.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			req := c.volume().attachRequest()
			if len(req.GetVolumeContext()) == 0 {
				c.excuse("CreateVolume returns no volume_context")
			}
			for k := range req.GetVolumeContext() {
				req.VolumeContext = map[string]string{k: "csicheck-other"}
			}
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition)
		},
	},
	{
		ID: "controller.publish.every-single-node-mode", Level: Must, Spec: "ControllerPublishVolume",
		Title: "every access mode of one node keeps a second node away: FAILED_PRECONDITION",
		Why:   "Two nodes that mount one file system destroy it. A reader that does not see what the writer caches reads stale or corrupt data.",
		Needs: needs(createVolume, attachVolume, secondNode),
		check: func(c *ruleRun) {
			for _, mode := range singleNodeModes {
				if v := c.tryMode(mode); v != nil {
					req := v.attach().attachRequest()
					req.NodeId = c.run.target.SecondNode
					send(c, c.Controller.ControllerPublishVolume, req).wants(codes.FailedPrecondition)
				}
			}
		},
	},
	{
		ID: "controller.publish.multi-node", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume of an access mode for several nodes is published to two",
		Why:   "The mode was accepted by CreateVolume; the second pod waits for it.",
		Needs: needs(createVolume, attachVolume, secondNode),
		check: func(c *ruleRun) {
			tried := false
			for _, mode := range multiNodeModes {
				v := c.tryMode(mode)
				if v == nil {
					continue
				}
				tried = true
				req := v.attach().attachRequest()
				req.NodeId = c.run.target.SecondNode
				req.Readonly = mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER && c.has(attachReadonly)
				step(c, c.Controller.ControllerPublishVolume, req)
				v.attach() // and still to the first
			}
			if !tried {
				c.excuse("the driver takes no access mode for several nodes")
			}
		},
	},
	{
		ID: "controller.publish.names-node", Level: Should, Spec: "ControllerPublishVolume",
		Title: "the error for a second node names the node that has the volume",
		Why:   "The message is an event of the pod that waits. Its owner wants to know for which node.",
		Needs: needs(createVolume, attachVolume, secondNode),
		check: func(c *ruleRun) {
			v := c.volume(withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)).attach()
			req := v.attachRequest()
			req.NodeId = c.run.target.SecondNode
			a := send(c, c.Controller.ControllerPublishVolume, req)
			if a.is(codes.FailedPrecondition) && !strings.Contains(a.Status.Message(), v.node) {
				a.wrong("a message with %q", v.node)
			}
		},
	},
	{
		ID: "controller.publish.attach-limit", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a node that has max_volumes_per_node volumes gets no other: RESOURCE_EXHAUSTED",
		Why:   "RESOURCE_EXHAUSTED makes the scheduler choose another node. With another code the call is retried on a full node.",
		Needs: needs(createVolume, attachVolume, nodeService),
		check: func(c *ruleRun) {
			const most = 32 // more would take too long
			limit := send(c, c.Node.NodeGetInfo, &csi.NodeGetInfoRequest{}).ok().GetMaxVolumesPerNode()
			if limit <= 0 || limit > most {
				c.excuse("max_volumes_per_node is not between 1 and %d", most)
			}
			for range limit { // fewer, if the node has others already
				a := send(c, c.Controller.ControllerPublishVolume, c.volume().attachRequest())
				if a.wants(codes.OK, codes.ResourceExhausted); a.Err != nil {
					return
				}
			}
			send(c, c.Controller.ControllerPublishVolume, c.volume().attachRequest()).wants(codes.ResourceExhausted)
		},
	},
	{
		// volume_context and parameters of Confirmed are those "validated by the plugin", and OPTIONAL: a
		// driver that leaves them out has not validated them.
		ID: "controller.validate.other-context", Level: Should, Spec: "ValidateVolumeCapabilities",
		Title: "a volume_context that is not the volume's is not confirmed",
		Why:   "The CO asks before it publishes a PersistentVolume that was written by hand. This is the only check of its context.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.volume().validateRequest()
			own := len(req.GetVolumeContext()) > 0
			for k := range req.GetVolumeContext() {
				req.VolumeContext = map[string]string{k: "csicheck-other"}
			}
			if !own {
				req.VolumeContext = map[string]string{noKey: "x"}
			}
			a := send(c, c.Controller.ValidateVolumeCapabilities, req)
			a.wants(codes.OK, codes.InvalidArgument)
			switch confirmed := a.Resp.GetConfirmed(); {
			case own && len(confirmed.GetVolumeContext()) > 0:
				a.wrong("OK without confirmed.volume_context, or INVALID_ARGUMENT")
			case len(confirmed.GetVolumeContext()) > 0:
				a.wrong("OK without confirmed.volume_context, or INVALID_ARGUMENT: CreateVolume returns no volume_context")
			}
		},
	},
	{
		ID: "controller.validate.bad-parameters", Level: Should, Spec: "ValidateVolumeCapabilities",
		Title: "parameters that CreateVolume refuses are not confirmed",
		Why:   "No volume has them. The CO expects exactly what is confirmed.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			bad := c.refusedParameters()
			req := c.volume().validateRequest()
			req.Parameters = bad
			a := send(c, c.Controller.ValidateVolumeCapabilities, req)
			a.wants(codes.OK, codes.InvalidArgument)
			if len(a.Resp.GetConfirmed().GetParameters()) > 0 {
				a.wrong("OK without confirmed.parameters, or INVALID_ARGUMENT")
			}
		},
	},
	{
		ID: "controller.validate.message", Level: Must, Spec: "ValidateVolumeCapabilities",
		Title: "the context and parameters of confirmed are those of the request",
		Why:   "The CO compares it with what it sent, and treats other values as unsupported.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.volume().validateRequest()
			a := send(c, c.Controller.ValidateVolumeCapabilities, req)
			got := a.ok().GetConfirmed()
			for _, pair := range [][2]map[string]string{{got.GetVolumeContext(), req.GetVolumeContext()}, {got.GetParameters(), req.GetParameters()}} {
				for k, v := range pair[0] {
					if sent, there := pair[1][k]; !there || sent != v {
						a.wrong("no %s=%s, which was not asked", k, v)
					}
				}
			}
		},
	},
}

// successor creates a volume under the name of one that is deleted. A driver whose IDs follow from
// names gives it the same ID, and cannot tell the two apart.
func (v *volume) successor() *volume {
	next := v.c.volumeOf(v.made, step(v.c, v.c.Controller.CreateVolume, v.made).GetVolume())
	if next.id == v.id {
		v.c.excuse("the volume_id of a name is used again")
	}
	return next
}

// stillAttached demands that the volume is published, writable, to its node: another
// readonly is ALREADY_EXISTS then, and not now OK.
func (v *volume) stillAttached() {
	req := v.attachRequest()
	req.Readonly = true
	send(v.c, v.c.Controller.ControllerPublishVolume, req).wants(codes.AlreadyExists)
	if v.c.has(listVolumes) && v.c.has(publishedNodes) {
		v.c.eventually(func() {
			if e := entryOf(v.c.list(0), v.id); !slices.Contains(e.GetStatus().GetPublishedNodeIds(), v.node) {
				v.c.fail("node "+v.node+" in published_node_ids", "%s", requestJSON(e))
			}
		})
	}
}
