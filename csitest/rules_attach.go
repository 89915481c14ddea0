package csitest

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

var attachRules = []Rule{
	{
		ID: "controller.publish.idempotent", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume that is published to the node already is published again with OK",
		Why:   "external-attacher retries the call at every restart.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			send(c, c.Controller.ControllerPublishVolume, v.attachRequest()).ok()
		},
	},
	{
		ID: "controller.publish.volume-missing", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "NOT_FOUND shows the operator what is wrong.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.id = c.unknownID()
			send(c, c.Controller.ControllerPublishVolume, v.attachRequest()).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.publish.node-missing", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a node that does not exist is NOT_FOUND, or INVALID_ARGUMENT if no node can have that ID",
		Why:   "A volume that is published to a node that does not exist stays published: no node unpublishes it.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			req := c.volume().attachRequest()
			req.NodeId = c.name()
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.NotFound, codes.InvalidArgument)
		},
	},
	{
		ID: "controller.publish.readonly-changed", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume that is published to the node with another readonly is ALREADY_EXISTS",
		Why:   "OK would let the CO believe that the volume is now read-only, or writable.",
		Needs: needs(createVolume, attachVolume, attachReadonly),
		check: func(c *ruleRun) {
			req := c.volume().attach().attachRequest()
			req.Readonly = true
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.AlreadyExists)
		},
	},
	{
		ID: "controller.publish.second-node", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume for one node that is published to another is FAILED_PRECONDITION",
		Why:   "Two nodes that mount one file system destroy it. This is the fence that keeps a slow node's pod from its successor's data.",
		Needs: needs(createVolume, attachVolume, secondNode),
		check: func(c *ruleRun) {
			v := c.volume(withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)).attach()
			req := proto.CloneOf(v.attachRequest())
			req.NodeId = c.run.target.SecondNode
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.FailedPrecondition)
			v.detach()
			send(c, c.Controller.ControllerPublishVolume, req).ok()
		},
	},
	{
		ID: "controller.unpublish.idempotent", Level: Must, Spec: "ControllerUnpublishVolume",
		Title: "a volume that is not published is unpublished with OK",
		Why:   "The CO retries the call until it receives OK, and keeps the VolumeAttachment until then.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			send(c, c.Controller.ControllerUnpublishVolume, v.detachRequest()).ok()
			v.attach()
			send(c, c.Controller.ControllerUnpublishVolume, v.detachRequest()).ok()
			send(c, c.Controller.ControllerUnpublishVolume, v.detachRequest()).ok()
		},
	},
	{
		ID: "controller.unpublish.every-node", Level: Must, Spec: "ControllerUnpublishVolume",
		Title: "ControllerUnpublishVolume without node_id unpublishes from every node",
		Why:   "A CO does this for a volume whose nodes it no longer knows. Afterwards the volume can be published with other arguments.",
		Needs: needs(createVolume, attachVolume, attachReadonly),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			req := v.detachRequest()
			req.NodeId = ""
			send(c, c.Controller.ControllerUnpublishVolume, req).ok()
			again := v.attachRequest()
			again.Readonly = true // ALREADY_EXISTS if it is still published
			send(c, c.Controller.ControllerPublishVolume, again).ok()
		},
	},
	{
		ID: "controller.unpublish.volume-missing", Level: Should, Spec: "ControllerUnpublishVolume",
		Title: "a volume that does not exist any more is unpublished with OK",
		Why:   "external-attacher keeps the VolumeAttachment, and the node its finalizer, until it receives OK.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			send(c, c.Controller.ControllerUnpublishVolume, v.detachRequest()).ok()
		},
	},
}
