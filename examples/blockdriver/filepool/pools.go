package filepool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"github.com/csikit/csikit/volumelock"
)

// filePools is the Backend over all pools of the driver. What it adds to one of
// them: where a new volume goes, and which pool has the one that is asked for. A name
// that no pool has is created only when all pools can be asked.
type filePools struct {
	*poolSet[*fileBackend]
	freezer freezer // nil: no node plugin in this process

	// What the pools share.
	*locks
	attached   *tally
	limits     policy
	parameters storage.Parameters // that volumes may have

	calls        sync.RWMutex // held for writing while the pools are released
	asked        atomic.Bool  // a call has arrived here
	watch        sync.WaitGroup
	stopWatching func()
}

// policy is what may be promised of a pool.
type policy struct {
	overcommit float64 // times the pool's size that all in it may have together; 0: no limit
	reserve    float64 // percent of it that stay free
}

// openPools opens the pools for a controller. Close it after the last operation has
// returned.
func openPools(ctx context.Context, configs []poolConfig, limits policy, env storage.Env) (*filePools, error) {
	m := &filePools{
		poolSet: &poolSet[*fileBackend]{configs: configs, work: env.Work, log: env.Logger},
		locks:   new(locks), attached: new(tally), limits: limits, parameters: env.Parameters,
	}
	m.open, m.complete = m.openBackendOf, m.dropOrphans
	if err := m.start(ctx); err != nil && !onlyHeld(err) {
		return nil, errors.Join(err, m.closeAll())
	}
	if len(m.here()) == 0 {
		m.log.Info("another controller owns the pools: on standby")
	}
	watching, stop := context.WithCancel(context.Background())
	m.stopWatching = stop
	m.watch.Go(func() { m.releaseWhenWanted(watching) })
	return m, nil
}

// onlyHeld: the only error of the pools is that another controller owns them.
func onlyHeld(err error) bool {
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	return !slices.ContainsFunc(list, func(err error) bool { return !errors.Is(err, errHeld) })
}

// Close releases the pools.
func (m *filePools) Close() error {
	m.stopWatching()
	m.watch.Wait()
	return m.closeAll()
}

func (m *filePools) closeAll() error {
	all := m.here()
	for _, b := range all { // a call in flight may use several of them
		b.stop()
		b.jobs.close()
	}
	var errs []error
	for _, b := range all {
		m.drop(b.name)
		b.uncount()
		errs = append(errs, b.Close(), b.pool.Close())
	}
	return errors.Join(errs...)
}

// all returns the backends of all pools, for what must not leave one out: a CO takes a
// volume that is in no list for a deleted one.
func (m *filePools) all(ctx context.Context, op string) ([]*fileBackend, error) {
	if err := m.openAway(ctx); err != nil {
		return nil, csierr.Errorf(op, "", "a pool is unavailable: %s", oneLine(err))
	}
	return m.here(), nil
}

// volume returns the backend that has the volume.
func (m *filePools) volume(ctx context.Context, op, id string) (*fileBackend, error) {
	if !volumeIDPattern.MatchString(id) {
		return nil, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	return m.holder(ctx, op, id, func(b *fileBackend) bool { return b.vols.claimed(id) })
}

func (m *filePools) CreateVolume(ctx context.Context, s storage.VolumeSpec) (volume, error) {
	const op = "create volume"
	unlock, err := m.lock(ctx, op, volumelock.KindVolumeName, keyOfName(volumeKind, s.Name))
	if err != nil {
		return volume{}, err
	}
	defer unlock()
	b, err := m.holder(ctx, op, s.Name, func(b *fileBackend) bool { return b.vols.has(s.Name) })
	if err == nil {
		return b.CreateVolume(ctx, s)
	}
	if !errors.Is(err, csierr.NotFound) {
		return volume{}, err
	}
	if s.Source != nil {
		return m.createFrom(ctx, s)
	}
	size, err := s.Size(defaultCapacity, mib, 0)
	if err != nil {
		return volume{}, csierr.Errorf(op, s.Name, "%w", err)
	}
	return m.createWhereItFits(ctx, s, size)
}

// createFrom creates the volume in the pool of its source.
func (m *filePools) createFrom(ctx context.Context, s storage.VolumeSpec) (volume, error) {
	const op = "create volume"
	find, sourceID := m.snapshot, s.Source.SnapshotID
	if s.Source.VolumeID != "" {
		find, sourceID = m.volume, s.Source.VolumeID
	}
	b, err := find(ctx, op, sourceID)
	if err != nil {
		return volume{}, csierr.Errorf(op, s.Name, "source %s: %w", s.Source, err)
	}
	place := topology.Candidate{Name: b.name, Segments: b.segments, Free: math.MaxInt64}
	if _, err := topology.Choose(s.Requirement, 0, []topology.Candidate{place}); err != nil {
		return volume{}, fmt.Errorf("the volume has to be where its source %s is: %w", s.Source, err)
	}
	return b.CreateVolume(ctx, s)
}

// createWhereItFits tries one pool after the other while each turns out to be too
// full: what is free can change between the look and the creation.
func (m *filePools) createWhereItFits(ctx context.Context, s storage.VolumeSpec, size int64) (volume, error) {
	const op = "create volume"
	places, unknown := m.places(ctx)
	if len(places) == 1 && unknown == nil && s.Requirement == nil {
		return m.named(places[0].Name).CreateVolume(ctx, s) // its error has the details
	}
	for {
		chosen, err := topology.Choose(s.Requirement, size, places)
		if err != nil && unknown != nil { // there it might fit
			return volume{}, csierr.Errorf(op, s.Name, "%w", unknown)
		}
		if err != nil {
			return volume{}, err
		}
		v, err := m.named(chosen[0].Name).CreateVolume(ctx, s)
		if !errors.Is(err, csierr.NoSpace) {
			return v, err
		}
		places = slices.DeleteFunc(places, func(c topology.Candidate) bool { return c.Name == chosen[0].Name })
	}
}

func (m *filePools) named(name string) *fileBackend {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened[name]
}

// Places has the pools that are there and answer, in the order of the settings.
func (m *filePools) Places(ctx context.Context) ([]topology.Candidate, error) {
	if err := m.openAway(ctx); err != nil && len(m.here()) == 0 {
		return nil, csierr.Errorf("measure what is free", "", "%s", oneLine(err))
	}
	places, err := m.places(ctx)
	if len(places) > 0 {
		err = nil
	}
	return places, err
}

// places returns why one of the pools that are there has no place in the list.
func (m *filePools) places(ctx context.Context) (places []topology.Candidate, unknown error) {
	silent := m.silent(ctx)
	for _, b := range m.here() {
		var p []topology.Candidate
		err := silent[b.at()]
		if err == nil {
			p, err = b.Places(ctx)
		}
		if err != nil {
			m.log.Error("cannot measure the free space of a pool", "pool", b.name, "error", err)
			unknown = err
		}
		places = append(places, p...)
	}
	return places, unknown
}

func (m *filePools) DeleteVolume(ctx context.Context, id string) error {
	const op = "delete volume"
	b, err := m.volume(ctx, op, id)
	if err == nil {
		return b.DeleteVolume(ctx, id)
	}
	if !errors.Is(err, csierr.NotFound) {
		return err
	}
	var errs []error // finish a deletion that has begun, wherever that was
	for _, b := range m.here() {
		errs = append(errs, b.DeleteVolume(ctx, id))
	}
	return firstOf(errs)
}

// firstOf returns the first failure: joined ones have no code.
func firstOf(errs []error) error { return cmp.Or(errs...) }

func (m *filePools) ExpandVolume(ctx context.Context, id string, r storage.CapacityRange) (volume, error) {
	b, err := m.volume(ctx, "expand volume", id)
	if err != nil {
		return volume{}, err
	}
	return b.ExpandVolume(ctx, id, r)
}

func (m *filePools) ModifyVolume(ctx context.Context, id string, mutable map[string]string) error {
	b, err := m.volume(ctx, "modify volume", id)
	if err != nil {
		return err
	}
	return b.ModifyVolume(ctx, id, mutable)
}

func (m *filePools) AttachVolume(ctx context.Context, id string, a storage.Attachment) (map[string]string, error) {
	const op = "attach volume"
	b, err := m.volume(ctx, op, id)
	if err != nil {
		return nil, err
	}
	publishContext, err := b.AttachVolume(ctx, id, a)
	if !errors.Is(err, errNoNode) {
		return publishContext, err
	}
	for _, other := range m.here() { // a node that exists, but has not this pool
		if _, err := other.readNode(a.NodeID); err == nil {
			return nil, csierr.Errorf(op, id, "%w: node %q does not have the pool %s; configure its node plugin with that pool, or run the pod elsewhere", storage.ErrNotAccessible, a.NodeID, b.name)
		}
	}
	return nil, err
}

func (m *filePools) DetachVolume(ctx context.Context, id, nodeID string) error {
	b, err := m.volume(ctx, "detach volume", id)
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.DetachVolume(ctx, id, nodeID)
}

func (m *filePools) GetVolume(ctx context.Context, id string) (volume, error) {
	b, err := m.volume(ctx, "get volume", id)
	if err != nil {
		return volume{}, err
	}
	return b.GetVolume(ctx, id)
}

func (m *filePools) ListVolumes(ctx context.Context, after string, limit int) ([]volume, string, error) {
	all, err := m.all(ctx, "list volumes")
	if err != nil {
		return nil, "", err
	}
	return merge(all, limit, func(b *fileBackend) ([]volume, string, error) { return b.ListVolumes(ctx, after, limit) })
}

// snapshot returns the backend that has the snapshot.
func (m *filePools) snapshot(ctx context.Context, op, id string) (*fileBackend, error) {
	if !snapshotIDPattern.MatchString(id) {
		return nil, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	return m.holder(ctx, op, id, func(b *fileBackend) bool { return b.snaps.claimed(id) })
}

func (m *filePools) CreateSnapshot(ctx context.Context, s storage.SnapshotSpec) (snapshot, error) {
	const op = "create snapshot"
	unlock, err := m.lock(ctx, op, volumelock.KindSnapshotName, keyOfName(snapshotKind, s.Name))
	if err != nil {
		return snapshot{}, err
	}
	defer unlock()
	b, err := m.holder(ctx, op, s.Name, func(b *fileBackend) bool { return b.snaps.has(s.Name) })
	if errors.Is(err, csierr.NotFound) {
		b, err = m.volume(ctx, op, s.SourceVolumeID)
	}
	if err != nil {
		return snapshot{}, err
	}
	return b.CreateSnapshot(ctx, s)
}

func (m *filePools) DeleteSnapshot(ctx context.Context, id string) error {
	b, err := m.snapshot(ctx, "delete snapshot", id)
	if err == nil {
		return b.DeleteSnapshot(ctx, id)
	}
	if !errors.Is(err, csierr.NotFound) {
		return err
	}
	var errs []error
	for _, b := range m.here() {
		errs = append(errs, b.DeleteSnapshot(ctx, id))
	}
	return firstOf(errs)
}

func (m *filePools) GetSnapshot(ctx context.Context, id string) (snapshot, error) {
	b, err := m.snapshot(ctx, "get snapshot", id)
	if err != nil {
		return snapshot{}, err
	}
	return b.GetSnapshot(ctx, id)
}

func (m *filePools) ListSnapshots(ctx context.Context, sourceVolumeID, after string, limit int) ([]snapshot, string, error) {
	all, err := m.all(ctx, "list snapshots")
	if err != nil {
		return nil, "", err
	}
	return merge(all, limit, func(b *fileBackend) ([]snapshot, string, error) {
		return b.ListSnapshots(ctx, sourceVolumeID, after, limit)
	})
}

// merge combines the pages of the pools, which all begin behind the same ID.
func merge[T object](pools []*fileBackend, limit int, page func(*fileBackend) ([]T, string, error)) (all []T, next string, err error) {
	if len(pools) == 1 {
		return page(pools[0])
	}
	more := false
	for _, b := range pools {
		part, token, err := page(b)
		if err != nil {
			return nil, "", err
		}
		more = more || token != ""
		all = append(all, part...)
	}
	slices.SortFunc(all, func(x, y T) int { return cmp.Compare(x.objectID(), y.objectID()) })
	if limit > 0 && len(all) > limit {
		all, more = all[:limit], true
	}
	if more {
		next = all[len(all)-1].objectID()
	}
	return all, next, nil
}
