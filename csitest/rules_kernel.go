package csitest

import (
	"bytes"
	"os"
	"path/filepath"
)

// Rules that check the state of the kernel, not the answers of the driver.
var kernelRules = []Rule{
	{
		ID: "node.publish.mounts", Level: Must, Spec: "NodePublishVolume",
		Title: "the target path is a mount point while the volume is published, and none afterwards",
		Why:   "A pod that writes to a plain directory fills the node's disk, and its data is gone with the pod.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			if n := len(mountsAt(v.targetPath("a"))); n != 1 {
				c.fail("one mount at the target path", "%d", n)
			}
			if n := len(mountsAt(v.unpublish("a").targetPath("a"))); n != 0 {
				c.fail("no mount at the target path after NodeUnpublishVolume", "%d", n)
			}
		},
	},
	{
		ID: "node.publish.repeat-mounts-once", Level: Must, Spec: "NodePublishVolume",
		Title: "repeated calls do not stack mounts",
		Why:   "One NodeUnpublishVolume has to undo them all. Drivers have left thousands of stacked mounts behind a kubelet that restarts.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			for range 2 {
				v.stage().publish("a")
			}
			for _, path := range []string{v.targetPath("a"), v.stagingPath()} {
				if n := len(mountsAt(path)); n > 1 {
					c.error("one mount at "+path, "%d", n)
				}
			}
		},
	},
	{
		ID: "node.publish.readonly-enforced", Level: Must, Spec: "NodePublishVolume",
		Title: "a volume that is published readonly cannot be written",
		Why:   "The pod specification says readOnly, and other pods rely on it. A flag that is only recorded protects nothing.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			req := v.publishRequest("a")
			req.Readonly = true
			send(c, c.Node.NodePublishVolume, req).ok()
			c.refusesWrites(req.GetTargetPath())
		},
	},
	{
		ID: "node.publish.keeps-data", Level: Must, Spec: "NodePublishVolume",
		Title: "data survives unpublish, unstage and detach",
		Why:   "Formatting, or mounting something else, shows here before it shows in production.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			data := bytes.Repeat([]byte(v.id), 1000)
			c.write(filepath.Join(v.targetPath("a"), "csicheck-data"), data)
			v.unpublish("a").unstage().detach().up("b")
			if got, err := os.ReadFile(filepath.Join(v.targetPath("b"), "csicheck-data")); err != nil || !bytes.Equal(got, data) {
				c.fail("the file as it was written", "%d bytes, %v", len(got), err)
			}
		},
	},
	{
		ID: "node.publish.same-data", Level: Must, Spec: "NodePublishVolume",
		Title: "two targets of one volume show the same data",
		Why:   "Two pods with one claim work on one file system.",
		Needs: needs(createVolume, nodeService, mountAccess, kernelView, manyWriters),
		check: func(c *ruleRun) {
			v := c.volume().up("a", "b")
			c.write(filepath.Join(v.targetPath("a"), "csicheck-data"), []byte("x"))
			if _, err := os.Stat(filepath.Join(v.targetPath("b"), "csicheck-data")); err != nil {
				c.fail("the file at the other target", "%v", err)
			}
		},
	},
	{
		ID: "node.publish.block-device", Level: Must, Spec: "NodePublishVolume",
		Title: "the target of a raw block volume is a block device of the volume's size",
		Why:   "A plain file takes the pod's writes as well, and they are lost. The size must lie within the requested range.",
		Needs: needs(createVolume, nodeService, blockAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume(block).up("a")
			info, err := os.Stat(v.targetPath("a"))
			if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
				c.fail("a block device at the target path", "%v", orMode(info, err))
			}
			size, err := deviceSize(v.targetPath("a"))
			if want := v.created.GetCapacityBytes(); err != nil || want != 0 && size != want {
				c.fail("a device that can be read to the end, of capacity_bytes", "%d bytes, %v; capacity_bytes is %d", size, err, want)
			}
		},
	},
	{
		ID: "node.unstage.unmounts", Level: Must, Spec: "NodeUnstageVolume",
		Title: "nothing is mounted at the staging path after NodeUnstageVolume",
		Why:   "kubelet removes the directory then, and the volume is detached from the node. A mount that stays hides the next volume, and writes to a device that is gone.",
		Needs: needs(createVolume, stageVolume, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			v.stage().publish("a") // as kubelet does after its restart
			v.unpublish("a").unstage()
			if on := mountsAt(v.stagingPath()); len(on) > 0 {
				c.fail("no mount at the staging path after NodeUnstageVolume", "%d, %s", len(on), on[0].fsType)
			}
			if files, err := os.ReadDir(v.stagingPath()); err == nil && len(files) > 0 {
				c.fail("an empty staging path after NodeUnstageVolume", "%s is in it", files[0].Name())
			}
		},
	},
	{
		ID: "node.unstage.while-block-published", Level: Must, Spec: "RPC Interactions",
		Title: "NodeUnstageVolume does not take a published raw block volume from its pod",
		Why: "A CO that crashed can send this call. The pod's device would vanish, or become another volume's, while it is written. An error is the answer, or OK that changes " +
			"nothing.",
		Needs: needs(createVolume, stageVolume, blockAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume(block).up("a")
			data := bytesOf(v.id, 4096)
			if err := c.run.writeAt(v.targetPath("a"), data); err != nil {
				c.fail("a device that can be written", "%v", err)
			}
			before, beforeErr := os.Stat(v.targetPath("a"))
			send(c, c.Node.NodeUnstageVolume, v.unstageRequest()) // with whatever code
			after, err := os.Stat(v.targetPath("a"))
			if err != nil || beforeErr != nil || before.Mode() != after.Mode() || !os.SameFile(before, after) {
				c.fail("the same device at the target path", "%v", orMode(after, err))
			}
			if err := c.run.writeAt(v.targetPath("a"), data); err != nil {
				c.fail("a device that can still be written", "%v", err)
			}
			v.unpublish("a").unstage()
		},
	},
	{
		ID: "controller.publish.readonly-enforced", Level: Must, Spec: "ControllerPublishVolume",
		Title: "a volume that was published to the node readonly cannot be written there",
		Why: "PersistentVolumes with readOnly, and a volume that several nodes read, rely on it: NodePublishVolume does not say readonly then. A volume with data is used, " +
			"and the node may refuse a writable publish.",
		Needs: needs(createVolume, attachVolume, attachReadonly, nodeService, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			c.write(filepath.Join(v.targetPath("a"), "csicheck-data"), []byte(v.id))
			v.unpublish("a").unstage().detach()
			attach := v.attachRequest()
			attach.Readonly = true
			v.publishContext = step(c, c.Controller.ControllerPublishVolume, attach).GetPublishContext()
			if c.has(stageVolume) {
				if a := send(c, c.Node.NodeStageVolume, v.stageRequest()); a.Err != nil && !uncertain(a.Err) {
					return
				}
				v.stage()
			}
			if a := send(c, c.Node.NodePublishVolume, v.publishRequest("b")); a.Err != nil && !uncertain(a.Err) {
				return
			}
			v.publish("b")
			c.refusesWrites(v.targetPath("b"))
		},
	},
}
