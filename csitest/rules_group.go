package csitest

import (
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var groupRules = []Rule{
	{
		ID: "group.create.members", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		Title: "a group has one snapshot of every volume, a retry returns the same group, and GetVolumeGroupSnapshot finds it",
		Why:   "A missing member makes the restore incomplete.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
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
		Why:   "The CO retries the call until it receives OK.",
		Needs: needs(groupService),
		check: func(c *ruleRun) {
			send(c, c.Group.DeleteVolumeGroupSnapshot, &csi.DeleteVolumeGroupSnapshotRequest{
				GroupSnapshotId: c.name(), SnapshotIds: []string{c.name()},
			}).ok()
		},
	},
	{
		ID: "group.delete.no-snapshot-ids", Level: Must, Spec: "DeleteVolumeGroupSnapshot",
		Title: "DeleteVolumeGroupSnapshot without snapshot_ids is INVALID_ARGUMENT, or deletes the group",
		Why:   "The field is required. csi-sanity v5.6.0 leaves it out and expects OK, which is accepted if the group is gone then. A group that is half deleted is not found again.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			g := c.group(c.volume())
			req := deleteGroupRequest(g)
			req.SnapshotIds = nil
			a := send(c, c.Group.DeleteVolumeGroupSnapshot, req)
			a.wants(codes.InvalidArgument, codes.OK)
			if get := send(c, c.Group.GetVolumeGroupSnapshot, getGroupRequest(g)); a.Err == nil {
				get.wants(codes.NotFound)
			} else {
				get.ok()
			}
		},
	},
	{
		ID: "group.get.no-snapshot-ids", Level: Must, Spec: "GetVolumeGroupSnapshot",
		Title: "GetVolumeGroupSnapshot without snapshot_ids is INVALID_ARGUMENT, or returns the group",
		Why:   "The field is required. csi-sanity v5.6.0 leaves it out and expects OK, which is accepted with all members.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			g := c.group(c.volume(), c.volume())
			req := getGroupRequest(g)
			req.SnapshotIds = nil
			a := send(c, c.Group.GetVolumeGroupSnapshot, req)
			if a.is(codes.InvalidArgument) {
				return
			}
			if got := a.ok().GetGroupSnapshot(); got.GetGroupSnapshotId() != g.GetGroupSnapshotId() || len(got.GetSnapshots()) != 2 {
				a.wrong("the group with its two snapshots, or InvalidArgument")
			}
		},
	},
	{
		ID: "group.get.missing", Level: Must, Spec: "GetVolumeGroupSnapshot",
		Title: "a group that does not exist is NOT_FOUND",
		Why:   "The code decides whether the CO treats the group as deleted, or retries.",
		Needs: needs(groupService),
		check: func(c *ruleRun) {
			send(c, c.Group.GetVolumeGroupSnapshot, &csi.GetVolumeGroupSnapshotRequest{
				GroupSnapshotId: c.name(), SnapshotIds: []string{c.name()},
			}).wants(codes.NotFound)
		},
	},
	{
		ID: "group.create.name-taken", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		Title: "a name that is taken by a group of other volumes is ALREADY_EXISTS",
		Why:   "With OK the CO would get a group without one of its volumes.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			one, two := c.volume(), c.volume()
			req := c.groupRequest(one)
			step(c, c.Group.CreateVolumeGroupSnapshot, req)
			for _, ids := range [][]string{{one.id, two.id}, {two.id}} {
				other := proto.CloneOf(req)
				other.SourceVolumeIds = ids
				send(c, c.Group.CreateVolumeGroupSnapshot, other).wants(codes.AlreadyExists)
			}
		},
	},
	{
		ID: "group.create.source-missing", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		// "SP MUST return an error, and SP SHOULD also do clean up": no code is named.
		Title: "a group with a volume that does not exist is an error",
		Why:   "OK would be a group that does not have all its members, to be restored some day.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			if a := send(c, c.Group.CreateVolumeGroupSnapshot, c.groupWithNothing(c.volume())); a.Err == nil {
				a.wrong("an error")
			}
		},
	},
	{
		ID: "group.create.source-missing-cleanup", Level: Should, Spec: "CreateVolumeGroupSnapshot",
		Title: "the error for a group with a volume that does not exist is NOT_FOUND, and nothing is left of the group",
		Why:   "Snapshots of the other members would be leaked: there is no group_snapshot_id with which the CO could delete them.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			v := c.volume()
			a := send(c, c.Group.CreateVolumeGroupSnapshot, c.groupWithNothing(v))
			a.wants(codes.OK, codes.NotFound) // OK is for group.create.source-missing to find
			if c.has(listSnapshots) && a.Err != nil {
				if left := c.listSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: v.id}); len(left) > 0 {
					c.fail("no snapshot of "+v.id, "%s", requestJSON(left[0]))
				}
			}
		},
	},
	{
		ID: "group.create.members-listed", Level: Must, Spec: "ListSnapshots",
		Title: "the members of a group are in ListSnapshots, with their group",
		Why:   "All snapshots are listed, however they were created. Without group_snapshot_id the CO deletes them one by one.",
		Needs: needs(createVolume, groupService, listSnapshots),
		check: func(c *ruleRun) {
			g := c.group(c.volume(), c.volume())
			c.eventually(func() {
				for _, s := range g.GetSnapshots() {
					got := snapshotOf(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId()}), s.GetSnapshotId())
					if got.GetGroupSnapshotId() != s.GetGroupSnapshotId() || got == nil {
						c.fail("snapshot "+s.GetSnapshotId()+" of group "+g.GetGroupSnapshotId(), "%s", requestJSON(got))
					}
				}
			})
		},
	},
	{
		ID: "group.create.restores", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		Title: "a volume can be created from every member of a group",
		Why:   "That is what the group is for.",
		Needs: needs(createVolume, createSnapshot, groupService),
		check: func(c *ruleRun) {
			for _, s := range c.group(c.volume(), c.volume()).GetSnapshots() {
				c.volume(from(snapshotSource(s.GetSnapshotId())))
			}
		},
	},
	{
		ID: "group.create.name-too-long", Level: Must, Spec: "Size Limits",
		Title: "a group's name of more than 128 bytes is INVALID_ARGUMENT",
		Why:   "A driver that truncates names confuses two groups.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			req := c.groupRequest(c.volume())
			req.Name += strings.Repeat("x", 129-len(req.Name))
			send(c, c.Group.CreateVolumeGroupSnapshot, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "group.create.name-reusable", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		Title: "the name of a deleted group can be used again, also for other volumes",
		Why:   "A name that stays taken is an error that no user can repair.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			req := c.groupRequest(c.volume())
			g := step(c, c.Group.CreateVolumeGroupSnapshot, req).GetGroupSnapshot()
			step(c, c.Group.DeleteVolumeGroupSnapshot, deleteGroupRequest(g))
			again := c.groupRequest(c.volume(), c.volume())
			again.Name = req.GetName()
			send(c, c.Group.CreateVolumeGroupSnapshot, again).ok()
		},
	},
	{
		ID: "group.delete.members", Level: Must, Spec: "DeleteVolumeGroupSnapshot",
		Title: "a group's members are deleted with it, and a retry is OK",
		Why:   "The CO does not delete them one by one.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			g := c.group(c.volume(), c.volume())
			for range 2 {
				send(c, c.Group.DeleteVolumeGroupSnapshot, deleteGroupRequest(g)).ok()
			}
			c.eventually(func() {
				for _, s := range g.GetSnapshots() {
					if c.has(listSnapshots) && len(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId()})) > 0 {
						c.fail("no member of a deleted group in ListSnapshots", "%s", requestJSON(s))
					}
					if c.has(getSnapshot) {
						send(c, c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()}).wants(codes.NotFound)
					}
				}
			})
			send(c, c.Group.GetVolumeGroupSnapshot, getGroupRequest(g)).wants(codes.NotFound)
		},
	},
	{
		ID: "group.delete.other-members", Level: Should, Spec: "DeleteVolumeGroupSnapshot",
		Title: "snapshot_ids that are not the group's are INVALID_ARGUMENT, and nothing is deleted",
		Why:   "The CO's record and the plugin's do not agree about what is to be deleted for good.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			g := c.group(c.volume(), c.volume())
			req := deleteGroupRequest(g)
			req.SnapshotIds = req.GetSnapshotIds()[:1]
			send(c, c.Group.DeleteVolumeGroupSnapshot, req).wants(codes.InvalidArgument)
			send(c, c.Group.GetVolumeGroupSnapshot, getGroupRequest(g)).ok()
		},
	},
	{
		ID: "group.get.other-members", Level: Should, Spec: "GetVolumeGroupSnapshot",
		Title: "snapshot_ids that are not the group's are INVALID_ARGUMENT",
		Why:   "The CO's record and the plugin's do not agree about what the group is.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			req := getGroupRequest(c.group(c.volume(), c.volume()))
			req.SnapshotIds = req.GetSnapshotIds()[:1]
			send(c, c.Group.GetVolumeGroupSnapshot, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "group.member.delete", Level: Must, Spec: "DeleteSnapshot",
		Title: "a single member of a group is deleted, or refused with INVALID_ARGUMENT and stays",
		Why:   "INVALID_ARGUMENT means that the CO has to use DeleteVolumeGroupSnapshot. OK without deleting leaks the snapshot.",
		Needs: needs(createVolume, createSnapshot, groupService),
		check: func(c *ruleRun) {
			id := c.group(c.volume(), c.volume()).GetSnapshots()[0].GetSnapshotId()
			a := send(c, c.Controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: id})
			a.wants(codes.OK, codes.InvalidArgument)
			if !c.has(listSnapshots) {
				return
			}
			c.eventually(func() {
				if there := len(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: id})) > 0; there == (a.Err == nil) {
					a.wrong("a snapshot that is gone after OK, and there after INVALID_ARGUMENT; ListSnapshots has it: %t", there)
				}
			})
		},
	},
	{
		ID: "group.survives-volumes", Level: Should, Spec: "DeleteVolume",
		Title: "a group is usable after its volumes are deleted, or keeps them from being deleted",
		Why:   "A backup must not depend on the volumes.",
		Needs: needs(createVolume, createSnapshot, groupService),
		check: func(c *ruleRun) {
			one, two := c.volume(), c.volume()
			g := c.group(one, two)
			for _, v := range []*volume{one, two} {
				send(c, c.Controller.DeleteVolume, v.deleteRequest()).wants(codes.OK, codes.FailedPrecondition)
			}
			for _, s := range g.GetSnapshots() {
				c.volume(from(snapshotSource(s.GetSnapshotId())))
			}
		},
	},
	{
		ID: "group.create.ready", Level: Should, Spec: "VolumeGroupSnapshot",
		Title: "a group whose snapshots are all ready to use is ready to use",
		Why:   "csi-snapshotter asks again and again until the group is ready, and no restore begins before that.",
		Needs: needs(createVolume, groupService),
		check: func(c *ruleRun) {
			req := c.groupRequest(c.volume(), c.volume())
			for {
				a := send(c, c.Group.CreateVolumeGroupSnapshot, req)
				if !uncertain(a.Err) {
					g := a.ok().GetGroupSnapshot()
					if !slices.ContainsFunc(g.GetSnapshots(), func(s *csi.Snapshot) bool { return !s.GetReadyToUse() }) {
						if !g.GetReadyToUse() {
							a.wrong("ready_to_use, as every snapshot of the group")
						}
						return
					}
				}
				select {
				case <-c.ctx.Done():
					c.fail("ready_to_use within the rule's time", "the group is still not ready")
				case <-time.After(200 * time.Millisecond):
				}
			}
		},
	},
	{
		ID: "group.delete.in-use", Level: Must, Spec: "DeleteVolumeGroupSnapshot",
		Title: "a volume from a member of a group remains usable after the group is deleted, or prevents the deletion",
		Why:   "Backups are deleted by age. What was restored from them must not go with them.",
		Needs: needs(createVolume, createSnapshot, groupService),
		check: func(c *ruleRun) {
			g := c.group(c.volume(), c.volume())
			v := c.volume(from(snapshotSource(g.GetSnapshots()[0].GetSnapshotId())))
			a := send(c, c.Group.DeleteVolumeGroupSnapshot, deleteGroupRequest(g))
			a.wants(codes.OK, codes.FailedPrecondition)
			if a.Err != nil {
				send(c, c.Group.GetVolumeGroupSnapshot, getGroupRequest(g)).ok()
			}
			if v.attach(); c.has(nodeService) {
				v.stage().publish("a")
			}
			send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest()).ok()
		},
	},
}

// groupRequest asks for a new group of the volumes.
func (c *ruleRun) groupRequest(volumes ...*volume) *csi.CreateVolumeGroupSnapshotRequest {
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: c.name()}
	for _, v := range volumes {
		req.SourceVolumeIds = append(req.SourceVolumeIds, v.id)
	}
	return req
}

// group makes one and waits until it is ready to use.
func (c *ruleRun) group(volumes ...*volume) *csi.VolumeGroupSnapshot {
	return c.groupOf(c.groupRequest(volumes...))
}

func (c *ruleRun) groupOf(req *csi.CreateVolumeGroupSnapshotRequest) *csi.VolumeGroupSnapshot {
	for {
		g := step(c, c.Group.CreateVolumeGroupSnapshot, req).GetGroupSnapshot()
		if g.GetReadyToUse() {
			return g
		}
		select {
		case <-c.ctx.Done():
			c.fail("ready_to_use within the rule's time", "group %q is still not ready", g.GetGroupSnapshotId())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func members(g *csi.VolumeGroupSnapshot) (ids []string) {
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

func memberOf(g *csi.VolumeGroupSnapshot, volume string) *csi.Snapshot {
	for _, s := range g.GetSnapshots() {
		if s.GetSourceVolumeId() == volume {
			return s
		}
	}
	return nil
}

func deleteGroupRequest(g *csi.VolumeGroupSnapshot) *csi.DeleteVolumeGroupSnapshotRequest {
	return &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: members(g)}
}

func getGroupRequest(g *csi.VolumeGroupSnapshot) *csi.GetVolumeGroupSnapshotRequest {
	return &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: members(g)}
}

// groupWithNothing asks for a group of the volume and one that does not exist.
func (c *ruleRun) groupWithNothing(v *volume) *csi.CreateVolumeGroupSnapshotRequest {
	req := c.groupRequest(v)
	req.SourceVolumeIds = append(req.SourceVolumeIds, c.unknownID())
	return req
}
