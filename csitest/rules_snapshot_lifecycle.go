package csitest

import (
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// listSnapshots reads all pages.
func (c *ruleRun) listSnapshots(req *csi.ListSnapshotsRequest) (all []*csi.Snapshot) {
	req = proto.CloneOf(req)
	seen := pages{}
	for {
		a := send(c, c.Controller.ListSnapshots, req)
		for _, e := range a.ok().GetEntries() {
			all = append(all, e.GetSnapshot())
		}
		if n := int(req.GetMaxEntries()); n > 0 && len(a.Resp.GetEntries()) > n {
			a.wrong("at most %d entries", n)
		}
		seen.again(a.Call, a.wrong)
		if req.StartingToken = a.Resp.GetNextToken(); req.StartingToken == "" {
			return all
		}
	}
}

func snapshotOf(all []*csi.Snapshot, id string) *csi.Snapshot {
	for _, s := range all {
		if s.GetSnapshotId() == id {
			return s
		}
	}
	return nil
}

func (c *ruleRun) deleteSnapshot(id string) {
	step(c, c.Controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: id})
}

// clockTolerance is how far two machines' clocks may be apart.
const clockTolerance = 15 * time.Minute

var snapshotLifecycleRules = []Rule{
	{
		ID: "controller.snapshot.stays-ready", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot that was ready to use stays so",
		Why:   "A restore that waits for ready_to_use, or has begun, relies on it.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume()
			req := v.snapshotRequest()
			ready := false
			for range 5 {
				a := send(c, c.Controller.CreateSnapshot, req)
				if now := a.ok().GetSnapshot().GetReadyToUse(); ready && !now {
					a.wrong("ready_to_use, as before")
				} else {
					ready = now
				}
			}
			if s := v.snapshot(); c.has(listSnapshots) {
				if got := snapshotOf(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId()}), s.GetSnapshotId()); got != nil && !got.GetReadyToUse() {
					c.fail("ready_to_use in ListSnapshots, as CreateSnapshot said", "%s", requestJSON(got))
				}
			}
		},
	},
	{
		ID: "controller.snapshot.creation-time", Level: Should, Spec: "Snapshot",
		Title: "creation_time is when the snapshot was taken",
		Why:   "Retention deletes by it. A time in another unit or of another thing deletes the wrong ones. Clocks may be a quarter of an hour apart.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			before := time.Now()
			s := c.volume().snapshot()
			at, after := s.GetCreationTime().AsTime(), time.Now()
			if at.Before(before.Add(-clockTolerance)) || at.After(after.Add(clockTolerance)) {
				c.fail("creation_time about "+after.UTC().Format(time.RFC3339), "%s", at.Format(time.RFC3339))
			}
		},
	},
	{
		ID: "controller.snapshot.size-enough", Level: Must, Spec: "Snapshot",
		Title: "a volume of size_bytes can be created from the snapshot",
		Why:   "size_bytes is what a volume needs at least to hold the snapshot. external-provisioner refuses claims that are smaller.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			s := c.volume().snapshot()
			if s.GetSizeBytes() == 0 {
				c.excuse("CreateSnapshot does not return size_bytes")
			}
			c.volume(from(snapshotSource(s.GetSnapshotId())), sized(&csi.CapacityRange{RequiredBytes: s.GetSizeBytes()}))
		},
	},
	{
		ID: "controller.snapshot.list-agrees", Level: Must, Spec: "ListSnapshots",
		Title: "ListSnapshots and CreateSnapshot return the same snapshot",
		Why:   "csi-snapshotter asks ListSnapshots for the status of snapshots that it did not create itself.",
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			s := c.volume().snapshot()
			var got *csi.Snapshot
			for begin := time.Now(); got == nil; {
				got = snapshotOf(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId()}), s.GetSnapshotId())
				if got == nil && !c.waits(begin) {
					c.excuse("ListSnapshots does not show the snapshot")
				}
			}
			if got.GetSourceVolumeId() != s.GetSourceVolumeId() || !proto.Equal(got.GetCreationTime(), s.GetCreationTime()) || got.GetSizeBytes() != s.GetSizeBytes() {
				c.fail("source_volume_id, creation_time and size_bytes as in "+requestJSON(s), "%s", requestJSON(got))
			}
		},
	},
	{
		ID: "controller.snapshot.list-deleted", Level: Must, Spec: "ListSnapshots",
		Title: "a snapshot that was deleted is in no list",
		Why:   "csi-snapshotter treats the snapshot as ready, and the restore fails.",
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			v := c.volume()
			kept, gone := v.snapshot(), v.snapshot()
			c.deleteSnapshot(gone.GetSnapshotId())
			c.eventually(func() {
				for _, req := range []*csi.ListSnapshotsRequest{{SnapshotId: gone.GetSnapshotId()}, {SourceVolumeId: v.id}, {}} {
					all := c.listSnapshots(req)
					if snapshotOf(all, gone.GetSnapshotId()) != nil {
						c.fail("no deleted snapshot in the list", "%s is there for %s", gone.GetSnapshotId(), requestJSON(req))
					}
					if req.GetSnapshotId() == "" && snapshotOf(all, kept.GetSnapshotId()) == nil {
						c.fail("snapshot "+kept.GetSnapshotId()+" in the list", "%d entries without it for %s", len(all), requestJSON(req))
					}
				}
			})
		},
	},
	{
		ID: "controller.snapshot.list-both-filters", Level: Must, Spec: "ListSnapshots",
		Title: "a snapshot is listed if it has both the requested ID and the requested source",
		Why:   "Every filter narrows the list. A driver that applies only one shows another volume's snapshot.",
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			v, other := c.volume(), c.volume()
			s := v.snapshot()
			c.eventually(func() {
				if n := len(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId(), SourceVolumeId: v.id})); n != 1 {
					c.fail("the snapshot by its ID and its volume", "%d entries", n)
				}
			})
			if n := len(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: s.GetSnapshotId(), SourceVolumeId: other.id})); n != 0 {
				c.fail("no snapshot of another volume", "%d entries", n)
			}
		},
	},
	{
		ID: "controller.snapshot.list-pages", Level: Must, Spec: "ListSnapshots",
		Title: "pages have at most max_entries, and together every snapshot once",
		Why:   "A snapshot that falls between two pages is taken for deleted.",
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			v := c.volume()
			ids := []string{v.snapshot().GetSnapshotId(), v.snapshot().GetSnapshotId(), v.snapshot().GetSnapshotId()}
			c.eventually(func() {
				for _, req := range []*csi.ListSnapshotsRequest{{MaxEntries: 1}, {MaxEntries: 2, SourceVolumeId: v.id}} {
					seen := map[string]int{}
					for _, s := range c.listSnapshots(req) {
						seen[s.GetSnapshotId()]++
					}
					for _, id := range ids {
						if seen[id] != 1 {
							c.error("each snapshot once", "%s is %d times on the pages for %s", id, seen[id], requestJSON(req))
						}
					}
				}
			})
		},
	},
	{
		ID: "controller.snapshot.list-negative-max", Level: Must, Spec: "ListSnapshots",
		Title: "a negative max_entries is INVALID_ARGUMENT",
		Why:   "The field must not be negative. A driver that converts it asks its backend for 4 billion entries.",
		Needs: needs(listSnapshots),
		check: func(c *ruleRun) {
			send(c, c.Controller.ListSnapshots, &csi.ListSnapshotsRequest{MaxEntries: -1}).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.snapshot.get-agrees", Level: Must, Spec: "GetSnapshot",
		Title: "GetSnapshot and CreateSnapshot return the same snapshot",
		Why:   "Two answers about one snapshot, of which one is wrong.",
		Needs: needs(createVolume, createSnapshot, getSnapshot),
		check: func(c *ruleRun) {
			s := c.volume().snapshot()
			a := send(c, c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()})
			got := a.ok().GetSnapshot()
			if got.GetSourceVolumeId() != s.GetSourceVolumeId() || !proto.Equal(got.GetCreationTime(), s.GetCreationTime()) || got.GetSizeBytes() != s.GetSizeBytes() || !got.GetReadyToUse() {
				a.wrong("source_volume_id, creation_time, size_bytes and ready_to_use as in %s", requestJSON(s))
			}
		},
	},
	{
		ID: "controller.snapshot.get-deleted", Level: Must, Spec: "GetSnapshot",
		Title: "a snapshot that was deleted is NOT_FOUND",
		Why:   "With this code the CO knows that the snapshot is gone for good.",
		Needs: needs(createVolume, createSnapshot, getSnapshot),
		check: func(c *ruleRun) {
			id := c.volume().snapshot().GetSnapshotId()
			c.deleteSnapshot(id)
			send(c, c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: id}).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.snapshot.name-reusable", Level: Must, Spec: "CreateSnapshot",
		Title: "the name of a deleted snapshot can be used again, also for another volume",
		Why:   "A name that stays taken is an error that no user can repair.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			req := c.volume().snapshotRequest()
			c.deleteSnapshot(step(c, c.Controller.CreateSnapshot, req).GetSnapshot().GetSnapshotId())
			req = proto.CloneOf(req)
			req.SourceVolumeId = c.volume().id
			a := send(c, c.Controller.CreateSnapshot, req)
			if a.ok().GetSnapshot().GetSourceVolumeId() != req.GetSourceVolumeId() {
				a.wrong("source_volume_id %q", req.GetSourceVolumeId())
			}
		},
	},
	{
		ID: "controller.snapshot.several", Level: Must, Spec: "CreateSnapshot",
		Title: "a volume has as many snapshots as there are names",
		Why:   "Two requests are the same if their names are. A driver that compares only the volume returns the first snapshot for all.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume()
			one, two := v.snapshot(), v.snapshot()
			if one.GetSnapshotId() == two.GetSnapshotId() {
				c.fail("two IDs for two names", "%s for both", one.GetSnapshotId())
			}
			c.deleteSnapshot(one.GetSnapshotId())
			c.volume(from(snapshotSource(two.GetSnapshotId())))
		},
	},
	{
		ID: "controller.snapshot.delete-again", Level: Must, Spec: "DeleteSnapshot",
		Title: "a snapshot that is created again under the name of a deleted one is deleted as well",
		Why: "A driver that remembers deletions by name, or by an ID that follows from it, answers OK and deletes nothing: the storage fills " +
			"with snapshots that nobody knows.",
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			req := c.volume().snapshotRequest()
			c.deleteSnapshot(c.snapshotOf(req).GetSnapshotId())
			again := c.snapshotOf(req).GetSnapshotId()
			c.deleteSnapshot(again)
			c.eventually(func() {
				if snapshotOf(c.listSnapshots(&csi.ListSnapshotsRequest{SnapshotId: again}), again) != nil {
					c.error("no deleted snapshot in the list", "%s is there", again)
				}
			})
		},
	},
	{
		// As controller.delete.late: "enough information to uniquely identify this specific snapshot".
		ID: "controller.snapshot.late-delete", Level: Must, Spec: "DeleteSnapshot",
		Title: "a delayed retry of DeleteSnapshot does not delete the successor of that name, which has another ID",
		Why:   "A call that timed out may arrive late. The ID is of the snapshot that was deleted, and not of its successor.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume()
			req := v.snapshotRequest()
			old := step(c, c.Controller.CreateSnapshot, req).GetSnapshot().GetSnapshotId()
			c.deleteSnapshot(old)
			s := step(c, c.Controller.CreateSnapshot, req).GetSnapshot()
			if s.GetSnapshotId() == old {
				c.excuse("the snapshot_id of a name is used again")
			}
			c.deleteSnapshot(old)
			c.volume(from(snapshotSource(s.GetSnapshotId())))
		},
	},
	{
		ID: "controller.snapshot.name-too-long", Level: Must, Spec: "Size Limits",
		Title: "a snapshot's name of more than 128 bytes is INVALID_ARGUMENT",
		Why:   "A driver that truncates names confuses two snapshots.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			req := c.volume().snapshotRequest()
			req.Name += strings.Repeat("x", 129-len(req.Name))
			send(c, c.Controller.CreateSnapshot, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.snapshot.name-control-characters", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot's name with control characters is INVALID_ARGUMENT",
		Why:   "They end C strings, forge log lines and confuse terminals.",
		Needs: needs(createVolume, createSnapshot),
		check: func(c *ruleRun) {
			v := c.volume()
			for _, bad := range []string{"\x00", "\x1b[31m", "\u0085"} {
				req := v.snapshotRequest()
				req.Name += bad
				send(c, c.Controller.CreateSnapshot, req).wants(codes.InvalidArgument)
			}
		},
	},
}
