package memory

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

func (p *Provider) CreateSnapshot(_ context.Context, s storage.SnapshotSpec) (storage.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, has := range p.snapshots {
		if has.Name == s.Name {
			return has, has.Matches(s)
		}
	}
	v, err := get(p.volumes, s.SourceVolumeID)
	if _, bad := share.PlanSnapshot(s); bad != nil || err != nil {
		return storage.Snapshot{}, cmp.Or(bad, err)
	}
	ref, _ := share.ParseVolumeID(v.ID)
	id := share.SnapshotRef{Export: ref.Export, Key: share.Digest(s.Name), Nonce: share.NewNonce()}.Encode()
	snap := storage.Snapshot{ID: id, Name: s.Name, SourceVolumeID: v.ID, SizeBytes: v.CapacityBytes, CreatedAt: time.Now()}
	if err := os.CopyFS(p.snapshotPath(id), os.DirFS(p.path(v))); err != nil {
		return snap, err
	}
	p.snapshots[id] = snap
	return snap, nil
}

func (p *Provider) DeleteSnapshot(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.snapshots, id)
	return os.RemoveAll(p.snapshotPath(id))
}

func (p *Provider) GetSnapshot(_ context.Context, id string) (storage.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return get(p.snapshots, id)
}

func (p *Provider) ListSnapshots(_ context.Context, after string, limit int) ([]storage.Snapshot, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, bad := share.ParseSnapshotID(after)
	return page(p.snapshots, after, limit, bad)
}
