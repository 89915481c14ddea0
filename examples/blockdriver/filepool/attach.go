package filepool

import (
	"context"
	"errors"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"github.com/csikit/csikit/volumelock"
)

func (b *fileBackend) AttachVolume(ctx context.Context, id string, a storage.Attachment) (map[string]string, error) {
	const op = "attach volume"
	unlock, err := b.lock(ctx, op, volumelock.KindVolume, id)
	if err != nil {
		return nil, err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if err != nil {
		return nil, csierr.Errorf(op, id, "%w", err)
	}
	node, err := b.readNode(a.NodeID)
	if errors.Is(err, csierr.NotFound) {
		return nil, csierr.Errorf(op, id, "node %q %w; start the node plugin there, with the same pool", a.NodeID, errNoNode)
	}
	if err != nil {
		return nil, csierr.Errorf(op, id, "find node %q: %w", a.NodeID, err)
	}
	if err := topology.CheckNode(node.Topology, v.Segments); err != nil {
		return nil, csierr.Errorf(op, id, "%w: node %q: %w", storage.ErrNotAccessible, a.NodeID, err)
	}
	if has := v.Attachment; has != nil {
		if has.NodeID != a.NodeID {
			return nil, csierr.Errorf(op, id, "%w: it is attached to node %q; detach it there first", storage.ErrInUse, has.NodeID)
		}
		if err := has.Matches(a); err != nil {
			return nil, csierr.Errorf(op, id, "%w", err)
		}
		return publishContext(v), nil
	}
	if err := b.checkNotPinned(id); err != nil {
		return nil, csierr.Errorf(op, id, "%w", err)
	}
	if _, err := b.checkImage(b.volumes, "volumes", v.ID, v.CapacityBytes); err != nil {
		return nil, csierr.Errorf(op, id, "%w", err)
	}
	if node.MaxVolumes > 0 {
		// One attach to a node at a time, so that two do not both take its last place.
		unlock, err := b.lock(ctx, op, volumelock.KindAttachments, "of node "+a.NodeID)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if has := b.attached.count(a.NodeID); has >= node.MaxVolumes {
			return nil, csierr.Errorf(op, id, "node %q has %d volumes attached and takes %d: %w; detach one first", a.NodeID, has, node.MaxVolumes, csierr.NoSpace)
		}
	}
	v.Generation++
	v.Attachment = &attachment{a, v.Generation}
	if _, err := b.vols.save(v); err != nil {
		return nil, csierr.Errorf(op, id, "%w", err)
	}
	return publishContext(v), nil
}

func (b *fileBackend) DetachVolume(ctx context.Context, id, nodeID string) error {
	const op = "detach volume"
	unlock, err := b.lock(ctx, op, volumelock.KindVolume, id)
	if err != nil {
		return err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	if v.Attachment == nil || nodeID != "" && nodeID != v.Attachment.NodeID {
		return nil
	}
	v.Attachment = nil
	if _, err := b.vols.save(v); err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	return nil
}
