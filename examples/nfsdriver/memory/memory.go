// Package memory is a small storage to read, and for tests without a server: shares are
// directories of this machine, and all else is in the memory of the process. A node mounts
// with the type "overlay", for which package drivertest has a mount helper.
package memory

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/volumelock"
)

const size = 1 << 40 // of every share, in bytes

// Provider implements storage.Provider, and storage.Backend with all optional interfaces.
type Provider struct {
	dir       string
	mu        sync.Mutex
	volumes   map[string]storage.Volume // by ID
	snapshots map[string]storage.Snapshot
}

// New returns an empty storage; the flag -dir has the directory of the shares.
func New() *Provider {
	return &Provider{volumes: map[string]storage.Volume{}, snapshots: map[string]storage.Snapshot{}}
}

func (p *Provider) Flags(flags *flag.FlagSet) {
	flags.StringVar(&p.dir, "dir", filepath.Join(os.TempDir(), "shares"), "`directory` that has the shares")
}

func (p *Provider) Check() error          { return nil }
func (p *Provider) Type() storage.Backend { return p }
func (p *Provider) Close() error          { return nil }

func (p *Provider) OpenBackend(context.Context, storage.Env) (storage.Backend, error) { return p, nil }

func (p *Provider) OpenMounts(context.Context, storage.Env) (storage.Mounts, error) {
	return &share.Mounts{FSType: "overlay"}, nil
}

func (p *Provider) LockPolicy(method string, req any) []volumelock.Request {
	return share.LockPolicy(method, req)
}

func (p *Provider) path(v storage.Volume) string {
	return filepath.Join(p.dir, v.Context[share.ParamShare], v.Context[share.ParamSubDir])
}

func (p *Provider) snapshotPath(id string) string {
	return filepath.Join(p.dir, ".snapshots", share.Digest(id))
}

func (p *Provider) CreateVolume(_ context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan, err := share.PlanVolume(s)
	if err != nil {
		return storage.Volume{}, err
	}
	v := storage.Volume{Name: s.Name, CapacityBytes: s.Capacity.Required, Parameters: s.Parameters, Context: plan.Ref.Context(), Source: s.Source}
	for _, has := range p.volumes {
		if has.Name == v.Name || p.path(has) == p.path(v) {
			return has, has.Matches(s)
		}
	}
	from := ""
	if s.Source != nil {
		snap, isSnapshot := p.snapshots[s.Source.SnapshotID]
		source, isVolume := p.volumes[s.Source.VolumeID]
		if from = p.path(source); isSnapshot {
			from = p.snapshotPath(snap.ID)
		} else if !isVolume {
			return v, csierr.NotFound
		}
		v.CapacityBytes = max(v.CapacityBytes, snap.SizeBytes, source.CapacityBytes)
	}
	if !s.Capacity.Contains(v.CapacityBytes) || v.CapacityBytes > size {
		return v, csierr.OutOfRange
	}
	if err := os.MkdirAll(p.path(v), 0o777); err != nil {
		return v, err
	}
	if from != "" {
		if err := copyTree(p.path(v), from); err != nil {
			return v, err
		}
	}
	plan.Ref.Nonce = share.NewNonce()
	v.ID = plan.Ref.Encode()
	p.volumes[v.ID] = v
	return v, nil
}

func (p *Provider) CloneVolume(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	return p.CreateVolume(ctx, s)
}

func (p *Provider) RestoreSnapshot(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	return p.CreateVolume(ctx, s)
}

func (p *Provider) DeleteVolume(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	if !ok {
		return nil
	}
	delete(p.volumes, id)
	return os.RemoveAll(p.path(v))
}

func (p *Provider) ExpandVolume(_ context.Context, id string, r storage.CapacityRange) (storage.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, err := get(p.volumes, id)
	if err != nil {
		return v, err
	}
	v.CapacityBytes = max(v.CapacityBytes, r.Required)
	if !r.Contains(v.CapacityBytes) || v.CapacityBytes > size {
		return v, csierr.OutOfRange
	}
	p.volumes[id] = v
	return v, nil
}

func (p *Provider) GetVolume(_ context.Context, id string) (storage.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return get(p.volumes, id)
}

func (p *Provider) ListVolumes(_ context.Context, after string, limit int) ([]storage.Volume, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, bad := share.ParseVolumeID(after)
	return page(p.volumes, after, limit, bad)
}

func (p *Provider) Capacity(_ context.Context, parameters map[string]string, flags []string) (free, largest int64, err error) {
	_, err = share.PlanCapacity(parameters, flags)
	return size, size, err
}

func get[T any](m map[string]T, id string) (T, error) {
	v, ok := m[id]
	if !ok {
		return v, csierr.NotFound
	}
	return v, nil
}

// page lists in the order of IDs; a token is the last ID of a page.
func page[T any](m map[string]T, after string, limit int, bad error) (list []T, next string, err error) {
	if after != "" && bad != nil {
		return nil, "", storage.ErrBadToken
	}
	for _, id := range slices.Sorted(maps.Keys(m)) {
		if limit > 0 && len(list) == limit {
			return list, next, nil
		}
		if id > after {
			list, next = append(list, m[id]), id
		}
	}
	return list, "", nil
}
