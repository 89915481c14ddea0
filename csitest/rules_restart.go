package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var restartRules = []Rule{
	{
		ID: "restart.volumes-kept", Level: Must, Spec: "CreateVolume",
		Title: "a volume is still the same after the driver was killed",
		Why:   "A driver that has its volumes in memory alone loses them with the process, and makes others for the same names.",
		Needs: needs(createVolume, restartable),
		check: func(c *Case) {
			v := c.volume()
			c.restart()
			if a := send(c, c.Controller.CreateVolume, v.made); a.ok().GetVolume().GetVolumeId() != v.id {
				a.wrong("volume_id %q, as before kill -9", v.id)
			}
		},
	},
	{
		ID: "restart.attachments-kept", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume is still published to its node after the driver was killed",
		Why:   "A driver that forgets where a volume is publishes it to the next node that asks, and two nodes write.",
		Needs: needs(createVolume, attachVolume, attachReadonly, restartable),
		check: func(c *Case) {
			v := c.volume().attach()
			c.restart()
			req := v.attachRequest()
			req.Readonly = true // OK if it was forgotten
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.AlreadyExists)
			send(c, c.Controller.ControllerPublishVolume, v.attachRequest()).ok()
		},
	},
	{
		ID: "restart.node-goes-on", Level: Must, Spec: "NodePublishVolume",
		Title: "after a kill staged and published volumes are staged and published again with OK, and come down",
		Why:   "Drivers are killed by upgrades and by the kernel. kubelet knows nothing of it and goes on where it was.",
		Needs: needs(createVolume, nodeService, restartable),
		check: func(c *Case) {
			v := c.volume().up("a")
			c.restart()
			if c.has(stageVolume) {
				send(c, c.Node.NodeStageVolume, v.stageRequest()).ok()
			}
			send(c, c.Node.NodePublishVolume, v.publishRequest("a")).ok()
			c.restart()
			send(c, c.Node.NodeUnpublishVolume, v.unpublishRequest("a")).ok()
			if c.has(stageVolume) {
				send(c, c.Node.NodeUnstageVolume, v.unstageRequest()).ok()
			}
		},
	},
	{
		ID: "restart.snapshots-kept", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot is still the same after the driver was killed",
		Why:   "A driver that has its snapshots in memory alone loses the backups with the process.",
		Needs: needs(createVolume, createSnapshot, restartable),
		check: func(c *Case) {
			v := c.volume()
			s := v.snapshot()
			c.restart()
			v.c.volume(from(&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshotId()},
			}}))
		},
	},
}
