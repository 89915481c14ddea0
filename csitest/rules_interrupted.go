package csitest

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// An attempt is one call of an RPC; it returns the ID of what was created.
type attempt func(context.Context) (call *Call, made string)

func attemptOf[Req, Resp any](c *ruleRun, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req, made func(*Resp) string) attempt {
	return func(ctx context.Context) (*Call, string) {
		a := sendCtx(ctx, c, rpc, req)
		if a.Err != nil || made == nil {
			return a.Call, ""
		}
		return a.Call, made(a.Resp)
	}
}

// A mutation is an RPC that changes something.
type mutation struct {
	prefix, rpc string
	needs       []Need
	prepare     func(*ruleRun) attempt // with new objects every time
}

var mutations = []mutation{
	{"controller.create.", "CreateVolume", needs(createVolume), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.CreateVolume, c.createRequest(), func(r *csi.CreateVolumeResponse) string { return r.GetVolume().GetVolumeId() })
	}},
	{"controller.delete.", "DeleteVolume", needs(createVolume), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.DeleteVolume, c.volume().deleteRequest(), nil)
	}},
	{"controller.publish.", "ControllerPublishVolume", needs(createVolume, attachVolume), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.ControllerPublishVolume, c.volume().attachRequest(), nil)
	}},
	{"controller.unpublish.", "ControllerUnpublishVolume", needs(createVolume, attachVolume), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.ControllerUnpublishVolume, c.volume().attach().detachRequest(), nil)
	}},
	{"controller.expand.", "ControllerExpandVolume", needs(createVolume, expandVolume), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.ControllerExpandVolume, c.volume().expandRequest(2*c.run.cfg.Size), nil)
	}},
	{"controller.modify.", "ControllerModifyVolume", needs(createVolume, modifyVolume, mutable), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.ControllerModifyVolume, c.volume().modifyRequest(c.run.cfg.MutableParameters), nil)
	}},
	{"controller.snapshot.", "CreateSnapshot", needs(createVolume, createSnapshot), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.CreateSnapshot, c.volume().snapshotRequest(), func(r *csi.CreateSnapshotResponse) string { return r.GetSnapshot().GetSnapshotId() })
	}},
	{"controller.snapshot.delete-", "DeleteSnapshot", needs(createVolume, createSnapshot), func(c *ruleRun) attempt {
		return attemptOf(c, c.Controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: c.volume().snapshot().GetSnapshotId()}, nil)
	}},
	{"group.create.", "CreateVolumeGroupSnapshot", needs(createVolume, groupService), func(c *ruleRun) attempt {
		return attemptOf(c, c.Group.CreateVolumeGroupSnapshot, c.groupRequest(c.volume(), c.volume()), func(r *csi.CreateVolumeGroupSnapshotResponse) string {
			return r.GetGroupSnapshot().GetGroupSnapshotId()
		})
	}},
	{"group.delete.", "DeleteVolumeGroupSnapshot", needs(createVolume, groupService), func(c *ruleRun) attempt {
		return attemptOf(c, c.Group.DeleteVolumeGroupSnapshot, deleteGroupRequest(c.group(c.volume(), c.volume())), nil)
	}},
}

// interruptions are when a call is cancelled: while it waits, while it works, and, of a
// fast driver, when it has ended.
var interruptions = []time.Duration{time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond}

var interruptedRules = func() (rules []Rule) {
	for _, m := range mutations {
		rules = append(rules, m.rules()...)
	}
	return append(rules, concurrencyRules...)
}()

func (m mutation) rules() []Rule {
	return []Rule{
		{
			ID: m.prefix + "after-cancel", Level: Must, Spec: "Timeouts",
			Title: m.rpc + " that was cancelled succeeds when it is retried",
			Why:   "A cancelled call is not rolled back. Work that continued, or that was interrupted, must not make the retry fail.",
			Needs: m.needs,
			check: func(c *ruleRun) {
				for _, after := range interruptions {
					try := m.prepare(c)
					ctx, cancel := context.WithCancel(c.context())
					timer := time.AfterFunc(after, cancel)
					try(ctx)
					timer.Stop()
					cancel()
					c.finish(try)
				}
			},
		},
		{
			ID: m.prefix + "after-deadline", Level: Must, Spec: "Timeouts",
			Title: m.rpc + " whose deadline was exceeded succeeds when it is retried",
			Why:   "Sidecars cancel a call after 10 to 15 seconds by default and retry it indefinitely: the work has to continue, or to start again.",
			Needs: m.needs,
			check: func(c *ruleRun) {
				for _, after := range interruptions {
					try := m.prepare(c)
					ctx, cancel := context.WithTimeout(c.context(), after)
					try(ctx)
					cancel()
					c.finish(try)
				}
			},
		},
		{
			ID: m.prefix + "parallel", Level: Must, Spec: m.rpc,
			Title: m.rpc + " with four identical concurrent requests takes effect once",
			Why: "A CO that crashed can send a call again while it is in flight. ABORTED is allowed for a call while another is in flight, but " +
				"it has to end: a retry succeeds, and all that succeeded return the same object.",
			Needs: m.needs,
			check: func(c *ruleRun) {
				try := m.prepare(c)
				calls, made := make([]*Call, 4), make([]string, 4)
				c.parallel(len(calls), func(i int) { calls[i], made[i] = try(c.ctx) })
				id := c.finish(try)
				for i, call := range calls {
					switch {
					case call.Code() != codes.OK && call.Code() != codes.Aborted:
						c.breach(call, wantText([]codes.Code{codes.OK, codes.Aborted}), call.responseText())
					case call.Code() == codes.OK && made[i] != id:
						c.breach(call, id+", as of the other calls", call.responseText())
					}
				}
			},
		},
	}
}

// finish repeats a call as a CO does until its outcome is known, which must be success.
func (c *ruleRun) finish(try attempt) string {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		call, made := try(c.ctx)
		if call.Code() == codes.OK {
			return made
		}
		if !uncertain(call.Status.Err()) || c.ctx.Err() != nil {
			c.breach(call, "OK: the call is repeated", call.responseText())
			panic(stop{})
		}
		select {
		case <-c.ctx.Done():
		case <-time.After(wait):
		}
	}
}

var concurrencyRules = []Rule{
	{
		ID: "controller.parallel.many-names", Level: Must, Spec: "Concurrency",
		Title: "sixteen concurrent requests with different names create sixteen volumes",
		Why:   "A StatefulSet does this. IDs from a clock, or from a counter without a lock, are not unique.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			ids := make([]string, 16)
			c.parallel(len(ids), func(i int) { ids[i] = c.volume().id })
			seen := map[string]bool{}
			for _, id := range ids {
				if seen[id] {
					c.fail("an ID for every name", "%s is there twice", id)
				}
				seen[id] = true
			}
			c.parallel(len(ids), func(i int) { (&volume{c: c, id: ids[i]}).delete() })
		},
	},
	{
		ID: "controller.parallel.one-volume", Level: Must, Spec: "Concurrency",
		Title: "different concurrent calls for one volume succeed, or answer that another is in flight, and that ends",
		Why: "A CO that crashed may send calls that do not go together. Whatever the order, no call fails for a reason of the driver's own, " +
			"and the volume can be deleted in the end.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			allowed := []codes.Code{codes.OK, codes.Aborted, codes.NotFound, codes.FailedPrecondition}
			calls := []func(){
				func() { send(c, c.Controller.CreateVolume, v.made).wants(allowed...) },
				func() { send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest()).wants(allowed...) },
				func() { send(c, c.Controller.DeleteVolume, v.deleteRequest()).wants(allowed...) },
			}
			if c.has(attachVolume) {
				calls = append(calls, func() { send(c, c.Controller.ControllerPublishVolume, v.attachRequest()).wants(allowed...) },
					func() { send(c, c.Controller.ControllerUnpublishVolume, v.detachRequest()).wants(allowed...) })
			}
			if c.has(expandVolume) {
				calls = append(calls, func() {
					send(c, c.Controller.ControllerExpandVolume, v.expandRequest(2*c.run.cfg.Size)).wants(allowed...)
				})
			}
			if c.has(createSnapshot) {
				calls = append(calls, func() {
					// Its errors name no code for a volume that is gone.
					a := send(c, c.Controller.CreateSnapshot, v.snapshotRequest())
					if a.Err == nil { // one may keep the volume from being deleted
						c.deleteSnapshot(a.Resp.GetSnapshot().GetSnapshotId())
					}
				})
			}
			for range 3 {
				c.parallel(len(calls), func(i int) { calls[i]() })
			}
			if c.has(attachVolume) {
				if err := undo(c.ctx, c.Controller.ControllerUnpublishVolume, v.detachRequest()); code(err) != codes.OK && code(err) != codes.NotFound {
					c.fail("OK from ControllerUnpublishVolume, or NotFound, in the end", "%v", err)
				}
			}
			v.delete()
		},
	},
}
