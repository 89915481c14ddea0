package memory

import (
	"context"
	"errors"
	"io/fs"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
)

// devices are the loop devices of a node.
type devices struct {
	*Memory
	nodeID string
}

func (d devices) Attach(ctx context.Context, r storage.DeviceRequest) (nodeops.Device, error) {
	_, err := d.with("attach device", r.VolumeID, func(v *volume) error {
		if a := v.Attachment; a == nil || a.NodeID != d.nodeID || r.PublishContext["attachment"] != v.attachment {
			return csierr.Precondition.New("it is no longer attached to this node")
		}
		dev, err := d.loop(v.ID)
		if err == nil && dev != nil && !dev.Detaching {
			_, err = dev.Resize()
			return err
		} else if err == nil {
			_, err = loopdev.Attach(ctx, d.file(v.ID))
		}
		return err
	})
	if err != nil {
		return nodeops.Device{}, err
	}
	return d.Find(ctx, r.VolumeID)
}

// loop returns the device of a volume, also of one that was deleted; nil: it has none.
func (d devices) loop(id string) (*loopdev.Device, error) {
	if !idPattern.MatchString(id) { // it is not used as a path
		return nil, nil
	}
	dev, err := loopdev.Find(d.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		var all []loopdev.Device
		if all, err = loopdev.List(); err == nil {
			err = loopdev.ErrNotAttached
		}
		for _, x := range all {
			if x.Backing == d.file(id) {
				return &x, nil
			}
		}
	}
	if errors.Is(err, loopdev.ErrNotAttached) || errors.Is(err, fs.ErrPermission) { // without permission nothing was attached
		return nil, nil
	}
	return dev, err
}

func (d devices) Find(_ context.Context, id string) (nodeops.Device, error) {
	dev, err := d.loop(id)
	if err == nil && (dev == nil || dev.Detaching) {
		err = csierr.Errorf("find device of volume", id, "%w", csierr.NotFound)
	}
	if err != nil {
		return nodeops.Device{}, err
	}
	return nodeops.Device{Path: dev.Path, Size: dev.Size}, nil
}

func (d devices) Detach(ctx context.Context, id string) error {
	dev, err := d.loop(id)
	if err != nil || dev == nil {
		return err
	}
	return dev.Detach(ctx)
}

func (d devices) Rescan(_ context.Context, id string, _ map[string]string) (int64, error) {
	dev, err := d.loop(id)
	if err == nil && dev == nil {
		err = csierr.Errorf("rescan device of volume", id, "%w", csierr.NotFound)
	}
	if err != nil {
		return 0, err
	}
	return dev.Resize()
}
