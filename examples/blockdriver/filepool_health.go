package main

import (
	"context"
	"errors"
	"fmt"
)

const (
	reasonAway     = "PoolUnreachable"
	reasonReadOnly = "PoolReadOnly"
	reasonFull     = "PoolFull"
)

// check checks the volume on the disk, not the index in memory.
func (p *pool) check(id string) (problems []Problem) {
	v, err := p.ReadVolume(id)
	if err == nil {
		_, err = p.checkImage(p.volumes, "volumes", id, v.CapacityBytes)
	}
	if err != nil {
		return []Problem{problemOf(err)}
	}
	return nil
}

func poolAway(p *pool, err error) Problem {
	return Problem{inaccessible, reasonAway, fmt.Sprintf("pool %s: %v", p.name, err)}
}

// checkPool checks what all volumes of the pool depend on. Below reserve bytes it
// is full: images that grow take what is left.
func (p *pool) checkPool(reserve float64) (problems []Problem) {
	total, free, err := p.measure()
	if err != nil {
		return []Problem{poolAway(p, err)}
	}
	if ro, err := p.isReadOnly(); err == nil && ro {
		problems = append(problems, Problem{inaccessible, reasonReadOnly, fmt.Sprintf("the file system of pool %s is read-only", p.name)})
	}
	if float64(free) < max(mib, float64(total)*reserve/100) {
		problems = append(problems, Problem{degraded, reasonFull, fmt.Sprintf("pool %s has %d MiB free of %d: writes may fail", p.name, free/mib, total/mib)})
	}
	return problems
}

func (b *fileBackend) CheckVolume(_ context.Context, id string) ([]Problem, error) {
	if !b.vols.known(id) {
		return nil, fail("check volume", id, "%w", errNotFound)
	}
	problems := b.check(id)
	if len(problems) > 0 && !b.vols.known(id) { // deleted concurrently
		return nil, fail("check volume", id, "%w", errNotFound)
	}
	return append(problems, b.checkPool(b.limits.reserve)...), nil
}

func (m *filePools) CheckVolume(ctx context.Context, id string) ([]Problem, error) {
	b, err := m.volume(ctx, "check volume", id)
	if err != nil {
		return nil, err
	}
	if err := m.answers(ctx, b); err != nil {
		return []Problem{poolAway(b.pool, err)}, nil
	}
	return b.CheckVolume(ctx, id)
}

// CheckVolume is what this node sees of the volume.
func (n nodePools) CheckVolume(ctx context.Context, id string) ([]Problem, error) {
	p, err := n.volume(ctx, "check volume", id)
	if err != nil && p != nil {
		return []Problem{poolAway(p, err)}, nil // or the volume does not exist, which cannot be known
	}
	if err != nil {
		return nil, err
	}
	problems := p.check(id)
	if image, err := p.ImagePath(id); err == nil {
		if all, err := loopsOf(image); err == nil {
			for _, dev := range all {
				if dev.Deleted {
					problems = append(problems, Problem{dataLoss, "ImageDeleted", fmt.Sprintf("%s serves an image that was deleted: %s", dev.Path, dev.Backing)})
				}
			}
		}
	}
	return append(problems, p.checkPool(n.reserve)...), nil
}

// CheckPools checks all pools of the node.
func (n nodePools) CheckPools(ctx context.Context) (problems []Problem) {
	if err := n.openAway(ctx); err != nil {
		var errs interface{ Unwrap() []error }
		list := []error{err}
		if errors.As(err, &errs) {
			list = errs.Unwrap()
		}
		for _, err := range list {
			problems = append(problems, Problem{inaccessible, reasonAway, err.Error()})
		}
	}
	silent := n.silent(ctx)
	for _, p := range n.here() {
		if err := silent[p.at()]; err != nil {
			problems = append(problems, poolAway(p, err))
		} else {
			problems = append(problems, p.checkPool(n.reserve)...)
		}
	}
	return problems
}
