package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/csikit/csikit/blocking"
)

// nodePools is what the node plugin has of the pools.
type nodePools struct {
	*poolSet[*pool]
	reserve float64 // percent below which a pool is full
}

var _ volumes = nodePools{}

// openNodePools opens the pools and tells each that the node is there.
func openNodePools(ctx context.Context, cfg config, work *blocking.Group, log *slog.Logger) (nodePools, error) {
	n := nodePools{&poolSet[*pool]{configs: cfg.pools.list, work: work, log: log}, cfg.reserve}
	n.open = func(c poolConfig) (*pool, error) {
		p, err := openPool(c.Dir)
		if err != nil {
			return nil, err
		}
		p.name, p.segments = c.Name, c.Segments
		if err := p.RegisterNode(cfg.nodeID, cfg.maxVolumes, cfg.topology); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		return p, nil
	}
	if err := n.start(ctx); err != nil {
		return n, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n nodePools) Close() error {
	var errs []error
	for _, p := range n.here() {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// volume returns the pool that has the volume.
func (n nodePools) volume(ctx context.Context, op, id string) (*pool, error) {
	if !volumeIDPattern.MatchString(id) {
		return nil, fail(op, id, "%w", errNotFound)
	}
	return n.holder(ctx, op, id, func(p *pool) bool {
		_, err := p.volumes.Lstat(id + extMetadata)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

func (n nodePools) FindVolume(ctx context.Context, id string) (v Volume, image string, err error) {
	p, err := n.volume(ctx, "read volume", id)
	if err != nil {
		return v, "", err
	}
	if v, err = p.ReadVolume(id); err != nil {
		return v, "", err
	}
	image, err = p.ImagePath(id)
	return v, image, err
}

func (n nodePools) ImagePaths(id string) (images []string) {
	for _, c := range n.configs {
		if image, err := (&pool{dir: c.Dir}).ImagePath(id); err == nil {
			images = append(images, image)
		}
	}
	return images
}
