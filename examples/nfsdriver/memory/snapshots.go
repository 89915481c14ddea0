package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	if err := copyTree(p.snapshotPath(id), p.path(v)); err != nil {
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

// copyTree copies a directory as it is at one point in time: one that changes meanwhile is
// storage.ErrInUse. On an error nothing is left.
func copyTree(to, from string) error {
	time.Sleep(20 * time.Millisecond) // changes from now on have later timestamps: the kernel counts in ticks
	before, err := stampOf(from)
	if err == nil {
		err = os.CopyFS(to, os.DirFS(from))
	}
	after, changed := stampOf(from)
	if err = cmp.Or(err, changed); err == nil && before != after {
		err = fmt.Errorf("%w: %s was written to while it was copied; try again when it is not", storage.ErrInUse, from)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(to))
	}
	return nil
}

// stampOf returns a text that differs when a file has changed.
func stampOf(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintf(&b, "%q %d %s\n", path, info.Size(), info.ModTime())
		}
		return err
	})
	return b.String(), err
}
