package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var (
	volumeHealth     = controllerCap(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH)
	listVolumeHealth = controllerCap(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
)

// listHealth reads all pages.
func (c *ruleRun) listHealth(n int32) (all []*csi.VolumeHealth) {
	req := &csi.ControllerListVolumeHealthRequest{MaxEntries: n}
	seen := pages{}
	for {
		a := send(c, c.Controller.ControllerListVolumeHealth, req)
		all = append(all, a.ok().GetEntries()...)
		if n > 0 && len(a.Resp.GetEntries()) > int(n) {
			a.wrong("at most %d entries", n)
		}
		seen.again(a.Call, a.wrong)
		if req.StartingToken = a.Resp.GetNextToken(); req.StartingToken == "" {
			return all
		}
	}
}

var healthRules = []Rule{
	{
		ID: "controller.health.get", Level: Must, Spec: "ControllerGetVolumeHealth",
		Title: "the health is that of the requested volume",
		Why:   "The monitor writes it to the claim.",
		Needs: needs(createVolume, volumeHealth),
		check: func(c *ruleRun) {
			v := c.volume()
			a := send(c, c.Controller.ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{VolumeId: v.id})
			if a.ok().GetVolumeHealth().GetVolumeId() != v.id {
				a.wrong("volume_health.volume_id %q", v.id)
			}
		},
	},
	{
		ID: "controller.health.healthy", Level: Should, Spec: "ControllerGetVolumeHealth",
		Title: "a new volume has no problem",
		Why:   "A permanent alarm is ignored.",
		Needs: needs(createVolume, volumeHealth),
		check: func(c *ruleRun) {
			a := send(c, c.Controller.ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{VolumeId: c.volume().id})
			if len(a.ok().GetVolumeHealth().GetHealthStatuses()) > 0 {
				a.wrong("no statuses")
			}
		},
	},
	{
		ID: "controller.health.volume-missing", Level: Must, Spec: "ControllerGetVolumeHealth",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "The monitor would read OK as healthy.",
		Needs: needs(createVolume, volumeHealth),
		check: func(c *ruleRun) {
			send(c, c.Controller.ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{VolumeId: c.unknownID()}).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.health.required-fields", Level: Must, Spec: "ControllerGetVolumeHealth",
		Title: "ControllerGetVolumeHealth without volume_id is INVALID_ARGUMENT",
		Why:   "The CO learns from INVALID_ARGUMENT that the request itself is wrong and must change.",
		Needs: needs(volumeHealth),
		check: func(c *ruleRun) {
			send(c, c.Controller.ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{}).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.health.list-agrees", Level: Must, Spec: "ControllerListVolumeHealth",
		Title: "the list and ControllerGetVolumeHealth agree about a volume",
		Why:   "Two answers about one volume, of which one is wrong. Volumes without a problem may be left out.",
		Needs: needs(createVolume, volumeHealth, listVolumeHealth),
		check: func(c *ruleRun) {
			v := c.volume()
			for _, h := range c.listHealth(0) {
				if h.GetVolumeId() != v.id {
					continue
				}
				a := send(c, c.Controller.ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{VolumeId: v.id})
				if !proto.Equal(a.ok().GetVolumeHealth(), h) {
					a.wrong("%s, as in the list", requestJSON(h))
				}
			}
		},
	},
	{
		ID: "controller.health.list-pages", Level: Must, Spec: "ControllerListVolumeHealth",
		Title: "pages have at most max_entries, and no volume is on two",
		Why:   "The CO has allocated room for so many.",
		Needs: needs(createVolume, listVolumeHealth),
		check: func(c *ruleRun) {
			c.volume()
			c.volume()
			seen := map[string]bool{}
			for _, h := range c.listHealth(1) {
				if seen[h.GetVolumeId()] {
					c.fail("each volume once", "%s is there twice", h.GetVolumeId())
				}
				seen[h.GetVolumeId()] = true
			}
		},
	},
	{
		ID: "controller.health.list-deleted", Level: Must, Spec: "ControllerListVolumeHealth",
		Title: "a volume that was deleted is not in the list",
		Why:   "An alarm about a volume that no longer exists stays forever.",
		Needs: needs(createVolume, listVolumeHealth),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			c.eventually(func() {
				for _, h := range c.listHealth(0) {
					if h.GetVolumeId() == v.id {
						c.fail("no deleted volume in the list", "%s", requestJSON(h))
					}
				}
			})
		},
	},
	{
		ID: "controller.health.list-bad-token", Level: Must, Spec: "ControllerListVolumeHealth",
		Title: "a starting_token that the driver never returned is ABORTED",
		Why:   "ABORTED makes the CO start again from the beginning. OK would show it a part of the list as the whole.",
		Needs: needs(listVolumeHealth),
		check: func(c *ruleRun) {
			send(c, c.Controller.ControllerListVolumeHealth, &csi.ControllerListVolumeHealthRequest{StartingToken: "no-token-of-this-driver"}).wants(codes.Aborted)
		},
	},
	{
		ID: "controller.health.list-negative-max", Level: Must, Spec: "ControllerListVolumeHealth",
		Title: "a negative max_entries is INVALID_ARGUMENT",
		Why:   "The field must not be negative. A driver that converts it asks its backend for 4 billion entries.",
		Needs: needs(listVolumeHealth),
		check: func(c *ruleRun) {
			send(c, c.Controller.ControllerListVolumeHealth, &csi.ControllerListVolumeHealthRequest{MaxEntries: -1}).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "node.health.get", Level: Must, Spec: "NodeGetVolumeHealth",
		Title: "the health is that of the requested volume, with and without the paths at which it is",
		Why:   "kubelet reports it as an event of the pod that uses the volume. Both paths are optional.",
		Needs: needs(createVolume, nodeService, nodeVolumeHealth),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			requests := []*csi.NodeGetVolumeHealthRequest{v.healthRequest("a"), {VolumeId: v.id}}
			if c.has(stageVolume) {
				requests = append(requests, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, StagingTargetPath: v.stagingPath()})
			}
			for _, req := range requests {
				if a := send(c, c.Node.NodeGetVolumeHealth, req); a.ok().GetVolumeHealth().GetVolumeId() != v.id {
					a.wrong("volume_health.volume_id %q", v.id)
				}
			}
		},
	},
	{
		ID: "node.health.volume-missing", Level: Must, Spec: "NodeGetVolumeHealth",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "OK would be read as healthy.",
		Needs: needs(createVolume, nodeService, nodeVolumeHealth),
		check: func(c *ruleRun) {
			send(c, c.Node.NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{VolumeId: c.unknownID()}).wants(codes.NotFound)
		},
	},
}
