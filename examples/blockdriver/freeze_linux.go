package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
)

// FIFREEZE and FITHAW of linux/fs.h, which golang.org/x/sys/unix does not have.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

var _ freezer = (*nodeServer)(nil)

// Freeze stops all writes to the file system of a volume that is staged on this
// node: what pods have written is on the image, and they wait.
func (n *nodeServer) Freeze(ctx context.Context, volumeID string) (thaw func() error, err error) {
	dir, err := n.openStaged(ctx, volumeID)
	if err != nil {
		return nil, err
	}
	switch err := unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0); {
	case errors.Is(err, unix.EBUSY):
		dir.Close()
		return nil, fmt.Errorf("volume %q is frozen already: %w", volumeID, errBusy)
	case err != nil:
		dir.Close()
		return nil, fmt.Errorf("freeze volume %q: %w", volumeID, err)
	}
	// Once: another freeze may follow.
	end := sync.OnceValue(func() error {
		defer dir.Close()
		if err := unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0); err != nil {
			return fmt.Errorf("thaw volume %q: %w", volumeID, err)
		}
		return nil
	})
	timer := time.AfterFunc(freezeLimit, func() { _ = end() })
	return func() error {
		inTime := timer.Stop()
		if err := end(); err != nil {
			return err
		}
		if !inTime {
			return fmt.Errorf("volume %q was thawed after %v, before the cut was made: %w", volumeID, freezeLimit, errBusy)
		}
		return nil
	}, nil
}

// openStaged opens the root of the file system of a volume that is staged here.
func (n *nodeServer) openStaged(ctx context.Context, volumeID string) (*os.File, error) {
	vol, image, err := n.volumes.FindVolume(ctx, volumeID)
	if err != nil {
		return nil, err
	}
	if a := vol.Attachment; a == nil || a.NodeID != n.nodeID {
		return nil, fmt.Errorf("%w: volume %q is attached to another node than this, which cannot freeze it; detach it", errInUse, volumeID)
	}
	if vol.AccessType == accessBlock {
		return nil, fmt.Errorf("%w: volume %q is a raw block volume, which cannot be frozen; detach it", errInUse, volumeID)
	}
	dir, err := n.openMounted(ctx, image)
	if err == nil && dir == nil {
		err = fmt.Errorf("%w: volume %q is attached to this node but not staged; stage it, or detach it", errInUse, volumeID)
	}
	return dir, err
}

// openMounted opens the root of the file system on the image's loop device; nil: it
// is not mounted here, or shows as a raw block device alone.
func (n *nodeServer) openMounted(ctx context.Context, image string) (*os.File, error) {
	dev, err := findLoop(image)
	if err != nil || dev == nil {
		return nil, err
	}
	at, err := n.ops.MountedAt(ctx, nodeops.Device{Path: dev.Path})
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

// thawLeftovers thaws what a predecessor that was killed has frozen.
func (n *nodeServer) thawLeftovers(ctx context.Context, pools nodePools, log *slog.Logger) error {
	for _, p := range pools.here() {
		names, err := readNames(p.groups)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !strings.HasSuffix(name, extFrozen) {
				continue
			}
			if err := n.thawMarked(ctx, p, name, log); err != nil {
				return fmt.Errorf("thaw what %s names: %w", p.file("groups", name), err)
			}
		}
	}
	return nil
}

func (n *nodeServer) thawMarked(ctx context.Context, p *pool, name string, log *slog.Logger) error {
	data, err := p.groups.ReadFile(name)
	if err != nil {
		return err
	}
	var mark frozenMark
	if err := json.Unmarshal(data, &mark); err != nil { // no reason to leave all volumes without a node plugin
		log.Error("volumes may be frozen, and which cannot be read", "file", p.file("groups", name), "error", err)
		return nil
	}
	if mark.NodeID != n.nodeID {
		return nil // another node's
	}
	for _, id := range mark.VolumeIDs {
		for _, image := range n.volumes.ImagePaths(id) {
			dir, err := n.openMounted(ctx, image)
			if err != nil {
				return err
			}
			if dir == nil {
				continue
			}
			err = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
			dir.Close()
			if err != nil && !errors.Is(err, unix.EINVAL) { // not frozen
				return err
			}
		}
	}
	log.Warn("thawed what was left frozen", "volume_ids", mark.VolumeIDs)
	return p.remove(p.groups, name)
}
