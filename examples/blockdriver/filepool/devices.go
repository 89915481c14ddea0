package filepool

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
)

// The loop devices of the images: storage.Devices.

var (
	_ storage.Devices               = (*devices)(nil)
	_ storage.HealthReporter        = (*devices)(nil)
	_ storage.StorageHealthReporter = (*devices)(nil)
	_ freezer                       = (*devices)(nil)
)

// Attach attaches the image of the volume to a loop device. It reads the record of the
// volume: a node that was disconnected may have missed that the volume was detached from it.
func (d *devices) Attach(ctx context.Context, a storage.DeviceRequest) (nodeops.Device, error) {
	const op = "attach device of volume"
	p, v, err := d.find(ctx, a.VolumeID)
	if err != nil {
		return nodeops.Device{}, err
	}
	if a := v.Attachment; a == nil || a.NodeID != d.env.NodeID {
		return nodeops.Device{}, csierr.Errorf(op, v.ID, "%w: it is not attached to node %s: ControllerPublishVolume comes first", csierr.Precondition, d.env.NodeID)
	}
	has, want := a.PublishContext, publishContext(v)
	if has[contextImage] != want[contextImage] {
		return nodeops.Device{}, csierr.Errorf(op, v.ID, "%w: publish_context: image %q is not that of the volume: pass on what ControllerPublishVolume returned", csierr.Invalid, has[contextImage])
	}
	if has[contextAttachment] != want[contextAttachment] {
		return nodeops.Device{}, csierr.Errorf(op, v.ID, "%w: publish_context: attachment %q has ended: ControllerPublishVolume comes first", csierr.Precondition, has[contextAttachment])
	}
	if err := p.CheckImage(v); err != nil {
		return nodeops.Device{}, err
	}
	image := p.image(v.ID)
	dev, err := attachLoop(ctx, image)
	if err == nil {
		err = tune(dev, image, v.Mutable)
	}
	if err != nil {
		return nodeops.Device{}, csierr.Errorf(op, v.ID, "%w", err)
	}
	return nodeops.Device{Path: dev.Path}, nil // its backing inode is the proof of identity
}

// Find returns the loop device of the volume, and applies mutable parameters that were
// changed to it. The next Attach returns what fails.
func (d *devices) Find(ctx context.Context, id string) (nodeops.Device, error) {
	p, v, err := d.find(ctx, id)
	if err != nil {
		return nodeops.Device{}, err
	}
	image := p.image(id)
	dev, err := findLoop(image)
	if err == nil && (dev == nil || dev.Detaching) {
		err = csierr.NotFound.New("it has no loop device on this node")
	}
	if err != nil {
		return nodeops.Device{}, csierr.Errorf("find device of volume", id, "%w", err)
	}
	_ = tune(dev, image, v.Mutable)
	return nodeops.Device{Path: dev.Path, Size: dev.Size}, nil
}

// Rescan makes the loop device as large as the image: it does not follow by itself.
func (d *devices) Rescan(ctx context.Context, id string, _ map[string]string) (size int64, err error) {
	const op = "resize device of volume"
	p, _, err := d.find(ctx, id)
	if err != nil {
		return 0, err
	}
	dev, err := findLoop(p.image(id))
	if err == nil && dev == nil {
		err = csierr.NotFound.New("it has no loop device on this node: stage it first")
	}
	if err == nil {
		size, err = dev.Resize()
	}
	if err != nil {
		return 0, csierr.Errorf(op, id, "%w", err)
	}
	return size, nil
}

// Detach detaches the loop devices of the volume's image, and of its predecessors that were
// deleted while attached. Neither the volume nor its record need exist any more: the ID
// names the image. A device that is still mounted or published is csierr.Precondition: a raw
// block publication does not keep the device open, so the kernel would detach it while a pod
// uses it.
func (d *devices) Detach(ctx context.Context, id string) error {
	const op = "detach device of volume"
	for _, image := range d.images(id) {
		all, err := loopsOf(image)
		if err != nil {
			return csierr.Errorf(op, id, "%w", err)
		}
		for _, dev := range all {
			at, err := d.env.Ops.MountedAt(ctx, nodeops.Device{Path: dev.Path})
			if err != nil {
				return err
			}
			if len(at) > 0 {
				return csierr.Errorf(op, id, "%w: %s is still published at %v: unpublish it first", csierr.Precondition, dev.Path, at)
			}
			if err := dev.Detach(ctx); err != nil {
				return csierr.Errorf(op, id, "%w", err)
			}
		}
	}
	return nil
}

func (d *devices) nodeID() string { return d.env.NodeID }

// attachLoop attaches the image to a loop device. One that is there already only learns the
// image's size: it may be published read-only, which loopdev.Attach would end.
func attachLoop(ctx context.Context, image string) (*loopdev.Device, error) {
	dev, err := findLoop(image)
	if err != nil {
		return nil, err
	}
	if dev == nil || dev.Detaching {
		return loopdev.Attach(ctx, image)
	}
	_, err = dev.Resize()
	return dev, err
}

// findLoop returns the image's loop device, nil if it has none.
func findLoop(image string) (*loopdev.Device, error) {
	dev, err := loopdev.Find(image)
	if errors.Is(err, loopdev.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return dev, err
}

// loopsOf returns the loop devices of the image and of its predecessors that were deleted.
func loopsOf(image string) ([]loopdev.Device, error) {
	all, err := loopdev.List()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(d loopdev.Device) bool { return !d.Deleted || d.Backing != image })
	dev, err := findLoop(image)
	if dev != nil {
		all = append(all, *dev)
	}
	return all, err
}
