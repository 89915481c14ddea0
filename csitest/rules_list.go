package csitest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// list reads all pages of at most n entries.
func (c *ruleRun) list(n int32) (all []*csi.ListVolumesResponse_Entry) {
	req := &csi.ListVolumesRequest{MaxEntries: n}
	seen := pages{}
	for {
		a := send(c, c.Controller.ListVolumes, req)
		all = append(all, a.ok().GetEntries()...)
		if n > 0 && len(a.Resp.GetEntries()) > int(n) {
			a.wrong("at most %d entries", n)
		}
		seen.again(a.Call, a.wrong)
		if req.StartingToken = a.Resp.GetNextToken(); req.StartingToken == "" {
			return all
		}
	}
}

func entryOf(all []*csi.ListVolumesResponse_Entry, id string) *csi.ListVolumesResponse_Entry {
	for _, e := range all {
		if e.GetVolume().GetVolumeId() == id {
			return e
		}
	}
	return nil
}

// entry is the one of the volume. Without one there is nothing to compare, which is for
// controller.list.complete to find.
func (c *ruleRun) entry(v *volume) (e *csi.ListVolumesResponse_Entry) {
	for begin := time.Now(); e == nil; {
		if e = entryOf(c.list(0), v.id); e == nil && !c.waits(begin) {
			c.excuse("ListVolumes does not show the volume")
		}
	}
	return e
}

// eventually runs a part of a rule again while it fails: what lists show may lag behind.
func (c *ruleRun) eventually(part func()) {
	for begin := time.Now(); ; {
		ended, failures := c.trial(part)
		if len(failures) > 0 && c.waits(begin) {
			continue
		}
		if c.failures = append(c.failures, failures...); ended != nil {
			panic(ended)
		}
		return
	}
}

// trial runs a part of a rule, and returns what ended it and its failures.
func (c *ruleRun) trial(part func()) (ended any, failures []Failure) {
	before := c.failures
	c.failures = nil
	defer func() {
		ended, failures, c.failures = recover(), c.failures, before
	}()
	part()
	return nil, nil
}

// waits some time, unless the timeout is over.
func (c *ruleRun) waits(begin time.Time) bool {
	if time.Since(begin) > cmp.Or(c.run.cfg.listTimeout, listTimeout) {
		return false
	}
	select {
	case <-c.ctx.Done():
		return false
	case <-time.After(100 * time.Millisecond):
		return true
	}
}

// listTimeout is how far a list may lag behind the calls that changed it. The
// specification says nothing about it; distributed stores are eventually consistent.
const listTimeout = 10 * time.Second

var listRules = []Rule{
	{
		ID: "controller.list.complete", Level: Must, Spec: "ListVolumes",
		Title: "ListVolumes returns volumes that were created and none that were deleted",
		Why:   "The health monitor and the attacher treat a volume that is not in the list as lost.",
		Needs: needs(createVolume, listVolumes),
		check: func(c *ruleRun) {
			kept, gone := c.volume(), c.volume()
			gone.delete()
			c.eventually(func() {
				all := c.list(0)
				if entryOf(all, kept.id) == nil {
					c.error("volume "+kept.id+" in the list", "%d entries without it", len(all))
				}
				if entryOf(all, gone.id) != nil {
					c.error("no deleted volume in the list", "%s is there", gone.id)
				}
			})
		},
	},
	{
		ID: "controller.list.capacity-agrees", Level: Should, Spec: "ListVolumes",
		Title: "ListVolumes and CreateVolume return the same capacity",
		Why:   "The two responses contradict each other.",
		Needs: needs(createVolume, listVolumes),
		check: func(c *ruleRun) {
			v := c.volume()
			e := c.entry(v)
			if got, want := e.GetVolume().GetCapacityBytes(), v.created.GetCapacityBytes(); got != 0 && want != 0 && got != want {
				c.fail("the capacity_bytes of CreateVolume", "CreateVolume said %d, ListVolumes says %d", want, got)
			}
		},
	},
	{
		ID: "controller.list.pages", Level: Must, Spec: "ListVolumes",
		Title: "pages have at most max_entries, and together every volume once",
		Why:   "external-attacher reads the list in pages; a volume that falls between two of them is taken for detached.",
		Needs: needs(createVolume, listVolumes),
		check: func(c *ruleRun) {
			var made []string
			for range 3 {
				made = append(made, c.volume().id)
			}
			c.eventually(func() {
				seen := map[string]int{}
				for _, e := range c.list(1) {
					seen[e.GetVolume().GetVolumeId()]++
				}
				for _, id := range made {
					if seen[id] != 1 {
						c.error("each volume once", "%s is %d times on the pages of one entry each", id, seen[id])
					}
				}
			})
		},
	},
	{
		ID: "controller.list.bad-token", Level: Must, Spec: "ListVolumes",
		Title: "a starting_token that the driver never returned is ABORTED",
		Why:   "ABORTED makes the CO start again from the beginning. OK would show it a part of the list as the whole.",
		Needs: needs(listVolumes),
		check: func(c *ruleRun) {
			send(c, c.Controller.ListVolumes, &csi.ListVolumesRequest{StartingToken: "no-token-of-this-driver"}).wants(codes.Aborted)
		},
	},
	{
		ID: "controller.list.negative-max", Level: Must, Spec: "ListVolumes",
		Title: "a negative max_entries is INVALID_ARGUMENT",
		Why:   "The field must not be negative. A driver that converts it asks its backend for 4 billion entries.",
		Needs: needs(listVolumes),
		check: func(c *ruleRun) {
			send(c, c.Controller.ListVolumes, &csi.ListVolumesRequest{MaxEntries: -1}).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "controller.list.published-nodes", Level: Must, Spec: "ListVolumes",
		Title: "published_node_ids has the node while the volume is published to it",
		Why:   "external-attacher attaches again what the list shows as detached, and detaches what should not be attached.",
		Needs: needs(createVolume, attachVolume, listVolumes, publishedNodes),
		check: func(c *ruleRun) {
			v := c.volume()
			published := func(want bool, when string) {
				c.eventually(func() {
					if slices.Contains(entryOf(c.list(0), v.id).GetStatus().GetPublishedNodeIds(), v.node) != want {
						c.fail(fmt.Sprintf("published_node_ids with %s: %t", v.node, want), "the opposite %s", when)
					}
				})
			}
			published(false, "before ControllerPublishVolume")
			v.attach()
			published(true, "after ControllerPublishVolume")
			v.detach()
			published(false, "after ControllerUnpublishVolume")
		},
	},
}
