package filepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
)

// FIFREEZE and FITHAW of linux/fs.h, which golang.org/x/sys/unix does not have.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freeze stops all writes to the file system of a volume that is staged on this
// node: what pods have written is on the image, and they wait. It times out after
// freezeTimeout: the kernel first writes what is dirty, to a disk that may not answer.
// That cannot be stopped, but when it has ended the volume is thawed.
func (d *devices) freeze(ctx context.Context, volumeID string) (thaw func() error, err error) {
	dir, err := d.openStaged(ctx, volumeID)
	if err != nil {
		return nil, err
	}
	if err := d.freezeDir(ctx, volumeID, dir); err != nil {
		return nil, err
	}
	// Once: another freeze may follow.
	end := sync.OnceValue(func() error { return d.thaw(volumeID, dir) })
	timer := time.AfterFunc(freezeLimit, func() { _ = end() })
	return func() error {
		inTime := timer.Stop()
		if err := end(); err != nil {
			return err
		}
		if !inTime {
			return fmt.Errorf("volume %q was thawed after %v, before its snapshot was taken: %w", volumeID, freezeLimit, csierr.Busy)
		}
		return nil
	}, nil
}

// freezeTimeout is how long a freeze, or a thaw, is waited for.
const freezeTimeout = 10 * time.Second

// freezeDir closes dir unless it succeeds.
func (d *devices) freezeDir(ctx context.Context, volumeID string, dir *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	frozen := false
	_, joined, err := d.work.Do(ctx, "freeze volume "+volumeID, func() (any, error) {
		err := unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0)
		frozen = err == nil
		return nil, err
	})
	var pending *blocking.PendingError
	switch {
	case !joined && errors.As(err, &pending):
		go func() {
			<-pending.Pending()
			if !frozen {
				dir.Close()
			} else {
				_ = d.thaw(volumeID, dir) // on failure the mark is left for the next start
			}
		}()
		return err
	case !joined && err == nil:
		return nil
	}
	dir.Close()
	switch {
	case joined && err == nil, errors.Is(err, unix.EBUSY): // joined one that was abandoned
		return fmt.Errorf("volume %q is frozen already: %w", volumeID, csierr.Busy)
	case errors.As(err, &pending):
		return err
	}
	return fmt.Errorf("freeze volume %q: %w", volumeID, err)
}

// thaw closes dir, when it has ended.
func (d *devices) thaw(volumeID string, dir *os.File) error {
	end := func() (any, error) {
		defer dir.Close()
		return nil, unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	_, joined, err := d.work.Do(ctx, "thaw volume "+volumeID+" at "+dir.Name(), end)
	if joined {
		dir.Close()
	}
	if refused := (*blocking.LimitError)(nil); errors.As(err, &refused) {
		_, err = end() // it has to be, and all else hangs already
	}
	if err != nil {
		return fmt.Errorf("thaw volume %q: %w", volumeID, err)
	}
	return nil
}

// openStaged opens the root of the file system of a volume that is staged here.
func (d *devices) openStaged(ctx context.Context, volumeID string) (*os.File, error) {
	p, vol, err := d.find(ctx, volumeID)
	if err != nil {
		return nil, err
	}
	if a := vol.Attachment; a == nil || a.NodeID != d.env.NodeID {
		return nil, fmt.Errorf("%w: volume %q is attached to another node, and this one cannot freeze it; detach it", storage.ErrInUse, volumeID)
	}
	if vol.AccessType == storage.AccessBlock {
		return nil, fmt.Errorf("%w: volume %q is a raw block volume, which cannot be frozen; detach it", storage.ErrInUse, volumeID)
	}
	dir, err := d.openMounted(ctx, p.image(volumeID))
	if err == nil && dir == nil {
		err = fmt.Errorf("%w: volume %q is attached to this node but not staged; stage it, or detach it", storage.ErrInUse, volumeID)
	}
	return dir, err
}

// openMounted opens the root of the file system on the image's loop device; nil: it
// is not mounted here, or is published only as a raw block device.
func (d *devices) openMounted(ctx context.Context, image string) (*os.File, error) {
	dev, err := findLoop(image)
	if err != nil || dev == nil {
		return nil, err
	}
	at, err := d.env.Ops.MountedAt(ctx, nodeops.Device{Path: dev.Path})
	if err != nil {
		return nil, err
	}
	for _, path := range at {
		dir, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.ENOTDIR) {
			return dir, err
		}
	}
	return nil, nil
}

// thawLeftovers thaws what a predecessor that was killed has frozen, by the marks in the pool.
// It is called when the pool is opened.
func (d *devices) thawLeftovers(p *pool) error {
	names, err := readNames(p.groups)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, extFrozen) {
			continue
		}
		if err := d.thawMarked(p, name); err != nil {
			return fmt.Errorf("thaw what %s names: %w", p.file("groups", name), err)
		}
	}
	return nil
}

func (d *devices) thawMarked(p *pool, name string) error {
	data, err := p.groups.ReadFile(name)
	if err != nil {
		return err
	}
	var mark frozenMark
	if err := json.Unmarshal(data, &mark); err != nil { // no reason to leave all volumes without a node plugin
		d.log.Error("volumes may be frozen, and their list cannot be read", "file", p.file("groups", name), "error", err)
		return nil
	}
	if mark.NodeID != d.env.NodeID {
		return nil // another node's
	}
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	for _, id := range mark.VolumeIDs {
		for _, image := range d.images(id) {
			dir, err := d.openMounted(ctx, image)
			if err != nil {
				return err
			}
			if dir == nil {
				continue
			}
			if err := d.thaw(id, dir); err != nil && !errors.Is(err, unix.EINVAL) { // not frozen
				return err
			}
		}
	}
	d.log.Warn("thawed volumes that an earlier process left frozen", "volume_ids", mark.VolumeIDs)
	return p.remove(p.groups, name)
}
