package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var groupRules = []Rule{
	{
		ID: "group.create.members", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		Title: "a group has one snapshot of every volume, a repeat gives the same group, and GetVolumeGroupSnapshot knows it",
		Why:   "A member that is missing is missed at the restore.",
		Needs: needs(createVolume, groupService),
		check: func(c *Case) {
			one, two := c.volume(), c.volume()
			req := &csi.CreateVolumeGroupSnapshotRequest{Name: c.name(), SourceVolumeIds: []string{one.id, two.id}}
			g := step(c, c.Group.CreateVolumeGroupSnapshot, req).GetGroupSnapshot()
			sources := map[string]int{}
			get := &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId()}
			for _, s := range g.GetSnapshots() {
				sources[s.GetSourceVolumeId()]++
				get.SnapshotIds = append(get.SnapshotIds, s.GetSnapshotId())
			}
			if len(sources) != 2 || sources[one.id] != 1 || sources[two.id] != 1 {
				c.fail("one snapshot of each of "+one.id+" and "+two.id, "%s", requestJSON(g))
			}
			if a := send(c, c.Group.CreateVolumeGroupSnapshot, req); a.ok().GetGroupSnapshot().GetGroupSnapshotId() != g.GetGroupSnapshotId() {
				a.wrong("group_snapshot_id %q, as the first time", g.GetGroupSnapshotId())
			}
			if a := send(c, c.Group.GetVolumeGroupSnapshot, get); len(a.ok().GetGroupSnapshot().GetSnapshots()) != 2 {
				a.wrong("the group with its two snapshots")
			}
		},
	},
	{
		ID: "group.delete.idempotent", Level: Must, Spec: "DeleteVolumeGroupSnapshot",
		Title: "a group that does not exist is deleted with OK",
		Why:   "The CO repeats the call until it hears OK.",
		Needs: needs(groupService),
		check: func(c *Case) {
			send(c, c.Group.DeleteVolumeGroupSnapshot, &csi.DeleteVolumeGroupSnapshotRequest{
				GroupSnapshotId: c.name(), SnapshotIds: []string{c.name()},
			}).ok()
		},
	},
	{
		ID: "group.get.missing", Level: Must, Spec: "GetVolumeGroupSnapshot",
		Title: "a group that does not exist is NOT_FOUND",
		Why:   "The code decides whether the CO takes the group for gone, or asks again.",
		Needs: needs(groupService),
		check: func(c *Case) {
			send(c, c.Group.GetVolumeGroupSnapshot, &csi.GetVolumeGroupSnapshotRequest{
				GroupSnapshotId: c.name(), SnapshotIds: []string{c.name()},
			}).wants(codes.NotFound)
		},
	},
}
