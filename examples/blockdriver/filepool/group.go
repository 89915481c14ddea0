package filepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/volumelock"
)

// A group snapshot is a record in groups/ of the pool of its first volume, and one
// snapshot per volume, in the volume's pool. The record is written last; before the
// first snapshot <id>.making is, beside it. Snapshots of a group that has this mark and
// no record were never acknowledged and are removed. Without the mark they stay: their
// record may be in a pool that this process is not configured with.

// memberName is a name that no CO can send: names have no NUL.
func memberName(group, volumeID string) string { return "group\x00" + group + "\x00" + volumeID }

func (p *pool) readGroup(id string) (group, error) {
	const op = "read group snapshot"
	data, err := p.groups.ReadFile(id + extMetadata)
	if errors.Is(err, fs.ErrNotExist) {
		return group{}, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	if err != nil {
		return group{}, csierr.Errorf(op, id, "%w", err)
	}
	var m groupMetadata
	if err := json.Unmarshal(data, &m); err != nil || m.Version != formatVersion || m.ID != id || len(m.Members) == 0 {
		return group{}, csierr.Errorf(op, id, "metadata %w: restore %s", errDamaged, p.file("groups", id+extMetadata))
	}
	return m.group, nil
}

// freezer stops the writes to a volume that this process has staged.
type freezer interface {
	nodeID() string
	// freeze returns what thaws the volume again, and fails if it was not frozen all
	// the time. It thaws automatically after freezeLimit. A volume that cannot be frozen
	// here is storage.ErrInUse.
	freeze(ctx context.Context, volumeID string) (thaw func() error, err error)
}

// freezeLimit is how long a pod may have to wait for its writes.
const freezeLimit = 30 * time.Second

// frozenMark is the content of groups/<id>.frozen: it lets the next process thaw what
// a kill has left frozen.
type frozenMark struct {
	Version   int      `json:"version"`
	NodeID    string   `json:"node_id"`
	VolumeIDs []string `json:"volume_ids"`
}

const extFrozen = ".frozen"

func (m *filePools) group(ctx context.Context, op, id string) (*fileBackend, error) {
	if !groupIDPattern.MatchString(id) {
		return nil, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	return m.holder(ctx, op, id, func(b *fileBackend) bool { return b.groups.known(id) })
}

func (m *filePools) CreateGroup(ctx context.Context, s storage.GroupSpec) (group, error) {
	const op = "create group snapshot"
	unlock, err := m.lock(ctx, op, volumelock.KindGroupSnapshotName, keyOfName(groupKind, s.Name))
	if err != nil {
		return group{}, err
	}
	defer unlock()
	if g, err := m.existingGroup(ctx, s); !errors.Is(err, csierr.NotFound) {
		return g, err
	}
	home, err := m.volume(ctx, op, s.VolumeIDs[0])
	if err != nil {
		return group{}, err
	}
	return long(ctx, home, op+" "+s.Name, s, func(ctx context.Context) (group, error) {
		g, err := m.createGroup(ctx, home, s)
		if err != nil {
			return g, csierr.Errorf(op, s.Name, "%w", err)
		}
		return g, nil
	})
}

// existingGroup returns csierr.NotFound when there is none, or only what was begun of it.
func (m *filePools) existingGroup(ctx context.Context, s storage.GroupSpec) (g group, err error) {
	const op = "create group snapshot"
	b, err := m.holder(ctx, op, s.Name, func(b *fileBackend) bool { return b.groups.has(s.Name) })
	if err != nil {
		return g, err
	}
	if g, err = b.groups.currentOf(s.Name); err != nil {
		return g, csierr.Errorf(op, s.Name, "%w", err)
	}
	if has := g.volumeIDs(); g.Name != s.Name || !slices.Equal(has, s.VolumeIDs) {
		return g, csierr.Errorf(op, s.Name, "%w: it has the volumes %v, request wants %v; use another name or delete it first", csierr.Conflict, has, s.VolumeIDs)
	}
	return m.withSnapshots(ctx, g)
}

// groupIDFor returns the ID of what was begun of the group, or a new one.
func (m *filePools) groupIDFor(name string) string {
	for _, b := range m.here() {
		if id, ok := b.groups.find(name); ok {
			return id
		}
	}
	return newID(groupKind, name)
}

// member is one volume of a group snapshot in progress.
type member struct {
	b        *fileBackend
	volumeID string
	from     copySource
	copy     *imageCopy[snapshot]
}

func (m *filePools) createGroup(ctx context.Context, home *fileBackend, s storage.GroupSpec) (_ group, err error) {
	unlock, err := home.lock(ctx, "create group snapshot", volumelock.KindGroupSnapshot, keyOfName(groupKind, s.Name))
	if err != nil {
		return group{}, err
	}
	defer unlock()
	if g, err := m.existingGroup(ctx, s); !errors.Is(err, csierr.NotFound) { // created while this call waited
		return g, err
	}
	id := m.groupIDFor(s.Name)
	if err := m.dropUnfinished(id); err != nil {
		return group{}, fmt.Errorf("remove what an earlier attempt left: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.dropUnfinished(id))
		}
	}()
	if err := home.markGroup(id, s); err != nil {
		return group{}, err
	}
	members, release, err := m.hold(ctx, s)
	if err != nil {
		return group{}, err
	}
	defer release()
	if err := m.cloneTogether(ctx, home, id, members); err != nil {
		return group{}, err
	}
	g := group{ID: id, Name: s.Name}
	for _, x := range members {
		snap, err := x.b.commitSnapshot(x.copy, storage.SnapshotSpec{Name: memberName(s.Name, x.volumeID), SourceVolumeID: x.volumeID}, x.from.accessType, id)
		if err != nil {
			return group{}, err
		}
		g.Members = append(g.Members, groupMember{x.volumeID, snap.ID})
		g.Snapshots = append(g.Snapshots, snap)
		g.CreatedAt = snap.CreatedAt
	}
	if _, err = home.groups.save(g); err != nil {
		return group{}, err
	}
	if err := home.remove(home.pool.groups, id+extMaking); err != nil {
		m.log.Warn("the mark of a finished group snapshot remains until the next start", "id", id, "error", err)
	}
	home.groups.setBegun(id, false)
	return g, nil
}

const extMaking = ".making"

// makingMark is the content of groups/<id>.making.
type makingMark struct {
	Version   int      `json:"version"`
	Name      string   `json:"name"`
	VolumeIDs []string `json:"volume_ids"`
}

func readMakingMark(data []byte) (mark makingMark, err error) {
	if err = json.Unmarshal(data, &mark); err != nil || mark.Version != formatVersion || len(mark.VolumeIDs) == 0 {
		err = fmt.Errorf("the mark of an interrupted group snapshot is %w", errDamaged)
	}
	return mark, err
}

func (b *fileBackend) markGroup(id string, s storage.GroupSpec) error {
	data, err := encode(makingMark{formatVersion, s.Name, s.VolumeIDs})
	if err == nil {
		b.groups.setBegun(id, true)
		_, err = b.replaceFile(b.pool.groups, id+extMaking, data)
	}
	return err
}

// dropUnfinished removes what has been created of a group, if it has a mark. The group's
// lock is held. While it is in doubt whether there is a record, all stays.
func (m *filePools) dropUnfinished(id string) error {
	recorded := slices.ContainsFunc(m.here(), func(b *fileBackend) bool { return b.groups.known(id) })
	for _, b := range m.here() {
		data, err := b.pool.groups.ReadFile(id + extMaking)
		if errors.Is(err, fs.ErrNotExist) {
			b.groups.setBegun(id, false)
			continue
		}
		if r, _ := b.groups.lookUp(id); r.inDoubt {
			continue
		}
		if err == nil && !recorded {
			err = m.dropMarked(b, id, data)
		}
		if err == nil {
			err = b.remove(b.pool.groups, id+extMaking)
		}
		if err != nil {
			return err
		}
		b.groups.setBegun(id, false)
	}
	return nil
}

func (m *filePools) dropMarked(b *fileBackend, id string, data []byte) error {
	mark, err := readMakingMark(data)
	if err != nil {
		return fmt.Errorf("%s: %w; remove it with the driver stopped, then fsck names the snapshots of the group", b.file("groups", id+extMaking), err)
	}
	return m.dropMembers(storage.GroupSpec{Name: mark.Name, VolumeIDs: mark.VolumeIDs})
}

func (m *filePools) dropMembers(s storage.GroupSpec) error {
	var errs []error
	for _, b := range m.here() {
		for _, v := range s.VolumeIDs {
			if id, ok := b.snaps.find(memberName(s.Name, v)); ok {
				errs = append(errs, b.deleteSnapshot(id))
			}
		}
	}
	return firstOf(errs)
}

// hold keeps the volumes as they are, and begins their copies. The locks are taken in
// the order of the IDs, so that two groups do not wait for each other.
func (m *filePools) hold(ctx context.Context, s storage.GroupSpec) (members []*member, _ func(), err error) {
	var releases []func()
	release := func() {
		for _, r := range slices.Backward(releases) {
			r()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	for _, id := range s.VolumeIDs {
		b, err := m.volume(ctx, "create group snapshot", id)
		if err != nil {
			return nil, nil, err
		}
		from, free, err := b.holdVolume(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		releases = append(releases, free)
		c, err := begin(b, b.snaps, b.snaps.idFor(memberName(s.Name, id)), from)
		if err != nil {
			return nil, nil, err
		}
		releases = append(releases, c.close)
		unclaim, err := b.claim(0, c.size, 0)
		if err != nil {
			return nil, nil, err
		}
		releases = append(releases, unclaim)
		members = append(members, &member{b, id, from, c})
	}
	return members, release, nil
}

// cloneTogether creates the images. Those that take long come first: their volumes are
// not attached. The others are cloned one after the other while no attached one of them
// is written to.
func (m *filePools) cloneTogether(ctx context.Context, home *fileBackend, id string, members []*member) error {
	var attached []string
	for _, x := range members {
		v, err := x.b.vols.get(x.volumeID)
		if err != nil {
			return err
		}
		if v.Attachment != nil {
			attached = append(attached, x.volumeID)
		}
		if !x.copy.atomic {
			if err := x.copy.fill(ctx, func() error { return x.b.checkRoom(0, 0, 0) }); err != nil {
				return withSpaceKind(err)
			}
		}
	}
	thaw := func() error { return nil }
	if len(attached) > 1 { // a single one is cloned atomically
		var err error
		if thaw, err = m.freezeAll(ctx, home, id, attached); err != nil {
			return err
		}
	}
	if err := errors.Join(cutAll(members), thaw()); err != nil {
		return withSpaceKind(err)
	}
	for _, x := range members {
		if err := x.copy.finish(x.copy.size); err != nil {
			return withSpaceKind(err)
		}
	}
	return nil
}

func cutAll(members []*member) error {
	for _, x := range members {
		if x.copy.atomic {
			if err := x.copy.clone(); err != nil {
				return err
			}
		}
	}
	return nil
}

// freezeAll freezes the volumes, or none. The mark that names them is on the disk
// before the first of them is frozen, and goes when the last is thawed.
func (m *filePools) freezeAll(ctx context.Context, home *fileBackend, id string, volumeIDs []string) (thaw func() error, err error) {
	if m.freezer == nil {
		return nil, fmt.Errorf("%w: the volumes %v are attached, and this process has no node plugin to freeze them; detach them, or all but one", storage.ErrInUse, volumeIDs)
	}
	data, err := encode(frozenMark{formatVersion, m.freezer.nodeID(), volumeIDs})
	if err != nil {
		return nil, err
	}
	if _, err := home.replaceFile(home.pool.groups, id+extFrozen, data); err != nil {
		return nil, err
	}
	var thaws []func() error
	freezing := false // still, without a waiting caller
	thaw = func() error {
		var errs []error
		for _, t := range slices.Backward(thaws) {
			errs = append(errs, t())
		}
		if err := errors.Join(errs...); err != nil || freezing {
			return err // the mark stays, and the next start thaws
		}
		return home.remove(home.pool.groups, id+extFrozen)
	}
	for _, v := range volumeIDs {
		t, err := m.freezer.freeze(ctx, v)
		if err != nil {
			var parked interface{ Pending() <-chan struct{} }
			freezing = errors.As(err, &parked)
			return nil, errors.Join(err, thaw())
		}
		thaws = append(thaws, t)
	}
	return thaw, nil
}

func (m *filePools) withSnapshots(ctx context.Context, g group) (group, error) {
	g.Snapshots = nil
	for _, x := range g.Members {
		s, err := m.GetSnapshot(ctx, x.SnapshotID)
		if errors.Is(err, csierr.NotFound) {
			return g, csierr.Errorf("get group snapshot", g.ID, "snapshot %s of it is missing, %w: its deletion has begun, or it was removed by hand; delete the group", x.SnapshotID, errDamaged)
		}
		if err != nil {
			return g, err
		}
		g.Snapshots = append(g.Snapshots, s)
	}
	return g, nil
}

// checkMembers: a CO may leave the list out, as csi-sanity does.
func (g group) checkMembers(snapshotIDs []string) error {
	if has := g.snapshotIDs(); len(snapshotIDs) > 0 && !slices.Equal(has, slices.Sorted(slices.Values(snapshotIDs))) {
		return fmt.Errorf("%w: it has the snapshots %s, request names %s", csierr.Invalid, strings.Join(has, ", "), strings.Join(snapshotIDs, ", "))
	}
	return nil
}

func (m *filePools) GetGroup(ctx context.Context, id string, snapshotIDs []string) (group, error) {
	const op = "get group snapshot"
	b, err := m.group(ctx, op, id)
	if err != nil {
		return group{}, err
	}
	g, err := b.groups.get(id)
	if err == nil {
		err = g.checkMembers(snapshotIDs)
	}
	if err != nil {
		return g, csierr.Errorf(op, id, "%w", err)
	}
	return m.withSnapshots(ctx, g)
}

// DeleteGroup removes the snapshots, then the record, so that a retry knows what is
// left.
func (m *filePools) DeleteGroup(ctx context.Context, id string, snapshotIDs []string) error {
	const op = "delete group snapshot"
	b, err := m.group(ctx, op, id)
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := b.lock(ctx, op, volumelock.KindGroupSnapshot, id)
	if err != nil {
		return err
	}
	defer unlock()
	g, err := b.groups.current(id)
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err == nil {
		err = g.checkMembers(snapshotIDs)
	}
	if err == nil {
		err = m.deleteMembers(ctx, g)
	}
	if err == nil {
		err = b.groups.beginDelete(g)
	}
	if err == nil {
		err = b.groups.clear(id)
	}
	if err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	return nil
}

func (m *filePools) deleteMembers(ctx context.Context, g group) error {
	type locked struct {
		b  *fileBackend
		id string
	}
	var all []locked
	for _, id := range g.snapshotIDs() {
		b, err := m.snapshot(ctx, "delete snapshot", id)
		if errors.Is(err, csierr.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		unlock, err := b.lock(ctx, "delete snapshot", volumelock.KindSnapshot, id)
		if err != nil {
			return err
		}
		defer unlock()
		if err := b.checkNotPinned(id); err != nil {
			return err
		}
		all = append(all, locked{b, id})
	}
	for _, x := range all {
		if err := x.b.deleteSnapshot(x.id); err != nil {
			return err
		}
	}
	return nil
}

// dropOrphans removes what is left of groups that were never acknowledged and are not
// being made. It needs all pools: the record may be in any.
func (m *filePools) dropOrphans() {
	for _, b := range m.here() {
		names, err := readNames(b.pool.groups)
		if err != nil {
			m.log.Error("find interrupted group snapshots", "pool", b.name, "error", err)
		}
		for _, name := range names {
			id := strings.TrimSuffix(name, extMaking)
			if id == name || !groupIDPattern.MatchString(id) {
				continue
			}
			held, err := m.table.Acquire(volumelock.Op{RPC: "remove an interrupted group snapshot"},
				volumelock.Request{Key: volumelock.Key{Kind: volumelock.KindGroupSnapshot, ID: keyOf(id)}})
			if err != nil { // it is being made
				continue
			}
			if len(m.away()) == 0 {
				if err := m.dropUnfinished(id); err != nil {
					m.log.Error("remove an interrupted group snapshot", "id", id, "error", err)
				}
			}
			held.Release()
		}
	}
}
