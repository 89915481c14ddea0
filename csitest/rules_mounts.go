package csitest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const (
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	mountGroup   = 4321 // unused otherwise
	flagOfMounts = "noatime"
)

var manyWriters = Need{Text: "node.SINGLE_NODE_MULTI_WRITER", met: func(r *run) bool { return r.readWriteOnce() == multiWriter }}

// Rules about what pods see and do, and about kubelet's ways to ask.
var mountRules = []Rule{
	{
		ID: "node.publish.table", Level: Should, Spec: "NodePublishVolume",
		Title: "the answer to a second NodePublishVolume follows the specification's table, for every access mode",
		Why: "The table has for each access mode the answer to a second publish at the same target or another one, with the same arguments or others: " +
			"OK, ALREADY_EXISTS or FAILED_PRECONDITION. The CO relies on it to keep a volume for one pod, or to share it. Modes that the driver does not have are left out.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			for mode := csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER; mode <= multiWriter; mode++ {
				req := c.createRequest()
				withMode(mode)(c, req)
				if reads(mode) { // it has to be written first, with a file system at least
					writer := proto.CloneOf(req.VolumeCapabilities[0])
					writer.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
					req.VolumeCapabilities = append(req.VolumeCapabilities, writer)
				}
				a := send(c, c.Controller.CreateVolume, req)
				if a.is(codes.InvalidArgument) {
					continue
				}
				v := c.volumeOf(req, a.ok().GetVolume())
				if reads(mode) {
					first := *v
					first.made = proto.CloneOf(req)
					first.made.VolumeCapabilities = req.VolumeCapabilities[1:]
					first.up("first").unpublish("first").unstage().detach()
				}
				c.secondPublish(v, mode)
			}
		},
	},
	{
		ID: "node.publish.before-stage", Level: Must, Spec: "RPC Interactions",
		Title: "a volume that is not staged is not published, and nothing is left at the target",
		Why:   "After a reboot the staging path is an empty directory. A driver that binds it exposes the node's root disk to the pod.",
		Needs: needs(createVolume, stageVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			v.stagingPath()
			a := send(c, c.Node.NodePublishVolume, v.publishRequest("a"))
			if a.is(codes.OK) {
				a.wrong("an error: the volume is not staged")
			}
			if info, err := os.Lstat(v.targetPath("a")); err == nil {
				c.fail("nothing at the target path, since kubelet treats this error as final and does not unpublish", "%v", orMode(info, err))
			}
			v.stage().publish("a")
		},
	},
	{
		ID: "node.stage.after-detach", Level: Should, Spec: "RPC Interactions",
		Title: "a volume that was detached from the node is not staged there with the publish_context that it had",
		Why:   "A node that was disconnected repeats the stage after a forced detach. If it still has access, two nodes write to one file system and destroy it.",
		Needs: needs(createVolume, attachVolume, stageVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			req := v.stageRequest()
			v.detach()
			if a := send(c, c.Node.NodeStageVolume, req); a.is(codes.OK) {
				a.wrong("an error: the volume is no longer attached to the node")
			}
		},
	},
	{
		ID: "node.stage.conflict", Level: Must, Spec: "NodeStageVolume",
		Title: "a volume that is staged already is not staged with another access type",
		Why:   "OK would make the CO believe that the staging path has the requested access type. ALREADY_EXISTS is the answer, or a code that refuses the access type.",
		Needs: needs(createVolume, stageVolume, mountAccess),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			req := v.stageRequest()
			req.VolumeCapability = blockCapability(c.run)
			send(c, c.Node.NodeStageVolume, req).wants(codes.AlreadyExists, codes.FailedPrecondition, codes.InvalidArgument)
		},
	},
	{
		ID: "node.stage.after-cancel", Level: Must, Spec: "Timeouts",
		Title: "cancelled calls succeed when they are retried, and can be undone when they are not",
		Why: "kubelet cancels the call after two minutes, and calls again half a second later, or, if the pod is gone, unpublishes and unstages, while the first " +
			"call may still be in flight. ABORTED is allowed meanwhile, but has to end.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			for _, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond} {
				v := c.volume().attach()
				if c.has(stageVolume) {
					cancelled(c, after, c.Node.NodeStageVolume, v.stageRequest())
					v.stage()
				}
				cancelled(c, after, c.Node.NodePublishVolume, v.publishRequest("a"))
				v.publish("a")
				v.unpublish("a")
				cancelled(c, after, c.Node.NodePublishVolume, v.publishRequest("b"))
				v.unpublish("b") // the pod is gone
				if c.has(stageVolume) {
					cancelled(c, after, c.Node.NodeUnstageVolume, v.unstageRequest())
					v.unstage()
					cancelled(c, after, c.Node.NodeStageVolume, v.stageRequest())
					v.unstage()
				}
				for _, pod := range []string{"a", "b"} {
					if info, err := os.Lstat(v.targetPath(pod)); err == nil {
						c.fail("nothing at the target path after NodeUnpublishVolume", "%v", orMode(info, err))
					}
				}
			}
		},
	},
	{
		ID: "node.publish.parallel", Level: Must, Spec: "NodePublishVolume",
		Title: "several pods are published and unpublished concurrently",
		Why: "A node that comes back starts all its pods. kubelet unpublishes for different pods in parallel. ABORTED is allowed, but has to end: a retry " +
			"succeeds.",
		Needs: needs(createVolume, nodeService, manyWriters),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			pods := []string{"a", "b", "c", "d"}
			publish := make([]*csi.NodePublishVolumeRequest, len(pods))
			unpublish := make([]*csi.NodeUnpublishVolumeRequest, len(pods))
			for i, pod := range pods {
				publish[i], unpublish[i] = v.publishRequest(pod), v.unpublishRequest(pod)
			}
			c.parallel(len(pods), func(i int) {
				send(c, c.Node.NodePublishVolume, publish[i]).wants(codes.OK, codes.Aborted)
				step(c, c.Node.NodePublishVolume, publish[i])
			})
			c.parallel(len(pods), func(i int) {
				send(c, c.Node.NodeUnpublishVolume, unpublish[i]).wants(codes.OK, codes.Aborted)
				step(c, c.Node.NodeUnpublishVolume, unpublish[i])
			})
			v.unstage()
		},
	},
	{
		ID: "node.stats.not-mounted", Level: Must, Spec: "NodeGetVolumeStats",
		Title: "NodeGetVolumeStats is NOT_FOUND for a directory at which the volume is not published",
		Why:   "A target that lost its mount is a plain directory, and its numbers are those of the node's disk.",
		Needs: needs(createVolume, nodeService, volumeStats),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			req := v.statsRequest("b")
			c.mkdir(req.GetVolumePath())
			send(c, c.Node.NodeGetVolumeStats, req).wants(codes.NotFound)
			_ = c.run.rmdir(req.GetVolumePath()) // removeDir reports it
		},
	},
	{
		ID: "node.stats.agrees", Level: Should, Spec: "NodeGetVolumeStats",
		Title: "NodeGetVolumeStats agrees with statfs",
		Why:   "Alerts and evictions go by these numbers: an old copy or another disk's numbers come too late or for nothing.",
		Needs: needs(createVolume, nodeService, volumeStats, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			for _, n := range []int64{0, c.run.cfg.Size / 4} { // an empty one, and one with data
				c.write(filepath.Join(v.targetPath("a"), "csicheck-data"), make([]byte, min(n, 64*mib)))
				want, err := statfs(v.targetPath("a"))
				if err != nil {
					c.fail("a target that statfs can read", "%v", err)
				}
				a := send(c, c.Node.NodeGetVolumeStats, v.statsRequest("a"))
				for _, u := range a.ok().GetUsage() {
					near := func(got, want int64) bool { return max(got-want, want-got) <= want/20+mib }
					if u.GetUnit() == csi.VolumeUsage_BYTES && (!near(u.GetTotal(), want.total) || !near(u.GetAvailable(), want.available)) {
						a.wrong("%d bytes, of which %d are available, as statfs has it", want.total, want.available)
					}
				}
			}
		},
	},
	{
		ID: "node.publish.mount-flags", Level: Should, Spec: "VolumeCapability",
		Title: "mount_flags are in effect at the target",
		Why:   "They are the PersistentVolume's mountOptions. Some are for safety, as nosuid, and no CO checks that they took effect. The rule sends noatime.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.VolumeCapabilities[0].GetMount().MountFlags = []string{flagOfMounts}
			a := send(c, c.Controller.CreateVolume, req)
			if a.is(codes.InvalidArgument) {
				c.excuse("the driver does not take mount_flags")
			}
			v := c.volumeOf(req, a.ok().GetVolume()).up("a")
			for _, m := range mountsAt(v.targetPath("a")) {
				if !m.has(flagOfMounts) {
					c.fail(flagOfMounts+" among the options of the target", "%s", m.options)
				}
			}
		},
	},
	{
		ID: "node.publish.mount-group", Level: Should, Spec: "VolumeCapability",
		Title: "a volume with volume_mount_group belongs to that group, which may write",
		Why:   "kubelet does not change the group of files for a driver with VOLUME_MOUNT_GROUP. A pod that does not run as root cannot write then.",
		Needs: needs(createVolume, nodeCap(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP), mountAccess, kernelView),
		check: func(c *ruleRun) {
			if err := os.Lchown(c.mkdir(filepath.Join(c.run.dir, "group")), -1, mountGroup); err != nil {
				c.excuse("there is no other group in this user namespace")
			}
			_ = c.run.rmdir(filepath.Join(c.run.dir, "group")) // removeDir reports it
			v := c.volume(func(_ *ruleRun, r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].GetMount().VolumeMountGroup = strconv.Itoa(mountGroup)
			}).up("a")
			if gid, mode, err := owner(v.targetPath("a")); err != nil || gid != mountGroup || mode&0o020 == 0 {
				c.fail(fmt.Sprintf("a target of group %d, which it may write", mountGroup), "group %d, mode %04o, %v", gid, mode, err)
			}
		},
	},
	{
		ID: "node.publish.volumes-separate", Level: Must, Spec: "NodePublishVolume",
		Title: "two volumes have different data",
		Why:   "A wrong device, or a staging path of another volume, shows one tenant the data of another.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v, other := c.volume().up("a"), c.volume().up("a")
			c.write(filepath.Join(v.targetPath("a"), "csicheck-mine"), []byte(v.id))
			if _, err := os.Stat(filepath.Join(other.targetPath("a"), "csicheck-mine")); err == nil {
				c.fail("no file of the one volume in the other", "it is there")
			}
		},
	},
	{
		ID: "node.publish.no-stray-mounts", Level: Should, Spec: "kubelet",
		Title: "a volume is mounted only at the paths of the CO",
		Why: "Before NodeUnstageVolume kubelet searches for other mounts of the same file system, outside of its own directories, and does not unstage while there is " +
			"one.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume()
			before := map[string]bool{} // such as where a driver keeps the data of all volumes
			for _, m := range mounts("") {
				before[m.point] = true
			}
			v.up("a")
			for _, m := range mountsAt(v.targetPath("a")) {
				for _, other := range mounts("") {
					if other.device == m.device && other.root == m.root && !strings.HasPrefix(other.point, c.run.dir+"/") && !before[other.point] {
						c.fail("no other mount of "+m.device, "%s", other.point)
					}
				}
			}
		},
	},
	{
		ID: "node.unstage.while-published", Level: Should, Spec: "RPC Interactions",
		Title: "NodeUnstageVolume does not take a published volume from its pod",
		Why:   "A CO that crashed can send this call. The pod would write to an empty directory, and its data would be lost.",
		Needs: needs(createVolume, stageVolume, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			c.write(filepath.Join(v.targetPath("a"), "csicheck-data"), []byte(v.id))
			send(c, c.Node.NodeUnstageVolume, v.unstageRequest()) // with whatever code
			if got, err := os.ReadFile(filepath.Join(v.targetPath("a"), "csicheck-data")); err != nil || string(got) != v.id {
				c.fail("the pod's file as it was", "%q, %v", got, err)
			}
			v.unpublish("a").unstage()
		},
	},
	{
		ID: "node.publish.kubelet-restarts", Level: Must, Spec: "NodePublishVolume",
		Title: "a kubelet that restarts stages and publishes everything again, and no mount changes",
		Why: "Pods keep running meanwhile. A new mount at the target does not reach them: they keep the old one, which is never unmounted then. The number that the kernel assigns " +
			"every mount is compared.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			volumes := []*volume{c.volume().up("a"), c.volume().up("a")}
			var before []uint64
			for _, v := range volumes {
				before = append(before, mountID(v.targetPath("a")))
			}
			for range 2 {
				c.parallel(len(volumes), func(i int) { volumes[i].stage().publish("a") })
			}
			for i, v := range volumes {
				if id := mountID(v.targetPath("a")); id != before[i] {
					c.fail(fmt.Sprintf("the same mount, %d, at the target", before[i]), "%d", id)
				}
			}
		},
	},
	{
		ID: "node.expand.grows", Level: Must, Spec: "NodeExpandVolume",
		Title: "a file system has grown after ControllerExpandVolume and NodeExpandVolume, and again is OK",
		Why: "The user has paid for the space. FAILED_PRECONDITION says that the driver cannot grow it while it is published; it has to have grown when it is " +
			"published the next time. A volume that is a directory of a larger file system shows no size of its own: then the rule does not apply.",
		Needs: needs(createVolume, nodeService, expandVolume, nodeExpandVolume, mountAccess, kernelView),
		check: func(c *ruleRun) { c.growsOnNode(c.volume()) },
	},
	{
		ID: "node.expand.grows-block", Level: Must, Spec: "NodeExpandVolume",
		Title: "a raw block volume has grown after ControllerExpandVolume and NodeExpandVolume, and again is OK",
		Why:   "The pod reads the size of its device. It must be that of the volume.",
		Needs: needs(createVolume, nodeService, expandVolume, nodeExpandVolume, blockAccess, kernelView),
		check: func(c *ruleRun) { c.growsOnNode(c.volume(block)) },
	},
	{
		ID: "node.publish.block-readonly", Level: Must, Spec: "NodePublishVolume",
		Title: "a raw block volume that is published readonly cannot be written",
		Why: "A device node can be opened for writing, whatever the request said, unless the driver makes the device read-only. kubelet's device cgroup keeps pods from that, and " +
			"a driver may rely on it, as one made with csikit does whose nodeops.Config has DeviceCgroup; other COs, and containers without that cgroup, write.",
		Needs: needs(createVolume, nodeService, blockAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume(block).attach().stage()
			req := v.publishRequest("a")
			req.Readonly = true
			a := send(c, c.Node.NodePublishVolume, req)
			if a.is(codes.InvalidArgument) {
				c.excuse("the driver does not publish raw block readonly")
			}
			a.ok()
			if err := c.run.writeAt(req.GetTargetPath(), []byte("written")); err == nil {
				c.fail("an error when the device is written", "none")
			}
		},
	},
	{
		ID: "node.publish.block-data", Level: Must, Spec: "NodePublishVolume",
		Title: "data on a raw block volume survives unpublish, unstage and detach",
		Why:   "A driver that formats, wipes or confuses devices shows here before it shows in production.",
		Needs: needs(createVolume, nodeService, blockAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume(block).up("a")
			data := bytesOf(v.id, mib)
			if err := c.run.writeAt(v.targetPath("a"), data); err != nil {
				c.fail("a device that can be written", "%v", err)
			}
			v.unpublish("a").unstage().detach().up("b")
			got := make([]byte, len(data))
			f, err := os.Open(v.targetPath("b"))
			if err == nil {
				_, err = f.ReadAt(got, 0)
				_ = f.Close() // it was only read
			}
			if err != nil || !bytes.Equal(got, data) {
				c.fail("the data as it was written", "other data, %v", err)
			}
		},
	},
	{
		ID: "node.publish.pod-info", Level: Should, Spec: "kubelet",
		Title: "volume_context may have the pod's name and new tokens each time, and the mount stays",
		Why: "With podInfoOnMount and tokenRequests kubelet adds keys of csi.storage.k8s.io to volume_context, and with requiresRepublish it publishes about every minute " +
			"with new tokens. Pods do not see a new mount.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			var before uint64
			for i := range 3 {
				req := v.publishRequest("a")
				req.VolumeContext = maps.Clone(req.GetVolumeContext())
				if req.VolumeContext == nil {
					req.VolumeContext = map[string]string{}
				}
				req.VolumeContext[kubernetesPrefix+"pod.name"] = "csicheck"
				req.VolumeContext[kubernetesPrefix+"ephemeral"] = "false"
				req.VolumeContext[tokensKey] = fmt.Sprintf(`{"":{"token":"csicheck-%d"}}`, i)
				send(c, c.Node.NodePublishVolume, req).ok()
				if !c.has(kernelView) || v.isBlock() {
					continue
				}
				id := mountID(req.GetTargetPath())
				if i > 0 && id != before {
					c.fail(fmt.Sprintf("the same mount, %d, at the target", before), "%d", id)
				}
				before = id
			}
		},
	},
	{
		ID: "node.stats.parallel", Level: Should, Spec: "kubelet",
		Title: "NodeGetVolumeStats answers while the volume is published and unpublished for other pods",
		Why:   "kubelet asks about every minute, whatever else it does with the volume. An error leaves the pod without statistics.",
		Needs: needs(createVolume, nodeService, volumeStats, manyWriters),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			stats, publish, unpublish := v.statsRequest("a"), v.publishRequest("b"), v.unpublishRequest("b")
			c.parallel(3, func(i int) {
				for range 5 {
					if i > 0 {
						send(c, c.Node.NodeGetVolumeStats, stats).wants(codes.OK, codes.Aborted)
						continue
					}
					step(c, c.Node.NodePublishVolume, publish)
					step(c, c.Node.NodeUnpublishVolume, unpublish)
				}
			})
		},
	},
}

// secondPublish fills in the row of the table for one access mode.
func (c *ruleRun) secondPublish(v *volume, mode csi.VolumeCapability_AccessMode_Mode) {
	v.up("a")
	again := v.publishRequest("a")
	send(c, c.Node.NodePublishVolume, again).ok()
	if !reads(mode) { // where readonly may say nothing new
		again.Readonly = true
		send(c, c.Node.NodePublishVolume, again).wants(codes.AlreadyExists)
	}
	want := codes.OK
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		want = codes.FailedPrecondition
	}
	send(c, c.Node.NodePublishVolume, v.publishRequest("b")).wants(want)
	if !v.isBlock() && !reads(mode) {
		other := v.publishRequest("c")
		other.Readonly = true
		send(c, c.Node.NodePublishVolume, other).wants(want)
	}
}

// reads reports whether the access mode is read-only.
func reads(mode csi.VolumeCapability_AccessMode_Mode) bool {
	return mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// cancelled sends a request and cancels it.
func cancelled[Req, Resp any](c *ruleRun, after time.Duration, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) {
	ctx, cancel := context.WithCancel(c.context())
	defer cancel()
	timer := time.AfterFunc(after, cancel)
	defer timer.Stop()
	sendCtx(ctx, c, rpc, req)
}

// growsOnNode expands a volume while it is published, or else the next time.
func (c *ruleRun) growsOnNode(v *volume) {
	want := 2 * max(c.run.cfg.Size, v.created.GetCapacityBytes())
	v.up("a")
	before, err := v.sizeAt(v.targetPath("a"))
	if err != nil {
		c.fail("a target with a size", "%v", err)
	}
	if a := send(c, c.Controller.ControllerExpandVolume, v.expandRequest(want)); a.is(codes.FailedPrecondition) { // not while it is published
		v.unpublish("a").unstage().detach()
		step(c, c.Controller.ControllerExpandVolume, v.expandRequest(want))
		v.up("a")
	} else if a.Err != nil {
		step(c, c.Controller.ControllerExpandVolume, v.expandRequest(want))
	}
	for range 2 {
		a := send(c, c.Node.NodeExpandVolume, v.nodeExpandRequest("a", want))
		a.wants(codes.OK, codes.FailedPrecondition)
		if a.Err != nil {
			v.unpublish("a").unstage().stage().publish("a")
		}
	}
	if before >= want {
		c.excuse("the target had %d bytes before the expansion to %d: the volume is a directory of a larger file system", before, want)
	}
	// A file system keeps a part of the device for itself.
	if after, err := v.sizeAt(v.targetPath("a")); err != nil || after < before+(want-want/2)*3/4 {
		c.fail(fmt.Sprintf("a target that has grown from %d to about %d bytes", before, want), "%d, %v", after, err)
	}
}

// writeAt writes to the beginning of a device, and makes it durable.
func (r *run) writeAt(path string, data []byte) error { return r.writeBehind(path, 0, data) }

// writeBehind is writeAt from an offset on.
func (r *run) writeBehind(path string, offset int64, data []byte) error {
	f, err := r.openFile(path, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(data, offset)
	return err
}
