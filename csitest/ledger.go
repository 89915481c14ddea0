package csitest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A ledger remembers what the calls of a rule may have created, so that it can be
// undone in kubelet's order, whatever the rule did. A call counts as done unless
// its code promises that nothing was.
type ledger struct {
	mu sync.Mutex
	// Undoing requests by what they undo.
	published, staged, attached, snapshots, groups, volumes map[string]proto.Message
	// uncertain are requests to create whose outcome is not known.
	uncertain map[string]proto.Message
}

func newLedger() *ledger {
	m := func() map[string]proto.Message { return map[string]proto.Message{} }
	return &ledger{published: m(), staged: m(), attached: m(), snapshots: m(), groups: m(), volumes: m(), uncertain: m()}
}

func (l *ledger) note(call *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := call.Code() == codes.OK
	done := ok || uncertain(call.Status.Err())
	switch r := call.Request.(type) {
	case *csi.CreateVolumeRequest:
		if resp, _ := call.Response.(*csi.CreateVolumeResponse); l.created(call, r.GetName()) {
			l.volumes[resp.GetVolume().GetVolumeId()] = &csi.DeleteVolumeRequest{VolumeId: resp.GetVolume().GetVolumeId(), Secrets: r.GetSecrets()}
		}
	case *csi.CreateSnapshotRequest:
		if resp, _ := call.Response.(*csi.CreateSnapshotResponse); l.created(call, r.GetName()) {
			l.snapshots[resp.GetSnapshot().GetSnapshotId()] = &csi.DeleteSnapshotRequest{SnapshotId: resp.GetSnapshot().GetSnapshotId(), Secrets: r.GetSecrets()}
		}
	case *csi.CreateVolumeGroupSnapshotRequest:
		if resp, _ := call.Response.(*csi.CreateVolumeGroupSnapshotResponse); l.created(call, r.GetName()) {
			g := resp.GetGroupSnapshot()
			undo := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), Secrets: r.GetSecrets()}
			for _, s := range g.GetSnapshots() {
				undo.SnapshotIds = append(undo.SnapshotIds, s.GetSnapshotId())
			}
			l.groups[g.GetGroupSnapshotId()] = undo
		}
	case *csi.ControllerPublishVolumeRequest:
		if done && r.GetVolumeId() != "" {
			l.attached[r.GetVolumeId()+"\x00"+r.GetNodeId()] = &csi.ControllerUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), NodeId: r.GetNodeId(), Secrets: r.GetSecrets()}
		}
	case *csi.NodeStageVolumeRequest:
		if done && r.GetVolumeId() != "" && r.GetStagingTargetPath() != "" {
			l.staged[r.GetVolumeId()+"\x00"+r.GetStagingTargetPath()] = &csi.NodeUnstageVolumeRequest{VolumeId: r.GetVolumeId(), StagingTargetPath: r.GetStagingTargetPath()}
		}
	case *csi.NodePublishVolumeRequest:
		if done && r.GetVolumeId() != "" && r.GetTargetPath() != "" {
			l.published[r.GetVolumeId()+"\x00"+r.GetTargetPath()] = &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()}
		}
	}
	if !ok {
		return
	}
	switch r := call.Request.(type) {
	case *csi.DeleteVolumeRequest:
		delete(l.volumes, r.GetVolumeId())
	case *csi.DeleteSnapshotRequest:
		delete(l.snapshots, r.GetSnapshotId())
	case *csi.DeleteVolumeGroupSnapshotRequest:
		delete(l.groups, r.GetGroupSnapshotId())
	case *csi.ControllerUnpublishVolumeRequest:
		maps.DeleteFunc(l.attached, func(_ string, m proto.Message) bool {
			a := m.(*csi.ControllerUnpublishVolumeRequest)
			return a.GetVolumeId() == r.GetVolumeId() && a.GetNodeId() == r.GetNodeId() // without a node_id it may have done nothing
		})
	case *csi.NodeUnstageVolumeRequest:
		delete(l.staged, r.GetVolumeId()+"\x00"+r.GetStagingTargetPath())
	case *csi.NodeUnpublishVolumeRequest:
		delete(l.published, r.GetVolumeId()+"\x00"+r.GetTargetPath())
	}
}

// created reports whether the answer to a create call names an object to be deleted.
func (l *ledger) created(call *Call, name string) bool {
	key := call.Method + " " + name
	switch {
	case call.Code() == codes.OK:
		delete(l.uncertain, key)
		return true
	case uncertain(call.Status.Err()):
		l.uncertain[key] = call.Request
	}
	return false
}

// cleanup undoes everything within ctx, and says what it could not undo.
func (c *ruleRun) cleanup(ctx context.Context) (left []string) {
	c.ctx = ctx
	c.clients(true)
	for _, m := range c.ledger.take(c.ledger.uncertain) {
		var err error
		switch r := m.(type) { // repeated, to learn the ID
		case *csi.CreateVolumeRequest:
			err = undo(ctx, c.Controller.CreateVolume, r)
		case *csi.CreateSnapshotRequest:
			err = undo(ctx, c.Controller.CreateSnapshot, r)
		case *csi.CreateVolumeGroupSnapshotRequest:
			err = undo(ctx, c.Group.CreateVolumeGroupSnapshot, r)
		}
		if uncertain(err) {
			left = append(left, fmt.Sprintf("what was requested as %q: %v", volumeOf(m), err))
		}
	}
	uncertains := len(left)
	var all []proto.Message
	for _, group := range []map[string]proto.Message{
		c.ledger.published, c.ledger.staged, c.ledger.attached, c.ledger.groups, c.ledger.snapshots, c.ledger.volumes,
	} {
		all = append(all, c.ledger.take(group)...)
	}
	// What something was made from may have to stay until that is gone: again, while it helps.
	for before := len(all) + 1; len(all) < before; {
		before, left = len(all), left[:uncertains]
		all = slices.DeleteFunc(all, func(m proto.Message) bool {
			err := c.undo(ctx, m)
			gone := err == nil || status.Code(err) == codes.NotFound
			if !gone {
				left = append(left, fmt.Sprintf("%s %s: %v", m.ProtoReflect().Descriptor().Name(), requestJSON(m), err))
			}
			return gone
		})
	}
	return left
}

func (c *ruleRun) undo(ctx context.Context, m proto.Message) error {
	switch r := m.(type) {
	case *csi.NodeUnpublishVolumeRequest:
		return undo(ctx, c.Node.NodeUnpublishVolume, r)
	case *csi.NodeUnstageVolumeRequest:
		return undo(ctx, c.Node.NodeUnstageVolume, r)
	case *csi.ControllerUnpublishVolumeRequest:
		return undo(ctx, c.Controller.ControllerUnpublishVolume, r)
	case *csi.DeleteSnapshotRequest:
		return undo(ctx, c.Controller.DeleteSnapshot, r)
	case *csi.DeleteVolumeGroupSnapshotRequest:
		return undo(ctx, c.Group.DeleteVolumeGroupSnapshot, r)
	case *csi.DeleteVolumeRequest:
		return undo(ctx, c.Controller.DeleteVolume, r)
	}
	return nil
}

// undo repeats a call as long as its outcome is not known.
func undo[Req, Resp any](ctx context.Context, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		_, err := rpc(ctx, req)
		if !uncertain(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func (l *ledger) take(m map[string]proto.Message) []proto.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []proto.Message
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}
