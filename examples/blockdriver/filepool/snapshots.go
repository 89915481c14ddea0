package filepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/volumelock"
)

func (p *pool) readSnapshot(id string) (snapshot, error) {
	const op = "read snapshot"
	file := p.file("snapshots", id+extMetadata)
	data, err := p.snapshots.ReadFile(id + extMetadata)
	if errors.Is(err, fs.ErrNotExist) {
		return snapshot{}, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	if err != nil {
		return snapshot{}, csierr.Errorf(op, id, "%w", err)
	}
	var m snapshotMetadata
	if err := json.Unmarshal(data, &m); err != nil {
		return snapshot{}, csierr.Errorf(op, id, "metadata %w: %w; restore %s", errDamaged, err, file)
	}
	if m.Version != formatVersion || m.ID != id || m.SizeBytes <= 0 || storage.MinimumSizes[m.AccessType] == 0 || m.CreatedAt.IsZero() {
		return snapshot{}, csierr.Errorf(op, id, "metadata %w: version %d, snapshot %q with %d bytes and access type %q; restore %s",
			errDamaged, m.Version, m.ID, m.SizeBytes, m.AccessType, file)
	}
	return m.snapshot, nil
}

// long runs work that may take longer than a caller waits: it continues when
// ctx ends, the answer is DEADLINE_EXCEEDED, and a retry of the same request joins it.
// It ends early when the backend is closed.
func long[T any](ctx context.Context, b *fileBackend, what string, request any, fn func(context.Context) (T, error)) (T, error) {
	var none T
	same, err := json.Marshal(request)
	if err != nil {
		return none, err
	}
	key := fmt.Sprintf("%s in %s (%s)", what, b.dir, digest(string(same))[:8])
	v, _, err := b.work.Do(ctx, key, func() (any, error) {
		if !b.jobs.begin() {
			return none, csierr.Errorf(what, b.dir, "the driver stops: %w", csierr.Busy)
		}
		defer b.jobs.end()
		return fn(b.life)
	})
	if err != nil {
		return none, err
	}
	return v.(T), nil
}

func (b *fileBackend) CreateSnapshot(ctx context.Context, s storage.SnapshotSpec) (snapshot, error) {
	return long(ctx, b, "create snapshot "+s.Name, s, func(ctx context.Context) (snapshot, error) {
		v, err := b.createSnapshot(ctx, s)
		if err != nil {
			return v, csierr.Errorf("create snapshot", s.Name, "%w", err)
		}
		return v, nil
	})
}

func (b *fileBackend) createSnapshot(ctx context.Context, s storage.SnapshotSpec) (snapshot, error) {
	unlock, err := b.lock(ctx, "create snapshot", volumelock.KindSnapshot, keyOfName(snapshotKind, s.Name))
	if err != nil {
		return snapshot{}, err
	}
	defer unlock()
	has, err := b.snaps.currentOf(s.Name)
	if err == nil {
		return has, has.storage().Matches(s)
	}
	if !errors.Is(err, csierr.NotFound) {
		return snapshot{}, err
	}
	id := b.snaps.idFor(s.Name)
	from, release, err := b.holdVolume(ctx, s.SourceVolumeID)
	if err != nil {
		return snapshot{}, err
	}
	defer release()
	c, err := begin(b, b.snaps, id, from)
	if err != nil {
		return snapshot{}, err
	}
	defer c.close()
	free, err := b.claim(0, c.size, 0)
	if err != nil {
		return snapshot{}, b.snaps.abandon(id, err)
	}
	defer free()
	if err := fillOrClone(ctx, b, c, c.size); err != nil {
		return snapshot{}, err
	}
	return b.commitSnapshot(c, s, from.accessType, "")
}

// commitSnapshot writes the metadata of the snapshot, whose image is complete.
func (b *fileBackend) commitSnapshot(c *imageCopy[snapshot], s storage.SnapshotSpec, accessType, group string) (snapshot, error) {
	snap := snapshot{
		ID: c.id, Name: s.Name, SourceVolumeID: s.SourceVolumeID, SizeBytes: c.size, AccessType: accessType,
		CreatedAt: c.mark.Time, HoldsData: c.holding, GroupID: group,
	}
	if inDoubt, err := b.snaps.save(snap); err != nil {
		return snapshot{}, c.notSaved(inDoubt, err)
	}
	c.done()
	return snap, nil
}

func (b *fileBackend) DeleteSnapshot(ctx context.Context, id string) error {
	const op = "delete snapshot"
	if !snapshotIDPattern.MatchString(id) {
		return nil
	}
	unlock, err := b.lock(ctx, op, volumelock.KindSnapshot, id)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := b.snaps.current(id)
	if err == nil && has.GroupID != "" {
		return csierr.Errorf(op, id, "%w: it is a part of the group snapshot %s, and is deleted with that", csierr.Invalid, has.GroupID)
	}
	if err := b.deleteSnapshot(id); err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	return nil
}

// deleteSnapshot is called with the snapshot's lock held.
func (b *fileBackend) deleteSnapshot(id string) error {
	if err := b.checkNotPinned(id); err != nil {
		return err
	}
	has, err := b.snaps.current(id)
	if err == nil {
		err = b.snaps.beginDelete(has)
	}
	if err == nil || errors.Is(err, csierr.NotFound) {
		err = b.snaps.clear(id)
	}
	return err
}

func (b *fileBackend) GetSnapshot(_ context.Context, id string) (snapshot, error) {
	s, err := b.snaps.get(id)
	if err != nil {
		return snapshot{}, csierr.Errorf("get snapshot", id, "%w", err)
	}
	return s, nil
}

func (b *fileBackend) ListSnapshots(_ context.Context, sourceVolumeID, after string, limit int) (page []snapshot, next string, err error) {
	if after != "" && !snapshotIDPattern.MatchString(after) {
		return nil, "", csierr.Errorf("list snapshots after", after, "%w; start again without a token", storage.ErrBadToken)
	}
	var wanted func(snapshot) bool
	if sourceVolumeID != "" {
		wanted = func(s snapshot) bool { return s.SourceVolumeID == sourceVolumeID }
	}
	page, more := b.snaps.page(after, limit, wanted)
	if more {
		next = page[len(page)-1].ID
	}
	return page, next, nil
}

// checkSnapshotImage is called at the start.
func (b *fileBackend) checkSnapshotImage(s snapshot) error {
	_, err := b.checkImage(b.snapshots, "snapshots", s.ID, s.SizeBytes)
	return err
}

// copySource is a volume or a snapshot that is kept as it is while it is copied.
type copySource struct {
	imageSource
	accessType string
}

// holdVolume keeps the volume as it is until release: where clones are atomic it
// stays locked, which is not for long; else it is pinned. A volume to which a node may
// write is held only for an atomic clone.
func (b *fileBackend) holdVolume(ctx context.Context, id string) (from copySource, release func(), err error) {
	if !b.vols.known(id) { // so it is no volume that is being created from this one, and waits for it
		return from, nil, fmt.Errorf("source volume %q %w", id, csierr.NotFound)
	}
	unlock, err := b.lock(ctx, "copy volume", volumelock.KindVolume, id)
	if err != nil {
		return from, nil, err
	}
	v, err := b.vols.current(id)
	if err == nil && v.Attachment != nil && !b.reflinks() {
		err = fmt.Errorf("%w: it is attached to node %q, and the pool's file system has no atomic copies; detach it first, or use a pool on xfs or btrfs", storage.ErrInUse, v.Attachment.NodeID)
	}
	if err != nil {
		unlock()
		return from, nil, fmt.Errorf("source volume %q: %w", id, err)
	}
	from = copySource{imageSource{id: id, dir: b.volumes, dirName: "volumes", least: v.CapacityBytes, generation: v.Generation}, v.AccessType}
	if v.Attachment != nil && v.AccessType == "xfs" {
		from.xfsOn = v.Attachment.NodeID
	}
	return from, b.holdSource(id, unlock), nil
}

func (b *fileBackend) holdSnapshot(ctx context.Context, id string) (from copySource, release func(), err error) {
	if !b.snaps.known(id) {
		return from, nil, fmt.Errorf("source snapshot %q %w", id, csierr.NotFound)
	}
	unlock, err := b.lock(ctx, "copy snapshot", volumelock.KindSnapshot, id)
	if err != nil {
		return from, nil, err
	}
	s, err := b.snaps.current(id)
	if err != nil {
		unlock()
		return from, nil, fmt.Errorf("source snapshot %q: %w", id, err)
	}
	from = copySource{imageSource{id: id, dir: b.snapshots, dirName: "snapshots", least: s.SizeBytes}, s.AccessType}
	return from, b.holdSource(id, unlock), nil
}

func (b *fileBackend) holdSource(id string, unlock func()) (release func()) {
	if b.reflinks() {
		return unlock
	}
	defer unlock()
	return b.pin(id)
}

// begin begins a copy if there is room for it.
func begin[T object](b *fileBackend, to *store[T], id string, from copySource) (*imageCopy[T], error) {
	c, err := to.beginCopy(id, from.imageSource)
	if err != nil {
		return nil, withSpaceKind(err)
	}
	need := int64(0) // the blocks are shared
	if !c.atomic {
		if need, err = allocated(c.src); err != nil {
			c.close()
			return nil, err
		}
	}
	if err := b.checkRoom(c.size, c.size, max(0, need-c.mark.Done)); err != nil {
		c.close()
		return nil, to.abandon(id, err)
	}
	return c, nil
}

// fillOrClone creates the image, by one atomic clone or piece by piece. Nothing is left
// of it when the pool is full, because the CO does not retry then, nor of an unusable clone.
func fillOrClone[T object](ctx context.Context, b *fileBackend, c *imageCopy[T], size int64) error {
	var err error
	if c.atomic {
		err = c.clone()
	} else {
		err = c.fill(ctx, func() error { return b.checkRoom(0, 0, 0) })
	}
	if err == nil {
		err = c.finish(size)
	}
	if err = withSpaceKind(err); errors.Is(err, csierr.NoSpace) || errors.Is(err, csierr.OutOfRange) || errors.Is(err, csierr.Busy) {
		return c.abandon(c.id, err)
	}
	return err
}
