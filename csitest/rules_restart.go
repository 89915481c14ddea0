package csitest

import (
	"context"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

var restartRules = []Rule{
	{
		ID: "restart.volumes-kept", Level: Must, Spec: "CreateVolume",
		Title: "a volume is still the same after the driver was killed",
		Why:   "A driver that keeps its volumes only in memory loses them with the process, and creates others for the same names.",
		Needs: needs(createVolume, restartable),
		check: func(c *ruleRun) {
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
		check: func(c *ruleRun) {
			v := c.volume().attach()
			c.restart()
			req := v.attachRequest()
			req.Readonly = true // OK if it was forgotten
			send(c, c.Controller.ControllerPublishVolume, req).wants(codes.AlreadyExists)
			send(c, c.Controller.ControllerPublishVolume, v.attachRequest()).ok()
		},
	},
	{
		ID: "restart.node-continues", Level: Must, Spec: "NodePublishVolume",
		Title: "after a kill, staged and published volumes can be staged and published again with OK, and be unpublished and unstaged",
		Why:   "Drivers are killed by upgrades and by the kernel. kubelet does not notice and continues where it was.",
		Needs: needs(createVolume, nodeService, restartable),
		check: func(c *ruleRun) {
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
		ID: "restart.publish-interrupted", Level: Must, Spec: "NodePublishVolume",
		Title: "NodeStageVolume and NodePublishVolume that a kill interrupted succeed when they are retried, and can be undone",
		Why: "An interrupted call leaves state that only the retry finds: a directory at the target, a mount without its record, a record without its mount. " +
			"The driver is killed at several points of each call.",
		Needs: needs(createVolume, nodeService, restartable), Timeout: 5 * time.Minute,
		check: func(c *ruleRun) {
			for _, after := range []time.Duration{0, 3 * time.Millisecond, 30 * time.Millisecond} {
				v := c.volume().attach()
				if c.has(stageVolume) {
					killedIn(c, after, c.Node.NodeStageVolume, v.stageRequest())
					v.stage()
				}
				killedIn(c, after, c.Node.NodePublishVolume, v.publishRequest("a"))
				v.publish("a")
				if n := len(v.mountsAtTarget("a")); n > 1 {
					c.fail("one mount at the target path", "%d", n)
				}
				v.unpublish("a")
				killedIn(c, after, c.Node.NodePublishVolume, v.publishRequest("b"))
				v.unpublish("b") // the pod is gone
				for _, pod := range []string{"a", "b"} {
					if info, err := os.Lstat(v.targetPath(pod)); err == nil {
						c.fail("nothing at the target path after NodeUnpublishVolume", "%v", orMode(info, err))
					}
				}
				v.unstage().detach().delete()
			}
		},
	},
	{
		ID: "restart.snapshots-kept", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot is still the same after the driver was killed",
		Why:   "A driver that keeps its snapshots only in memory loses the backups with the process.",
		Needs: needs(createVolume, createSnapshot, restartable),
		check: func(c *ruleRun) {
			v := c.volume()
			s := v.snapshot()
			c.restart()
			v.c.volume(from(&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshotId()},
			}}))
		},
	},
}

// killedIn kills the driver soon after a call has begun, and starts it again. The result of
// the call does not matter: the rule retries it, or undoes it.
func killedIn[Req, Resp any](c *ruleRun, after time.Duration, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		send(c, rpc, req)
	}()
	time.Sleep(after)
	c.restart()
	<-ended
}

// mountsAtTarget are those at a pod's target, as far as they are in sight.
func (v *volume) mountsAtTarget(pod string) []mount {
	if !v.c.has(kernelView) {
		return nil
	}
	return mountsAt(v.targetPath(pod))
}
