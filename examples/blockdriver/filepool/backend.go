package filepool

import (
	"context"
	"slices"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

// backend is the storage.Backend over the pools. Each call keeps them from being handed
// over to another controller while it is in flight.
type backend struct{ pools *filePools }

var (
	_ storage.GroupSnapshotter = backend{}
	_ storage.Cloner           = backend{}
	_ storage.Modifier         = backend{}
	_ storage.ChangedBlocks    = backend{}
	_ storage.HealthReporter   = backend{}
)

// keeping runs call while this process has the pools, or may open them.
func keeping[T any](ctx context.Context, b backend, call func(*filePools) (T, error)) (T, error) {
	release, err := b.pools.keep(ctx)
	if err != nil {
		var none T
		return none, err
	}
	defer release()
	return call(b.pools)
}

// do is keeping for a call without a result.
func (b backend) do(ctx context.Context, call func(*filePools) error) error {
	_, err := keeping(ctx, b, func(m *filePools) (struct{}, error) { return struct{}{}, call(m) })
	return err
}

// one is keeping for a call that returns a record, as package storage has it.
func one[T interface{ storage() S }, S any](ctx context.Context, b backend, call func(*filePools) (T, error)) (S, error) {
	v, err := keeping(ctx, b, call)
	if err != nil {
		var none S
		return none, err
	}
	return v.storage(), nil
}

func (b backend) CreateVolume(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	if err := checkParameters("create volume", s.Name, s.Parameters, b.pools.parameters); err != nil {
		return storage.Volume{}, err
	}
	return one(ctx, b, func(m *filePools) (volume, error) { return m.CreateVolume(ctx, s) })
}

func (b backend) RestoreSnapshot(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	return b.CreateVolume(ctx, s)
}

func (b backend) CloneVolume(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	return b.CreateVolume(ctx, s)
}

func (b backend) DeleteVolume(ctx context.Context, id string) error {
	return b.do(ctx, func(m *filePools) error { return m.DeleteVolume(ctx, id) })
}

func (b backend) ExpandVolume(ctx context.Context, id string, r storage.CapacityRange) (storage.Volume, error) {
	return one(ctx, b, func(m *filePools) (volume, error) { return m.ExpandVolume(ctx, id, r) })
}

// CheckMutable: see tuning.go.
func (b backend) CheckMutable(parameters map[string]string) error { return checkMutable(parameters) }

func (b backend) ModifyVolume(ctx context.Context, id string, parameters map[string]string) error {
	return b.do(ctx, func(m *filePools) error { return m.ModifyVolume(ctx, id, parameters) })
}

func (b backend) GetVolume(ctx context.Context, id string) (storage.Volume, error) {
	return one(ctx, b, func(m *filePools) (volume, error) { return m.GetVolume(ctx, id) })
}

func (b backend) ListVolumes(ctx context.Context, after string, limit int) (page []storage.Volume, next string, err error) {
	page, err = keeping(ctx, b, func(m *filePools) ([]storage.Volume, error) {
		list, token, err := m.ListVolumes(ctx, after, limit)
		next = token
		return storageOf(list, volume.storage), err
	})
	return page, next, err
}

func (b backend) AttachVolume(ctx context.Context, id string, a storage.Attachment) (map[string]string, error) {
	return keeping(ctx, b, func(m *filePools) (map[string]string, error) { return m.AttachVolume(ctx, id, a) })
}

func (b backend) DetachVolume(ctx context.Context, id, nodeID string) error {
	return b.do(ctx, func(m *filePools) error { return m.DetachVolume(ctx, id, nodeID) })
}

func (b backend) Places(ctx context.Context, parameters map[string]string) ([]topology.Candidate, error) {
	if err := checkParameters("measure what is free", "", parameters, b.pools.parameters); err != nil {
		return nil, err
	}
	places, err := keeping(ctx, b, func(m *filePools) ([]topology.Candidate, error) { return m.Places(ctx) })
	for i := range places {
		places[i].Free = places[i].Free / mib * mib
	}
	return places, err
}

func (b backend) CreateSnapshot(ctx context.Context, s storage.SnapshotSpec) (storage.Snapshot, error) {
	if err := checkParameters("create snapshot", s.Name, s.Parameters, nil); err != nil {
		return storage.Snapshot{}, err
	}
	return one(ctx, b, func(m *filePools) (snapshot, error) { return m.CreateSnapshot(ctx, s) })
}

func (b backend) DeleteSnapshot(ctx context.Context, id string) error {
	return b.do(ctx, func(m *filePools) error { return m.DeleteSnapshot(ctx, id) })
}

func (b backend) GetSnapshot(ctx context.Context, id string) (storage.Snapshot, error) {
	return one(ctx, b, func(m *filePools) (snapshot, error) { return m.GetSnapshot(ctx, id) })
}

// ListSnapshots leaves out snapshots whose records cannot be read: the log and fsck report
// them.
func (b backend) ListSnapshots(ctx context.Context, sourceVolumeID, after string, limit int) (page []storage.Snapshot, next string, err error) {
	page, err = keeping(ctx, b, func(m *filePools) ([]storage.Snapshot, error) {
		list, token, err := m.ListSnapshots(ctx, sourceVolumeID, after, limit)
		next = token
		list = slices.DeleteFunc(list, func(s snapshot) bool { return s.CreatedAt.IsZero() })
		return storageOf(list, snapshot.storage), err
	})
	return page, next, err
}

// Blocks does not keep the pools: a client that does not read its stream would keep them
// for ever, and with them all calls that come while the other controller waits. A stream
// holds its images open; one that has not opened them when the pools go is UNAVAILABLE.
func (b backend) Blocks(ctx context.Context, baseID, id string, from int64, each func(at, size int64) error) error {
	b.pools.asked.Store(true)
	return b.pools.Blocks(ctx, baseID, id, from, each)
}

func (b backend) CreateGroup(ctx context.Context, s storage.GroupSpec) (storage.Group, error) {
	if err := checkParameters("create group snapshot", s.Name, s.Parameters, nil); err != nil {
		return storage.Group{}, err
	}
	return one(ctx, b, func(m *filePools) (group, error) { return m.CreateGroup(ctx, s) })
}

func (b backend) DeleteGroup(ctx context.Context, id string, snapshotIDs []string) error {
	return b.do(ctx, func(m *filePools) error { return m.DeleteGroup(ctx, id, snapshotIDs) })
}

func (b backend) GetGroup(ctx context.Context, id string, snapshotIDs []string) (storage.Group, error) {
	return one(ctx, b, func(m *filePools) (group, error) { return m.GetGroup(ctx, id, snapshotIDs) })
}

func (b backend) CheckVolume(ctx context.Context, id string) ([]storage.Problem, error) {
	return keeping(ctx, b, func(m *filePools) ([]storage.Problem, error) { return m.CheckVolume(ctx, id) })
}

// checkParameters: pools know no parameters of classes, but those of the driver.
func checkParameters(op, name string, parameters map[string]string, known storage.Parameters) error {
	if err := known.Check(parameters); err != nil {
		return csierr.Errorf(op, name, "%w", err)
	}
	return nil
}
