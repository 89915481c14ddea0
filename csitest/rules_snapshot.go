package csitest

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var snapshotRules = []Rule{
	{
		ID: "controller.snapshot.idempotent", Level: Must, Spec: "CreateSnapshot",
		Title: "the same request again returns the same snapshot",
		Why:   "csi-snapshotter retries CreateSnapshot until ready_to_use. A second snapshot would be orphaned.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			req := c.volume().snapshotRequest()
			first := step(c, c.Controller.CreateSnapshot, req).GetSnapshot()
			a := send(c, c.Controller.CreateSnapshot, req)
			if got := a.ok().GetSnapshot(); got.GetSnapshotId() != first.GetSnapshotId() || !proto.Equal(got.GetCreationTime(), first.GetCreationTime()) {
				a.wrong("snapshot_id %q and creation_time %v, as the first time", first.GetSnapshotId(), first.GetCreationTime().AsTime())
			}
		},
	},
	{
		ID: "controller.snapshot.names-source", Level: Must, Spec: "Snapshot",
		Title: "a snapshot names the volume that it was taken of",
		Why:   "source_volume_id is what a restore is checked against.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume()
			if s := v.snapshot(); s.GetSourceVolumeId() != v.id {
				c.fail("source_volume_id "+v.id, "%s", requestJSON(s))
			}
		},
	},
	{
		ID: "controller.snapshot.name-taken", Level: Must, Spec: "CreateSnapshot",
		Title: "a name that is taken by a snapshot of another volume is ALREADY_EXISTS",
		Why:   "With OK the CO would get a snapshot of another volume's data.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			req := c.volume().snapshotRequest()
			step(c, c.Controller.CreateSnapshot, req)
			req = proto.CloneOf(req)
			req.SourceVolumeId = c.volume().id
			send(c, c.Controller.CreateSnapshot, req).wants(codes.AlreadyExists)
		},
	},
	{
		// The errors of CreateSnapshot name no code for this: any is "a non-ok gRPC code".
		ID: "controller.snapshot.source-missing", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot of a volume that does not exist is an error",
		Why:   "OK would be a snapshot of nothing, to be restored some day.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			if a := send(c, c.Controller.CreateSnapshot, c.snapshotOfNothing()); a.Err == nil {
				a.wrong("an error")
			}
		},
	},
	{
		ID: "controller.snapshot.source-missing-code", Level: Should, Spec: "CreateSnapshot",
		Title: "the error for a snapshot of a volume that does not exist is NOT_FOUND",
		Why:   "It is the code of every other RPC for a volume that does not exist, and says that a retry does not help.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			a := send(c, c.Controller.CreateSnapshot, c.snapshotOfNothing())
			a.wants(codes.OK, codes.NotFound) // OK is for controller.snapshot.source-missing to find
		},
	},
	{
		ID: "controller.snapshot.delete-idempotent", Level: Must, Spec: "DeleteSnapshot",
		Title: "a snapshot that is deleted already, or never was, is deleted with OK",
		Why:   "csi-snapshotter retries DeleteSnapshot until it receives OK, and keeps the VolumeSnapshotContent until then.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			id := c.volume().snapshot().GetSnapshotId()
			for _, id := range []string{id, id, c.name()} {
				send(c, c.Controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: id}).ok()
			}
		},
	},
	{
		ID: "controller.snapshot.survives-volume", Level: Should, Spec: "DeleteVolume",
		Title: "a snapshot is usable after its volume is deleted, or keeps the volume from being deleted",
		Why: "A backup must not depend on the volume. A driver whose snapshots need the volume answers " +
			"FAILED_PRECONDITION to DeleteVolume, and leaves the volume untouched.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume()
			s := v.snapshot()
			a := send(c, c.Controller.DeleteVolume, v.deleteRequest())
			a.wants(codes.OK, codes.FailedPrecondition)
			c.volume(from(snapshotSource(s.GetSnapshotId())))
			if c.has(listSnapshots) {
				c.eventually(func() {
					if snapshotOf(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId()}), s.GetSnapshotId()) == nil {
						c.fail("the snapshot in ListSnapshots, after DeleteVolume of its source", "it is not there")
					}
				})
			}
			if a.Err != nil { // then the volume is as it was
				if again := send(c, c.Controller.CreateVolume, v.made); again.ok().GetVolume().GetVolumeId() != v.id {
					again.wrong("volume_id %q, which was not deleted", v.id)
				}
			}
		},
	},
	{
		ID: "controller.snapshot.list", Level: Must, Spec: "ListSnapshots",
		Title: "ListSnapshots shows a snapshot by its ID and by its volume, and none for IDs that are unknown",
		Why:   "csi-snapshotter asks for pre-provisioned snapshots by ID.",
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			v := c.volume()
			s := v.snapshot()
			c.eventually(func() {
				for _, req := range []*csi.ListSnapshotsRequest{{SnapshotId: s.GetSnapshotId()}, {SourceVolumeId: v.id}} {
					a := send(c, c.Controller.ListSnapshots, req)
					if e := a.ok().GetEntries(); len(e) != 1 || e[0].GetSnapshot().GetSnapshotId() != s.GetSnapshotId() {
						a.wrong("only the snapshot %s", s.GetSnapshotId())
					}
				}
			})
			for _, req := range []*csi.ListSnapshotsRequest{{SnapshotId: c.name()}, {SourceVolumeId: c.name()}} {
				if a := send(c, c.Controller.ListSnapshots, req); len(a.ok().GetEntries()) > 0 {
					a.wrong("no entry")
				}
			}
		},
	},
	{
		ID: "controller.snapshot.list-bad-token", Level: Must, Spec: "ListSnapshots",
		Title: "a starting_token that the driver never returned is ABORTED",
		Why:   "ABORTED makes the CO start again from the beginning. OK would show it a part of the list as the whole.",
		Needs: needs(listSnapshots),
		check: func(c *ruleRun) {
			send(c, c.Controller.ListSnapshots, &csi.ListSnapshotsRequest{StartingToken: "no-token-of-this-driver"}).wants(codes.Aborted)
		},
	},
	{
		ID: "controller.snapshot.get", Level: Must, Spec: "GetSnapshot",
		Title: "GetSnapshot returns the snapshot, and NOT_FOUND for one that does not exist",
		Why:   "The code decides whether the CO treats the snapshot as deleted, or retries.",
		Needs: needs(createVolume, createSnapshot, getSnapshot),
		check: func(c *ruleRun) {
			s := c.volume().snapshot()
			a := send(c, c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()})
			if a.ok().GetSnapshot().GetSnapshotId() != s.GetSnapshotId() {
				a.wrong("snapshot_id %q", s.GetSnapshotId())
			}
			send(c, c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: c.name()}).wants(codes.NotFound)
		},
	},
}

// snapshotOfNothing asks for a snapshot of a volume that does not exist.
func (c *ruleRun) snapshotOfNothing() *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: c.name(), SourceVolumeId: c.unknownID()}
}
