package filepool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
)

const (
	degraded     = csi.VolumeHealthErrorType_DEGRADED
	inaccessible = csi.VolumeHealthErrorType_INACCESSIBLE
	dataLoss     = csi.VolumeHealthErrorType_DATA_LOSS
)

const (
	reasonAway     = "PoolUnreachable"
	reasonReadOnly = "PoolReadOnly"
	reasonFull     = "PoolFull"
)

// problemOf returns the problem of a volume for the error of a check.
func problemOf(err error) storage.Problem {
	for _, p := range []struct {
		kind     error
		severity csi.VolumeHealthErrorType
		reason   string
	}{
		{errImageMissing, dataLoss, "ImageMissing"},
		{errImageTruncated, dataLoss, "ImageTruncated"},
		{errImageForeign, dataLoss, "ImageNotAFile"},
		{errDamaged, inaccessible, "MetadataDamaged"},
		{csierr.NotFound, inaccessible, "MetadataMissing"},
	} {
		if errors.Is(err, p.kind) {
			return storage.Problem{Severity: p.severity, Reason: p.reason, Text: err.Error()}
		}
	}
	return storage.Problem{Severity: inaccessible, Reason: "PoolNotReadable", Text: err.Error()}
}

// check checks the volume on the disk, not the index in memory.
func (p *pool) check(id string) (v volume, problems []storage.Problem) {
	v, err := p.ReadVolume(id)
	if err == nil {
		_, err = p.checkImage(p.volumes, "volumes", id, v.CapacityBytes)
	}
	if err != nil {
		problems = append(problems, problemOf(err))
	}
	return v, problems
}

func poolAway(p *pool, err error) storage.Problem {
	return storage.Problem{Severity: inaccessible, Reason: reasonAway, Text: fmt.Sprintf("pool %s: %v", p.name, err)}
}

// checkPool checks what all volumes of the pool depend on. Below reserve bytes it
// is full: images that grow take what is left.
func (p *pool) checkPool(reserve float64) (problems []storage.Problem) {
	total, free, err := p.measure()
	if err != nil {
		return []storage.Problem{poolAway(p, err)}
	}
	if ro, err := p.isReadOnly(); err == nil && ro {
		problems = append(problems, storage.Problem{Severity: inaccessible, Reason: reasonReadOnly, Text: fmt.Sprintf("the file system of pool %s is read-only", p.name)})
	}
	if float64(free) < max(mib, float64(total)*reserve/100) {
		problems = append(problems, storage.Problem{Severity: degraded, Reason: reasonFull,
			Text: fmt.Sprintf("pool %s has %d MiB free of %d: writes may fail", p.name, free/mib, total/mib)})
	}
	return problems
}

func (b *fileBackend) CheckVolume(_ context.Context, id string) ([]storage.Problem, error) {
	if !b.vols.known(id) {
		return nil, csierr.Errorf("check volume", id, "%w", csierr.NotFound)
	}
	_, problems := b.check(id)
	if len(problems) > 0 && !b.vols.known(id) { // deleted concurrently
		return nil, csierr.Errorf("check volume", id, "%w", csierr.NotFound)
	}
	return append(problems, b.checkPool(b.limits.reserve)...), nil
}

func (m *filePools) CheckVolume(ctx context.Context, id string) ([]storage.Problem, error) {
	b, err := m.volume(ctx, "check volume", id)
	if err != nil {
		return nil, err
	}
	if err := m.answers(ctx, b); err != nil {
		return []storage.Problem{poolAway(b.pool, err)}, nil
	}
	return b.CheckVolume(ctx, id)
}

// CheckVolume is what this node sees of the volume.
func (d *devices) CheckVolume(ctx context.Context, id string) ([]storage.Problem, error) {
	p, err := d.holding(ctx, "check volume", id)
	if err != nil && p != nil {
		return []storage.Problem{poolAway(p, err)}, nil // or the volume does not exist, which cannot be known
	}
	if err != nil {
		return nil, err
	}
	v, problems := p.check(id)
	if all, err := loopsOf(p.image(id)); err == nil {
		for _, dev := range all {
			if dev.Deleted {
				problems = append(problems, storage.Problem{Severity: dataLoss, Reason: "ImageDeleted",
					Text: fmt.Sprintf("%s serves an image that was deleted: %s", dev.Path, dev.Backing)})
			}
			if a := v.Attachment; a != nil && !a.ReadOnly {
				problems = append(problems, d.checkMounts(ctx, dev.Path)...)
			}
		}
	}
	return append(problems, p.checkPool(d.reserve)...), nil
}

// checkMounts finds a file system that has had errors. One that does not answer is for
// others to find.
func (d *devices) checkMounts(ctx context.Context, dev string) []storage.Problem {
	ctx, cancel := context.WithTimeout(ctx, mountsTimeout)
	defer cancel()
	paths, err := d.env.Ops.MountedAt(ctx, nodeops.Device{Path: dev})
	if err != nil {
		return nil
	}
	for _, path := range paths {
		if s, err := d.env.Ops.Stats(ctx, nodeops.StatsRequest{VolumePath: path}); err == nil && s.Condition != "" {
			return []storage.Problem{{Severity: degraded, Reason: "FileSystemError", Text: fmt.Sprintf("%s: %s; see the kernel's log", path, s.Condition)}}
		}
	}
	return nil
}

const mountsTimeout = 2 * time.Second

// CheckStorage checks all pools of the node.
func (d *devices) CheckStorage(ctx context.Context) (problems []storage.StorageProblem) {
	add := func(p storage.Problem) {
		severity := csi.StorageHealthErrorType_STORAGE_DEGRADED
		if p.Reason == reasonAway {
			severity = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		}
		problems = append(problems, storage.StorageProblem{Severity: severity, Reason: p.Reason, Text: p.Text})
	}
	if err := d.openAway(ctx); err != nil {
		var errs interface{ Unwrap() []error }
		list := []error{err}
		if errors.As(err, &errs) {
			list = errs.Unwrap()
		}
		for _, err := range list {
			add(storage.Problem{Reason: reasonAway, Text: err.Error()})
		}
	}
	silent := d.silent(ctx)
	for _, p := range d.here() {
		if err := silent[p.at()]; err != nil {
			add(poolAway(p, err))
			continue
		}
		for _, x := range p.checkPool(d.reserve) {
			add(x)
		}
	}
	return problems
}
