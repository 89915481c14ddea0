package filepool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"github.com/csikit/csikit/volumelock"
)

// fileBackend is the part of the Backend that one pool is. One process at a
// time may have it.
//
// What is on the disk decides, see store.
type fileBackend struct {
	*pool
	log    *slog.Logger
	marker *os.File // open for its lock

	vols   *store[volume]
	snaps  *store[snapshot]
	groups *store[group]

	// Long work continues without its caller, until the backend is closed.
	work *blocking.Group
	life context.Context
	stop context.CancelFunc
	jobs jobs

	pinsMu sync.Mutex
	pins   pins

	limits   policy
	promised atomic.Int64 // bytes that all in the pool have together, and what is being created
	claims   sync.Mutex   // one check of promised and its change at a time

	// The pools of one driver share these.
	*locks
	attached *tally
}

// newFileBackend takes the pool's lock, finishes what a killed controller left
// half-done and reads all metadata. A nil logger discards. Close the backend
// before the pool.
func newFileBackend(p *pool, log *slog.Logger) (*fileBackend, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return newFileBackendOf(p, new(blocking.Group), log, new(locks), new(tally))
}

func newFileBackendOf(p *pool, work *blocking.Group, log *slog.Logger, shared *locks, attached *tally) (_ *fileBackend, err error) {
	b := &fileBackend{pool: p, log: log, work: work, pins: pins{}, locks: shared, attached: attached}
	b.life, b.stop = context.WithCancel(context.Background())
	b.snaps = newStore(p, p.snapshots, "snapshots", snapshotKind, snapshotIDPattern, log, p.readSnapshot, func(id string) snapshot { return snapshot{ID: id} })
	b.snaps.counted = func(s snapshot, by int64) { b.promised.Add(by * s.SizeBytes) }
	b.vols = newStore(p, p.volumes, "volumes", volumeKind, volumeIDPattern, log, p.ReadVolume, func(id string) volume { return volume{ID: id} })
	b.vols.counted = b.count
	b.groups = newStore(p, p.groups, "groups", groupKind, groupIDPattern, log, p.readGroup, func(id string) group { return group{ID: id} })
	if b.marker, err = openToLock(p.root, markerName, 0); err != nil {
		return nil, csierr.Errorf("open pool", p.dir, "%w", err)
	}
	defer func() {
		if err != nil {
			b.stop()
			b.uncount()
			b.marker.Close()
		}
	}()
	if err := lockFile(b.marker); errors.Is(err, csierr.Busy) {
		return nil, csierr.Errorf("open pool", p.dir, "%w: it holds the lock on %s", errHeld, markerName)
	} else if err != nil {
		return nil, csierr.Errorf("open pool", p.dir, "lock %s: %w", markerName, err)
	}
	p.reflinks()
	if err := b.vols.repair(b.finishExpansion); err != nil {
		return nil, csierr.Errorf("open pool", p.dir, "%w", err)
	}
	if err := b.snaps.repair(b.checkSnapshotImage); err != nil {
		return nil, csierr.Errorf("open pool", p.dir, "%w", err)
	}
	if err := b.groups.repair(func(group) error { return nil }); err != nil {
		return nil, csierr.Errorf("open pool", p.dir, "%w", err)
	}
	if err := p.keepSpare(); err != nil {
		log.Warn("no spare space: if the pool gets full, detaching volumes may fail", "pool", p.dir, "error", err)
	}
	return b, nil
}

// count follows the index of volumes.
func (b *fileBackend) count(v volume, by int64) {
	b.promised.Add(by * v.CapacityBytes)
	if a := v.Attachment; a != nil {
		b.attached.add(a.NodeID, by)
	}
}

// uncount takes what this pool has back from what the pools share.
func (b *fileBackend) uncount() {
	all, _ := b.vols.page("", 0, nil)
	for _, v := range all {
		b.count(v, -1)
	}
}

// Close releases the lock. Call it after the last operation has returned. Copies
// in progress are stopped; a later request for the same resumes them.
func (b *fileBackend) Close() error {
	b.stop()
	b.jobs.close()
	return b.marker.Close()
}

func (b *fileBackend) CreateVolume(ctx context.Context, s storage.VolumeSpec) (volume, error) {
	create := func(ctx context.Context) (volume, error) {
		v, err := b.createVolume(ctx, s)
		if err != nil {
			return v, csierr.Errorf("create volume", s.Name, "%w", err)
		}
		return v, nil
	}
	if s.Source == nil {
		return create(ctx)
	}
	v, err := long(ctx, b, "create volume "+s.Name, s, create)
	if err != nil {
		return v, err
	}
	if err := v.storage().Matches(s); err != nil { // a request that joined may want it elsewhere
		return volume{}, csierr.Errorf("create volume", s.Name, "%w", err)
	}
	return v, nil
}

func (b *fileBackend) createVolume(ctx context.Context, s storage.VolumeSpec) (volume, error) {
	unlock, err := b.lock(ctx, "create volume", volumelock.KindVolume, keyOfName(volumeKind, s.Name))
	if err != nil {
		return volume{}, err
	}
	defer unlock()

	v, err := b.vols.currentOf(s.Name)
	if err == nil {
		return v, v.storage().Matches(s)
	}
	if !errors.Is(err, csierr.NotFound) {
		return volume{}, err
	}
	v = volume{ID: b.vols.idFor(s.Name), Name: s.Name, AccessType: s.AccessType, Parameters: s.Parameters, Mutable: s.Mutable, Segments: b.segments}
	if s.Source != nil {
		return b.createFrom(ctx, v, s)
	}
	return b.createEmpty(v, s)
}

func (b *fileBackend) createEmpty(v volume, s storage.VolumeSpec) (_ volume, err error) {
	if v.CapacityBytes, err = s.Size(defaultCapacity, mib, 0); err != nil {
		return volume{}, err
	}
	release, err := b.claim(v.CapacityBytes, v.CapacityBytes, v.CapacityBytes)
	if err != nil {
		return volume{}, err
	}
	defer release()
	if err := b.vols.dropCopy(v.ID); err != nil {
		return volume{}, fmt.Errorf("remove its unfinished copy: %w", err)
	}
	// The image comes first: once metadata is there the volume exists.
	b.vols.setBegun(v.ID, true)
	defer b.vols.settle(v.ID)
	if err := b.vols.makeImage(v.ID, v.CapacityBytes); err != nil {
		return volume{}, withSpaceKind(err)
	}
	inDoubt, err := b.vols.save(v)
	if err != nil && inDoubt {
		return volume{}, err
	}
	if err != nil {
		return volume{}, undone(withSpaceKind(err), b.remove(b.volumes, v.ID+extImage))
	}
	return v, nil
}

func (b *fileBackend) createFrom(ctx context.Context, v volume, s storage.VolumeSpec) (volume, error) {
	hold, sourceID := b.holdSnapshot, s.Source.SnapshotID
	if s.Source.VolumeID != "" {
		hold, sourceID = b.holdVolume, s.Source.VolumeID
	}
	from, release, err := hold(ctx, sourceID)
	if err != nil {
		return volume{}, err
	}
	defer release()
	if !sameData(from.accessType, v.AccessType) {
		return volume{}, fmt.Errorf("%w: the source holds %s, and a volume of it cannot be used as %s", csierr.Invalid, from.accessType, v.AccessType)
	}
	c, err := begin(b, b.vols, v.ID, from)
	if err != nil {
		return volume{}, err
	}
	defer c.close()
	var free func()
	if v.CapacityBytes, err = s.Size(defaultCapacity, mib, c.size); err == nil {
		free, err = b.claim(v.CapacityBytes, v.CapacityBytes, 0)
	}
	if err != nil {
		return volume{}, b.vols.abandon(v.ID, err)
	}
	defer free()
	if err := fillOrClone(ctx, b, c, v.CapacityBytes); err != nil {
		return volume{}, err
	}
	v.Source, v.HoldsData = s.Source, c.holding
	if inDoubt, err := b.vols.save(v); err != nil {
		return volume{}, c.notSaved(inDoubt, err)
	}
	c.done()
	return v, nil
}

// sameData: what is on a raw block volume is up to its user, and a file system can
// be read as a block volume.
func sameData(source, wanted string) bool {
	return source == wanted || source == storage.AccessBlock || wanted == storage.AccessBlock
}

func (b *fileBackend) DeleteVolume(ctx context.Context, id string) error {
	const op = "delete volume"
	if !volumeIDPattern.MatchString(id) {
		return nil
	}
	unlock, err := b.lock(ctx, op, volumelock.KindVolume, id)
	if err != nil {
		return err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if err == nil {
		if v.Attachment != nil {
			return csierr.Errorf(op, id, "%w: it is attached to node %q; detach it first", storage.ErrInUse, v.Attachment.NodeID)
		}
		if err := b.checkNotPinned(id); err != nil {
			return csierr.Errorf(op, id, "%w", err)
		}
		err = b.vols.beginDelete(v)
	}
	if err == nil || errors.Is(err, csierr.NotFound) {
		err = b.vols.clear(id)
	}
	if err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	return nil
}

func (b *fileBackend) ExpandVolume(ctx context.Context, id string, r storage.CapacityRange) (volume, error) {
	const op = "expand volume"
	unlock, err := b.lock(ctx, op, volumelock.KindVolume, id)
	if err != nil {
		return volume{}, err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if err != nil {
		return volume{}, csierr.Errorf(op, id, "%w", err)
	}
	// An interrupted expansion leaves the image larger than the metadata
	// says. It is not taken back, because a node may have seen it already.
	has, err := b.checkImage(b.volumes, "volumes", v.ID, v.CapacityBytes)
	if err != nil {
		return volume{}, csierr.Errorf(op, id, "%w", err)
	}
	size, err := storage.Volume{CapacityBytes: has}.GrownSize(r, mib)
	if err == nil && size > has {
		var release func()
		if release, err = b.claim(size, size-v.CapacityBytes, size-has); err == nil {
			defer release()
			err = b.vols.growImage(id, size)
		}
	}
	if err != nil {
		return volume{}, csierr.Errorf(op, id, "%w", withSpaceKind(err))
	}
	if size == v.CapacityBytes {
		return v, nil
	}
	v.CapacityBytes = size
	if _, err := b.vols.save(v); err != nil {
		return volume{}, csierr.Errorf(op, id, "%w", err)
	}
	return v, nil
}

func (b *fileBackend) ModifyVolume(ctx context.Context, id string, mutable map[string]string) error {
	const op = "modify volume"
	unlock, err := b.lock(ctx, op, volumelock.KindVolume, id)
	if err != nil {
		return err
	}
	defer unlock()

	v, err := b.vols.current(id)
	if err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	was := v.Mutable
	v.Mutable = maps.Clone(was)
	if v.Mutable == nil {
		v.Mutable = map[string]string{}
	}
	maps.Copy(v.Mutable, mutable)
	if maps.Equal(v.Mutable, was) {
		return nil
	}
	if _, err := b.vols.save(v); err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	return nil
}

func (b *fileBackend) GetVolume(_ context.Context, id string) (volume, error) {
	v, err := b.vols.get(id)
	if err != nil {
		return volume{}, csierr.Errorf("get volume", id, "%w", err)
	}
	return v, nil
}

func (b *fileBackend) Places(context.Context) ([]topology.Candidate, error) {
	room, err := b.room()
	if err != nil {
		return nil, err
	}
	return []topology.Candidate{{Name: b.name, Segments: b.segments, Free: max(0, room)}}, nil
}

func (b *fileBackend) ListVolumes(_ context.Context, after string, limit int) (page []volume, next string, err error) {
	if after != "" && !volumeIDPattern.MatchString(after) {
		return nil, "", csierr.Errorf("list volumes after", after, "%w; start again without a token", storage.ErrBadToken)
	}
	page, more := b.vols.page(after, limit, nil)
	if more {
		next = page[len(page)-1].ID
	}
	return page, next, nil
}

// finishExpansion: an interrupted expansion has left the image larger than
// the metadata says.
func (b *fileBackend) finishExpansion(v volume) error {
	size, err := b.checkImage(b.volumes, "volumes", v.ID, v.CapacityBytes)
	if err != nil || size == v.CapacityBytes {
		return err
	}
	v.CapacityBytes = size
	_, err = b.vols.save(v)
	return err
}
