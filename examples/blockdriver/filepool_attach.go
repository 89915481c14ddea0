package main

import (
	"context"
	"errors"
	"strings"

	"github.com/csikit/csikit/topology"
)

func (b *fileBackend) AttachVolume(ctx context.Context, id string, a Attachment) (map[string]string, error) {
	const op = "attach volume"
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if err != nil {
		return nil, fail(op, id, "%w", err)
	}
	node, err := b.readNode(a.NodeID)
	if errors.Is(err, errNotFound) {
		return nil, fail(op, id, "node %q %w; start the node plugin there, with the same pool", a.NodeID, errNoNode)
	}
	if err != nil {
		return nil, fail(op, id, "find node %q: %w", a.NodeID, err)
	}
	if err := topology.CheckNode(node.Topology, v.Segments); err != nil {
		return nil, fail(op, id, "%w: node %q: %w", errUnreachable, a.NodeID, err)
	}
	if has := v.Attachment; has != nil {
		if has.NodeID != a.NodeID {
			return nil, fail(op, id, "%w: it is attached to node %q; detach it there first", errInUse, has.NodeID)
		}
		if diff := has.differences(a); len(diff) > 0 {
			return nil, fail(op, id, "attachment to node %q %w: %s; detach it first", a.NodeID, errConflict, strings.Join(diff, "; "))
		}
		return publishContext(v), nil
	}
	if err := b.checkNotPinned(id); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	if _, err := b.checkImage(b.volumes, "volumes", v.ID, v.CapacityBytes); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	if node.MaxVolumes > 0 {
		// One attach to a node at a time, so that two do not both take its last place.
		unlock, err := b.lock(ctx, op, "node "+a.NodeID)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if has := b.attached.count(a.NodeID); has >= node.MaxVolumes {
			return nil, fail(op, id, "node %q has %d volumes attached and takes %d: %w; detach one first", a.NodeID, has, node.MaxVolumes, errFull)
		}
	}
	v.Generation++
	a.Generation = v.Generation
	v.Attachment = &a
	if _, err := b.vols.save(v); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	return publishContext(v), nil
}

func (b *fileBackend) DetachVolume(ctx context.Context, id, nodeID string) error {
	const op = "detach volume"
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err != nil {
		return fail(op, id, "%w", err)
	}
	if v.Attachment == nil || nodeID != "" && nodeID != v.Attachment.NodeID {
		return nil
	}
	v.Attachment = nil
	if _, err := b.vols.save(v); err != nil {
		return fail(op, id, "%w", err)
	}
	return nil
}
