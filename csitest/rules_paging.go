package csitest

import (
	"math"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const churnWhy = "Volumes come and go while a CO reads. A token that was good a moment ago must not be an error that ends the reading, " +
	"nor a list without end. ABORTED is allowed: the CO starts over."

// underChurn reads a list one by one, with a change between the pages, until it gets to the end
// without ABORTED. What is on the pages is not compared: "it is possible that the CO MAY either
// witness duplicate volumes in the list, not witness existing volumes, or both".
func (c *ruleRun) underChurn(page func(token string) (next string, aborted bool), change func()) {
	for range 10 {
		token := ""
		for n := range 1000 {
			next, aborted := page(token)
			if aborted {
				break
			}
			if token = next; token == "" {
				return
			}
			if n < 12 {
				change()
			}
		}
	}
	c.fail("the list completes within ten restarts", "ABORTED, or next_token, forever")
}

var pagingRules = []Rule{
	{
		ID: "controller.list.churn", Level: Must, Spec: "ListVolumes",
		Title: "the list can be read to its end while volumes are created and deleted: each page is OK, or ABORTED",
		Why:   churnWhy,
		Needs: needs(createVolume, listVolumes),
		check: func(c *ruleRun) {
			var churn []*volume
			for range 4 {
				churn = append(churn, c.volume())
				c.volume() // that stays
			}
			c.underChurn(func(token string) (next string, aborted bool) {
				a := send(c, c.Controller.ListVolumes, &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: token})
				if token != "" && a.is(codes.Aborted) {
					return "", true
				}
				return a.ok().GetNextToken(), false
			}, func() {
				churn[0].delete()
				churn = append(churn[1:], c.volume())
			})
		},
	},
	{
		ID: "controller.snapshot.list-churn", Level: Must, Spec: "ListSnapshots",
		Title: "the list can be read to its end while snapshots are created and deleted: each page is OK, or ABORTED",
		Why:   churnWhy,
		Needs: needs(createVolume, createSnapshot, listSnapshots),
		check: func(c *ruleRun) {
			v := c.volume()
			var churn []string
			for range 3 {
				churn = append(churn, v.snapshot().GetSnapshotId())
				v.snapshot() // that stays
			}
			c.underChurn(func(token string) (next string, aborted bool) {
				a := send(c, c.Controller.ListSnapshots, &csi.ListSnapshotsRequest{MaxEntries: 1, StartingToken: token})
				if token != "" && a.is(codes.Aborted) {
					return "", true
				}
				return a.ok().GetNextToken(), false
			}, func() {
				c.deleteSnapshot(churn[0])
				churn = append(churn[1:], v.snapshot().GetSnapshotId())
			})
		},
	},
	{
		ID: "controller.list.large-max", Level: Must, Spec: "ListVolumes",
		Title: "the largest max_entries is accepted",
		Why:   "It exceeds the number of entries. A driver that allocates memory for it crashes.",
		Needs: needs(createVolume, listVolumes),
		check: func(c *ruleRun) {
			v := c.volume()
			c.eventually(func() {
				if all := c.list(math.MaxInt32); entryOf(all, v.id) == nil {
					c.fail("volume "+v.id+" in the list", "%d entries without it", len(all))
				}
			})
		},
	},
	{
		ID: "controller.list.token-again", Level: Should, Spec: "ListVolumes",
		Title: "a page that is requested twice is the same page",
		Why:   "The CO retries a call that timed out. A token that works once loses a page, and the volumes on it.",
		Needs: needs(createVolume, listVolumes),
		check: func(c *ruleRun) {
			c.volume()
			c.volume()
			first := send(c, c.Controller.ListVolumes, &csi.ListVolumesRequest{MaxEntries: 1}).ok()
			if first.GetNextToken() == "" {
				c.excuse("the list has one page")
			}
			req := &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: first.GetNextToken()}
			second := send(c, c.Controller.ListVolumes, req).ok()
			a := send(c, c.Controller.ListVolumes, req)
			if a.is(codes.Aborted) {
				return
			}
			if !proto.Equal(a.ok(), second) {
				a.wrong("%s, as the first time", requestJSON(second))
			}
		},
	},
	{
		ID: "controller.get.agrees", Level: Must, Spec: "ControllerGetVolume",
		Title: "ControllerGetVolume and CreateVolume return the same volume",
		Why:   "Two answers about one volume, of which one is wrong.",
		Needs: needs(createVolume, getVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			a := send(c, c.Controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: v.id})
			got := a.ok().GetVolume()
			if got.GetVolumeId() != v.id || got.GetCapacityBytes() != 0 && v.created.GetCapacityBytes() != 0 && got.GetCapacityBytes() != v.created.GetCapacityBytes() {
				a.wrong("volume_id and capacity_bytes as in %s", requestJSON(v.created))
			}
		},
	},
	{
		ID: "controller.get.volume-missing", Level: Must, Spec: "ControllerGetVolume",
		Title: "a volume that does not exist is NOT_FOUND",
		Why:   "The health monitor reports a volume as lost by this code, and by no other.",
		Needs: needs(createVolume, getVolume),
		check: func(c *ruleRun) {
			send(c, c.Controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: c.unknownID()}).wants(codes.NotFound)
		},
	},
	{
		ID: "controller.get.published-nodes", Level: Must, Spec: "ControllerGetVolume",
		Title: "published_node_ids has the node while the volume is published to it",
		Why:   "The CO compares it with what it believes, and detaches what should not be attached.",
		Needs: needs(createVolume, attachVolume, getVolume, publishedNodes),
		check: func(c *ruleRun) {
			v := c.volume()
			published := func(want bool) {
				a := send(c, c.Controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: v.id})
				if slices.Contains(a.ok().GetStatus().GetPublishedNodeIds(), v.node) != want {
					a.wrong("published_node_ids with %s: %t", v.node, want)
				}
			}
			published(false)
			v.attach()
			published(true)
			v.detach()
			published(false)
		},
	},
	{
		ID: "controller.get.after-expand", Level: Must, Spec: "ControllerGetVolume",
		Title: "ControllerGetVolume and ListVolumes return the size after ControllerExpandVolume",
		Why:   "A call after an expansion must not see the old size.",
		Needs: needs(createVolume, getVolume, expandVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			size := step(c, c.Controller.ControllerExpandVolume, v.expandRequest(2*c.run.cfg.Size)).GetCapacityBytes()
			a := send(c, c.Controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: v.id})
			if got := a.ok().GetVolume().GetCapacityBytes(); got != 0 && got != size {
				a.wrong("capacity_bytes %d", size)
			}
		},
	},
}

// pages are those of a list that is being read, by what the driver returned.
type pages map[string]bool

// again ends the rule at a page that was there before, with the same next_token: the list would
// not end. One of which each page differs ends, too.
func (p pages) again(page *Call, wrong func(want string, args ...any)) {
	text := page.responseText()
	if p[text] {
		wrong("another page, or the end: this one was there before, with the same next_token")
	}
	if p[text] = true; len(p) > 10_000 {
		wrong("the end: this is page %d", len(p))
	}
}
