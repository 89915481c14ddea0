package csitest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// The pods of the rules below: neither is root, and they share no group.
var (
	firstPod  = podUser{uid: 43211, gid: 43210}
	secondPod = podUser{uid: 43221, gid: 43220}
)

// podUser is the user of a pod, with its fsGroup.
type podUser struct{ uid, gid int }

// errNoUsers: this process cannot take the user IDs of pods.
var errNoUsers = errors.New("no other users")

const whyMountGroup = "kubelet passes a pod's fsGroup to a driver with VOLUME_MOUNT_GROUP, at NodeStageVolume for the first pod and at every NodePublishVolume, " +
	"and does not change the group of files itself. A driver for ext4, xfs or btrfs, which have no mount option for a group, must not claim the capability."

var mountGroupRules = []Rule{
	{
		ID: "node.publish.mount-group-changes", Level: Should, Spec: "VolumeCapability",
		Title: "files created under one volume_mount_group can be used under the next one",
		Why:   whyMountGroup + " Otherwise the next pod with another fsGroup cannot use the files of the first.",
		Needs: needs(createVolume, nodeCap(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP), mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			v.underGroup(firstPod.gid).stage().publish("a")
			c.writesAs(firstPod, v.targetPath("a"))
			v.unpublish("a").unstage()
			v.underGroup(secondPod.gid).stage().publish("b")
			c.usesAs(secondPod, v.targetPath("b"))
		},
	},
	{
		ID: "node.publish.mount-groups-together", Level: Should, Spec: "VolumeCapability",
		Title: "while a volume is published with one volume_mount_group, a second publish with another one can use all files",
		Why:   whyMountGroup + " Two pods of one node may share a claim and differ in fsGroup. The volume is staged once, with the group of the first.",
		Needs: needs(createVolume, nodeCap(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP), mountAccess, kernelView, manyWriters),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			v.underGroup(firstPod.gid).stage().publish("a")
			c.writesAs(firstPod, v.targetPath("a"))
			a := send(c, c.Node.NodePublishVolume, v.underGroup(secondPod.gid).publishRequest("b"))
			if a.is(codes.FailedPrecondition, codes.InvalidArgument, codes.AlreadyExists) {
				c.excuse("the driver refuses a second volume_mount_group on the node")
			}
			a.ok()
			c.usesAs(secondPod, v.targetPath("b"))
		},
	},
}

// underGroup has volume_mount_group in the requests to the node from now on.
func (v *volume) underGroup(gid int) *volume {
	v.made.GetVolumeCapabilities()[0].GetMount().VolumeMountGroup = strconv.Itoa(gid)
	return v
}

// writesAs creates a directory and a file in it, as a process of a pod does.
func (c *ruleRun) writesAs(u podUser, target string) {
	root := c.openTarget(target)
	defer root.Close()
	switch err := createAs(u, root, "csicheck-dir", filepath.Join("csicheck-dir", "file")); {
	case errors.Is(err, errNoUsers):
		c.excuse("there are no other users in this user namespace")
	case err != nil:
		c.excuse("the first group cannot write, see node.publish.mount-group")
	}
}

// openTarget opens the directory at which a volume is published.
func (c *ruleRun) openTarget(path string) *os.File {
	f, err := c.run.openFile(path, os.O_RDONLY, 0)
	if err != nil {
		c.fail("a directory at the target path", "%v", err)
	}
	return f
}

// usesAs reads and writes what writesAs has created, and creates more.
func (c *ruleRun) usesAs(u podUser, target string) {
	root := c.openTarget(target)
	defer root.Close()
	if err := openAs(u, root, filepath.Join("csicheck-dir", "file")); err != nil {
		c.error("a file of the first group that the second one can read and write", "%v", err)
	}
	for _, dir := range []string{".", "csicheck-dir"} {
		if err := createAs(u, root, filepath.Join(dir, "csicheck-second"), filepath.Join(dir, "csicheck-second", "file")); err != nil {
			c.error("a directory in which the second group can create files", "%v", err)
		}
	}
}
