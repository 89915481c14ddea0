package csitest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var nodeRules = []Rule{
	{
		ID: "node.stage.idempotent", Level: Must, Spec: "NodeStageVolume",
		Title: "a volume that is staged already is staged again with OK",
		Why:   "kubelet stages and publishes everything again after its own restart.",
		Needs: needs(createVolume, stageVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			send(c, c.Node.NodeStageVolume, v.stageRequest()).ok()
		},
	},
	{
		ID: "node.stage.volume-missing", Level: Must, Spec: "NodeStageVolume",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "To stage what is not there is to mount something else.",
		Needs: needs(createVolume, stageVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			req := v.stageRequest()
			v.detach().delete()
			send(c, c.Node.NodeStageVolume, req).wants(codes.NotFound)
		},
	},
	{
		ID: "node.unstage.idempotent", Level: Must, Spec: "NodeUnstageVolume",
		Title: "a volume that is not staged is unstaged with OK",
		Why:   "kubelet retries the call forever; an error keeps the volume attached to the node.",
		Needs: needs(createVolume, stageVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			send(c, c.Node.NodeUnstageVolume, v.unstageRequest()).ok()
			v.stage()
			send(c, c.Node.NodeUnstageVolume, v.unstageRequest()).ok()
			send(c, c.Node.NodeUnstageVolume, v.unstageRequest()).ok()
		},
	},
	{
		ID: "node.publish.idempotent", Level: Must, Spec: "NodePublishVolume",
		Title: "a volume that is published at the path already is published again with OK",
		Why:   "kubelet publishes again after its own restart, and every minute for drivers that ask for it.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			send(c, c.Node.NodePublishVolume, v.publishRequest("a")).ok()
		},
	},
	{
		ID: "node.publish.volume-missing", Level: Must, Spec: "NodePublishVolume",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "A driver that publishes a volume that does not exist publishes something else.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			req := v.publishRequest("a")
			v.unstage().detach().delete()
			send(c, c.Node.NodePublishVolume, req).wants(codes.NotFound)
		},
	},
	{
		ID: "node.publish.staging-path-missing", Level: Must, Spec: "NodePublishVolume",
		Title: "NodePublishVolume without staging_target_path is FAILED_PRECONDITION for a driver that stages",
		Why:   "The field is required with STAGE_UNSTAGE_VOLUME, and with this code the CO stages first.",
		Needs: needs(createVolume, stageVolume),
		check: func(c *ruleRun) {
			req := c.volume().attach().stage().publishRequest("a")
			req.StagingTargetPath = ""
			send(c, c.Node.NodePublishVolume, req).wants(codes.FailedPrecondition)
		},
	},
	{
		ID: "node.publish.creates-target", Level: Must, Spec: "NodePublishVolume",
		Title: "NodePublishVolume creates the target path, as a directory for a file system",
		Why:   "kubelet creates only the parent directory.",
		Needs: needs(createVolume, nodeService, mountAccess),
		check: func(c *ruleRun) {
			v := c.volume()
			v.up("a")
			info, err := os.Stat(v.targetPath("a"))
			if err != nil || !info.IsDir() {
				c.fail("a directory at the target path", "%v", orMode(info, err))
			}
		},
	},
	{
		ID: "node.publish.readonly-changed", Level: Should, Spec: "NodePublishVolume",
		Title: "a target path at which the volume is published with another readonly is ALREADY_EXISTS",
		Why:   "OK would let the CO believe that the pod cannot write, or can.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			req := c.volume().up("a").publishRequest("a")
			req.Readonly = true
			send(c, c.Node.NodePublishVolume, req).wants(codes.AlreadyExists)
		},
	},
	{
		ID: "node.publish.second-target", Level: Should, Spec: "NodePublishVolume",
		Title: "a volume for a single writer is published at a second path with FAILED_PRECONDITION",
		Why:   "Kubernetes relies on it for ReadWriteOncePod: one pod, and no other, has the volume.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume(withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)).up("a")
			send(c, c.Node.NodePublishVolume, v.publishRequest("b")).wants(codes.FailedPrecondition)
		},
	},
	{
		ID: "node.publish.many-targets", Level: Should, Spec: "NodePublishVolume",
		Title: "a SINGLE_NODE_MULTI_WRITER volume is published at several paths",
		Why:   "That is what Kubernetes asks for when two pods of one node use a ReadWriteOnce claim.",
		Needs: needs(createVolume, nodeCap(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)),
		check: func(c *ruleRun) {
			v := c.volume(withMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)).up("a")
			send(c, c.Node.NodePublishVolume, v.publishRequest("b")).ok()
		},
	},
	{
		ID: "node.unpublish.idempotent", Level: Must, Spec: "NodeUnpublishVolume",
		Title: "a volume that is not published at the path is unpublished with OK",
		Why:   "kubelet retries the call forever; an error keeps the pod from ending.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().up("a").unpublish("a")
			send(c, c.Node.NodeUnpublishVolume, v.unpublishRequest("a")).ok()
			send(c, c.Node.NodeUnpublishVolume, v.unpublishRequest("never")).ok()
		},
	},
	{
		ID: "node.unpublish.removes-target", Level: Must, Spec: "NodeUnpublishVolume",
		Title: "NodeUnpublishVolume removes the target path",
		Why:   "kubelet cannot remove the pod's directory while something is in it, and for raw block the file is removed by the driver or never.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().up("a").unpublish("a")
			if info, err := os.Lstat(v.targetPath("a")); !os.IsNotExist(err) {
				c.fail("nothing at the target path", "%v", orMode(info, err))
			}
		},
	},
	{
		ID: "node.stats.usage", Level: Must, Spec: "NodeGetVolumeStats",
		Title: "NodeGetVolumeStats returns bytes that add up, at the target and at the staging path",
		Why:   "kubelet's metrics come from here; an answer without usage is an error to it.",
		Needs: needs(createVolume, nodeService, volumeStats, mountAccess),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			requests := []*csi.NodeGetVolumeStatsRequest{v.statsRequest("a")}
			if c.has(stageVolume) {
				requests = append(requests, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.stagingPath()})
			}
			for _, req := range requests {
				a := send(c, c.Node.NodeGetVolumeStats, req)
				var bytes *csi.VolumeUsage
				for _, u := range a.ok().GetUsage() {
					if u.GetUnit() == csi.VolumeUsage_BYTES {
						bytes = u
					}
				}
				if bytes.GetTotal() <= 0 || bytes.GetUsed()+bytes.GetAvailable() > bytes.GetTotal() {
					a.wrong("usage in BYTES with used + available ≤ total")
				}
			}
		},
	},
	{
		ID: "node.stats.missing", Level: Must, Spec: "NodeGetVolumeStats",
		Title: "NodeGetVolumeStats is NOT_FOUND for a volume that does not exist and for a path where it is not",
		Why:   "Numbers of whatever lies at the path are another file system's, often that of the node.",
		Needs: needs(createVolume, nodeService, volumeStats),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			send(c, c.Node.NodeGetVolumeStats, v.statsRequest("b")).wants(codes.NotFound)
			req := v.statsRequest("a")
			req.VolumeId = c.unknownID()
			send(c, c.Node.NodeGetVolumeStats, req).wants(codes.NotFound)
		},
	},
	{
		ID: "node.expand.volume-missing", Level: Must, Spec: "NodeExpandVolume",
		Title: "NodeExpandVolume is NOT_FOUND for a volume that does not exist",
		Why:   "kubelet treats NOT_FOUND as infeasible, and retries after other codes.",
		Needs: needs(createVolume, nodeService, nodeExpandVolume),
		check: func(c *ruleRun) {
			req := c.volume().up("a").nodeExpandRequest("a", c.run.cfg.Size)
			req.VolumeId = c.unknownID()
			send(c, c.Node.NodeExpandVolume, req).wants(codes.NotFound)
		},
	},
	{
		ID: "node.expand.beyond-volume", Level: Must, Spec: "NodeExpandVolume",
		Title: "NodeExpandVolume to more than the volume has is no success with less",
		Why:   "The CO takes OK as the end of the expansion, and records required_bytes as the size of the claim.",
		Needs: needs(createVolume, nodeService, expandVolume, nodeExpandVolume),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			want := 2 * max(c.run.cfg.Size, v.created.GetCapacityBytes())
			a := send(c, c.Node.NodeExpandVolume, v.nodeExpandRequest("a", want))
			if got := a.Resp.GetCapacityBytes(); a.Err == nil && got != 0 && got < want { // 0: not known
				a.wrong("OUT_OF_RANGE, or capacity_bytes of %d at least", want)
			}
		},
	},
	{
		ID: "node.publish.long-paths", Level: Must, Spec: "NodePublishVolume",
		Title: "paths of 128 bytes are accepted by every call of the node service",
		Why:   "That is the least that a plugin must accept; kubelet's paths contain the driver's name, two UIDs or a hash, and can be longer.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			stage, publish := v.stageRequest(), v.publishRequest("a")
			target := c.longPath("target")
			publish.TargetPath = target
			if c.has(stageVolume) {
				stage.StagingTargetPath = c.mkdir(c.longPath("staging"))
				publish.StagingTargetPath = stage.StagingTargetPath
				send(c, c.Node.NodeStageVolume, stage).ok()
			}
			send(c, c.Node.NodePublishVolume, publish).ok()
			if c.has(volumeStats) {
				send(c, c.Node.NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: target, StagingTargetPath: publish.GetStagingTargetPath()}).ok()
			}
			if c.has(nodeVolumeHealth) {
				send(c, c.Node.NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, VolumePublishPath: target, StagingTargetPath: publish.GetStagingTargetPath()}).ok()
			}
			if c.has(nodeExpandVolume) {
				req := v.nodeExpandRequest("a", c.run.cfg.Size)
				req.VolumePath, req.StagingTargetPath = target, publish.GetStagingTargetPath()
				send(c, c.Node.NodeExpandVolume, req).wants(codes.OK, codes.FailedPrecondition)
			}
			send(c, c.Node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: target}).ok()
			if c.has(stageVolume) {
				send(c, c.Node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: stage.GetStagingTargetPath()}).ok()
			}
		},
	},
	{
		ID: "node.publish.capability-changed", Level: Should, Spec: "NodePublishVolume",
		Title: "a target path at which the volume is published with another access mode is not OK",
		Why: "OK would let the CO believe that the pod has what was asked for the second time. The specification's table says ALREADY_EXISTS, and the sentence before it " +
			"FAILED_PRECONDITION.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			req := c.volume().up("a").publishRequest("a")
			req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
			send(c, c.Node.NodePublishVolume, req).wants(codes.AlreadyExists, codes.FailedPrecondition, codes.InvalidArgument)
		},
	},
	{
		ID: "node.unpublish.removes-block-target", Level: Must, Spec: "NodeUnpublishVolume",
		Title: "NodeUnpublishVolume removes the target path of a raw block volume",
		Why:   "kubelet never removes the file that the driver made for the device: the directories above it stay as well, one for each pod that there was.",
		Needs: needs(createVolume, nodeService, blockAccess),
		check: func(c *ruleRun) {
			v := c.volume(block).up("a").unpublish("a")
			if info, err := os.Lstat(v.targetPath("a")); !os.IsNotExist(err) {
				c.fail("nothing at the target path", "%v", orMode(info, err))
			}
		},
	},
}

// longPath is a path of 128 bytes below the run's directory, whose parent exists.
func (c *ruleRun) longPath(name string) string {
	const size = 128
	dir := c.mkdir(filepath.Join(c.run.dir, name))
	if len(dir)+2 > size {
		c.excuse("%s is too long for paths of %d bytes below it", c.run.dir, size)
	}
	return dir + "/" + strings.Repeat("x", size-len(dir)-1)
}

// orMode describes what was found at a path.
func orMode(info os.FileInfo, err error) any {
	if err != nil {
		return err
	}
	return info.Mode().String() + " " + info.Name()
}
