package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// fileBackend is the Backend that keeps its volumes in a pool. One process at a
// time may have it.
//
// What is on the disk decides; the index in memory only spares reading it. A
// change is on the disk before it is in the index, and where a failure leaves
// it open whether the change is on the disk, the volume is read again before
// its next use.
type fileBackend struct {
	*pool
	log    *slog.Logger
	marker *os.File // open for its lock

	mu    sync.Mutex
	index map[string]record
	ids   []string                 // the keys of index, sorted
	busy  map[string]chan struct{} // what has an operation under way; closed at its end
	// attached counts the volumes per node. It follows from index.
	attached map[string]int64
}

type record struct {
	volume Volume
	// inDoubt: the disk may say something else, or cannot be understood.
	inDoubt bool
}

var _ Backend = (*fileBackend)(nil)

// newFileBackend takes the pool's lock, finishes what a killed controller left
// half-done and reads all metadata. A nil logger discards. Close the backend
// before the pool.
func newFileBackend(p *pool, log *slog.Logger) (_ *fileBackend, err error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &fileBackend{pool: p, log: log, index: map[string]record{}, busy: map[string]chan struct{}{}, attached: map[string]int64{}}
	// For writing, because an exclusive lock over NFS demands it.
	if b.marker, err = p.root.OpenFile(markerName, os.O_RDWR, 0); err != nil {
		return nil, fail("open pool", p.dir, "%w", err)
	}
	defer func() {
		if err != nil {
			b.marker.Close()
		}
	}()
	if err := lockFile(b.marker); errors.Is(err, errBusy) {
		return nil, fail("open pool", p.dir, "another controller runs on this pool and holds the lock on %s; stop it first", markerName)
	} else if err != nil {
		return nil, fail("open pool", p.dir, "lock %s: %w", markerName, err)
	}
	if err := b.repair(); err != nil {
		return nil, fail("open pool", p.dir, "%w", err)
	}
	return b, nil
}

// Close gives the lock up. Call it after the last operation has returned.
func (b *fileBackend) Close() error { return b.marker.Close() }

func (b *fileBackend) CreateVolume(ctx context.Context, s VolumeSpec) (Volume, error) {
	const op = "create volume"
	id := volumeID(s.Name)
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return Volume{}, err
	}
	defer unlock()

	v, err := b.current(id)
	if err == nil {
		if diff := v.differences(s); len(diff) > 0 {
			return Volume{}, fail(op, s.Name, "volume %s %w: %s; use another name or delete it first", id, errConflict, strings.Join(diff, "; "))
		}
		return v, nil
	}
	if !errors.Is(err, errNotFound) {
		return Volume{}, fail(op, s.Name, "%w", err)
	}
	size, err := chooseSize(s.Capacity, s.AccessType)
	if err == nil {
		err = b.checkRoom(size, size)
	}
	if err != nil {
		return Volume{}, fail(op, s.Name, "%w", err)
	}
	if err := b.finishDelete(id); err != nil {
		return Volume{}, fail(op, s.Name, "finish the deletion of its predecessor: %w", err)
	}
	// The image comes first: once metadata is there the volume exists.
	if err := b.makeImage(id, size); err != nil {
		return Volume{}, fail(op, s.Name, "%w", withSpaceKind(err))
	}
	v = Volume{ID: id, Name: s.Name, CapacityBytes: size, AccessType: s.AccessType, Parameters: s.Parameters}
	inDoubt, err := b.save(v)
	if err != nil && inDoubt {
		return Volume{}, fail(op, s.Name, "%w", err)
	}
	if err != nil {
		return Volume{}, fail(op, s.Name, "%w", withSpaceKind(errors.Join(err, b.remove(b.volumes, id+extImage))))
	}
	return v, nil
}

func (b *fileBackend) DeleteVolume(ctx context.Context, id string) error {
	const op = "delete volume"
	if !volumeIDPattern.MatchString(id) {
		return nil
	}
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer unlock()

	v, err := b.current(id)
	if err == nil {
		if v.Attachment != nil {
			return fail(op, id, "%w: it is attached to node %q; detach it first", errInUse, v.Attachment.NodeID)
		}
		err = b.beginDelete(v)
	}
	if err == nil || errors.Is(err, errNotFound) {
		err = b.clear(id)
	}
	if err != nil {
		return fail(op, id, "%w", err)
	}
	return nil
}

func (b *fileBackend) ExpandVolume(ctx context.Context, id string, r CapacityRange) (Volume, error) {
	const op = "expand volume"
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return Volume{}, err
	}
	defer unlock()

	v, err := b.current(id)
	if err != nil {
		return Volume{}, fail(op, id, "%w", err)
	}
	// An expansion that was cut off leaves the image larger than the metadata
	// says. It is not taken back, because a node may have seen it already.
	has, err := b.checkImage(v)
	if err != nil {
		return Volume{}, fail(op, id, "%w", err)
	}
	size, err := chooseGrownSize(r, has)
	if err == nil && size > has {
		if err = b.checkRoom(size, size-has); err == nil {
			err = b.growImage(id, size)
		}
	}
	if err != nil {
		return Volume{}, fail(op, id, "%w", withSpaceKind(err))
	}
	if size == v.CapacityBytes {
		return v, nil
	}
	v.CapacityBytes = size
	if _, err := b.save(v); err != nil {
		return Volume{}, fail(op, id, "%w", err)
	}
	return v, nil
}

func (b *fileBackend) AttachVolume(ctx context.Context, id string, a Attachment) (map[string]string, error) {
	const op = "attach volume"
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer unlock()

	v, err := b.current(id)
	if err != nil {
		return nil, fail(op, id, "%w", err)
	}
	node, err := b.readNode(a.NodeID)
	if errors.Is(err, errNotFound) {
		return nil, fail(op, id, "node %q %w; start the node plugin there, with the same pool", a.NodeID, errNotFound)
	}
	if err != nil {
		return nil, fail(op, id, "look for node %q: %w", a.NodeID, err)
	}
	if has := v.Attachment; has != nil {
		if has.NodeID != a.NodeID {
			return nil, fail(op, id, "%w: it is attached to node %q; detach it there first", errInUse, has.NodeID)
		}
		if diff := has.differences(a); len(diff) > 0 {
			return nil, fail(op, id, "attachment to node %q %w: %s; detach it first", a.NodeID, errConflict, strings.Join(diff, "; "))
		}
		return publishContext(id), nil
	}
	if _, err := b.checkImage(v); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	if node.MaxVolumes > 0 {
		// One attach to a node at a time, so that two do not both take its last place.
		unlock, err := b.lock(ctx, op, "node "+a.NodeID)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if has := b.attachedTo(a.NodeID); has >= node.MaxVolumes {
			return nil, fail(op, id, "node %q has %d volumes attached and takes %d: %w; detach one first", a.NodeID, has, node.MaxVolumes, errFull)
		}
	}
	v.Attachment = &a
	if _, err := b.save(v); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	return publishContext(id), nil
}

func (b *fileBackend) attachedTo(nodeID string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.attached[nodeID]
}

func (b *fileBackend) DetachVolume(ctx context.Context, id, nodeID string) error {
	const op = "detach volume"
	unlock, err := b.lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer unlock()

	v, err := b.current(id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err != nil {
		return fail(op, id, "%w", err)
	}
	if v.Attachment == nil || nodeID != "" && nodeID != v.Attachment.NodeID {
		return nil
	}
	v.Attachment = nil
	if _, err := b.save(v); err != nil {
		return fail(op, id, "%w", err)
	}
	return nil
}

func (b *fileBackend) GetVolume(_ context.Context, id string) (Volume, error) {
	b.mu.Lock()
	r, ok := b.index[id]
	b.mu.Unlock()
	if ok && !r.inDoubt {
		return r.volume, nil
	}
	if !ok {
		return Volume{}, fail("get volume", id, "%w", errNotFound)
	}
	return b.ReadVolume(id)
}

// ListVolumes uses the last ID of a page as its token, which stays good when
// volumes come and go, this one included.
func (b *fileBackend) ListVolumes(_ context.Context, after string, limit int) (page []Volume, next string, err error) {
	if after != "" && !volumeIDPattern.MatchString(after) {
		return nil, "", fail("list volumes after", after, "%w; start again without a token", errBadToken)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	start, found := slices.BinarySearch(b.ids, after)
	if found {
		start++
	}
	rest := b.ids[start:]
	if limit > 0 && limit < len(rest) {
		rest = rest[:limit]
		next = rest[limit-1]
	}
	page = make([]Volume, 0, len(rest))
	for _, id := range rest {
		page = append(page, b.index[id].volume)
	}
	return page, next, nil
}

// lock waits until no other operation on the volume is under way.
func (b *fileBackend) lock(ctx context.Context, op, id string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	for {
		b.mu.Lock()
		other, held := b.busy[id]
		if !held {
			done := make(chan struct{})
			b.busy[id] = done
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				delete(b.busy, id)
				b.mu.Unlock()
				close(done)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fail(op, id, "%w; try again later", errBusy)
		}
	}
}

// current returns the volume, from the disk if the index cannot be trusted. The
// caller holds the volume's lock.
func (b *fileBackend) current(id string) (Volume, error) {
	b.mu.Lock()
	r, ok := b.index[id]
	b.mu.Unlock()
	if !ok {
		return Volume{}, errNotFound
	}
	if !r.inDoubt {
		return r.volume, nil
	}
	v, err := b.ReadVolume(id)
	if errors.Is(err, errNotFound) {
		if err := b.sync(b.volumes); err != nil {
			return Volume{}, err
		}
		if err := b.clear(id); err != nil {
			return Volume{}, err
		}
		b.forget(id)
		return Volume{}, errNotFound
	}
	if err != nil {
		return Volume{}, err
	}
	// Written once more, because after a failed fsync Linux takes the lost
	// pages for clean: another fsync would succeed and prove nothing.
	if _, err := b.save(v); err != nil {
		return Volume{}, err
	}
	return v, nil
}

// clear removes what a create or a delete that failed has left of a volume
// without metadata.
func (b *fileBackend) clear(id string) error {
	if err := b.finishDelete(id); err != nil {
		return err
	}
	if err := b.remove(b.volumes, id+extMetadata+extTemp); err != nil {
		return err
	}
	return b.removeUncommitted(id + extImage)
}

// save writes the volume's metadata, then the index. See replaceFile for
// inDoubt.
func (b *fileBackend) save(v Volume) (inDoubt bool, err error) {
	data, err := encode(metadata{Version: formatVersion, Volume: v})
	if err != nil {
		return false, err
	}
	inDoubt, err = b.replaceFile(b.volumes, v.ID+extMetadata, data)
	if err == nil || inDoubt {
		b.put(record{volume: v, inDoubt: inDoubt})
	}
	return inDoubt, err
}

func (b *fileBackend) put(r record) {
	id := r.volume.ID
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, found := slices.BinarySearch(b.ids, id); !found {
		b.ids = slices.Insert(b.ids, i, id)
	}
	b.count(b.index[id], -1)
	b.count(r, +1)
	b.index[id] = r
}

// count is called with mu held.
func (b *fileBackend) count(r record, by int64) {
	if a := r.volume.Attachment; a != nil {
		if b.attached[a.NodeID] += by; b.attached[a.NodeID] == 0 {
			delete(b.attached, a.NodeID)
		}
	}
}

func (b *fileBackend) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, found := slices.BinarySearch(b.ids, id); found {
		b.ids = slices.Delete(b.ids, i, i+1)
	}
	b.count(b.index[id], -1)
	delete(b.index, id)
}

// makeImage makes the image of a new volume, durable and full of zeros, or
// leaves none behind.
func (b *fileBackend) makeImage(id string, size int64) error {
	name := id + extImage
	f, err := b.openImage(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := b.checkUnwritten(f, name); err != nil {
		return err
	}
	err = b.do("truncate image", func() error { return f.Truncate(size) })
	if err == nil {
		err = b.do("sync image", f.Sync)
	}
	if err == nil {
		err = b.sync(b.volumes)
	}
	if err != nil {
		return errors.Join(err, b.remove(b.volumes, name))
	}
	return nil
}

func (b *fileBackend) openImage(name string) (f *os.File, err error) {
	err = b.do("create image", func() error {
		f, err = b.volumes.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return err
	})
	return f, err
}

func (b *fileBackend) growImage(id string, size int64) error {
	f, err := b.volumes.OpenFile(id+extImage, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := b.do("truncate image", func() error { return f.Truncate(size) }); err != nil {
		return err
	}
	return b.do("sync image", f.Sync)
}

// beginDelete is the point of no return. A rename needs no room, so that a full
// pool can be emptied.
func (b *fileBackend) beginDelete(v Volume) error {
	err := b.do("rename", func() error { return b.volumes.Rename(v.ID+extMetadata, v.ID+extDeleting) })
	if err == nil {
		err = b.sync(b.volumes)
	}
	if err != nil {
		b.put(record{volume: v, inDoubt: true})
		return err
	}
	b.forget(v.ID)
	return nil
}

// finishDelete removes what is left of a volume whose deletion has begun, if
// anything. The mark goes last, and only when the image is gone for good: an
// image without a mark would be kept as somebody's data.
func (b *fileBackend) finishDelete(id string) error {
	if _, err := b.volumes.Lstat(id + extDeleting); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := b.remove(b.volumes, id+extImage); err != nil {
		return err
	}
	if err := b.sync(b.volumes); err != nil {
		return err
	}
	return b.remove(b.volumes, id+extDeleting)
}

// repair brings the directory and the index in order at the start. What fails
// for one volume is logged, and the others go on.
func (b *fileBackend) repair() error {
	names, err := readNames(b.volumes)
	if err != nil {
		return err
	}
	// Metadata before marks and images, which are judged by it.
	rank := map[string]int{extTemp: 1, extMetadata: 2, extDeleting: 3, extImage: 4}
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(cmp.Compare(rank[extension(x)], rank[extension(y)]), cmp.Compare(x, y))
	})
	for _, name := range names {
		id := strings.TrimSuffix(name, extension(name))
		if err := b.repairFile(name, id); err != nil {
			b.log.Error("repair volume", "volume_id", id, "error", err)
		}
	}
	return nil
}

func extension(name string) string {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return name[i:]
	}
	return ""
}

func (b *fileBackend) repairFile(name, id string) error {
	_, known := b.index[id]
	switch ext := extension(name); {
	case ext == extTemp && volumeIDPattern.MatchString(strings.TrimSuffix(id, extMetadata)):
		return b.remove(b.volumes, name)
	case !volumeIDPattern.MatchString(id):
		b.log.Warn("pool holds a file that is not csikit's", "file", b.file(name))
		return nil
	case ext == extMetadata:
		return b.load(id)
	case ext == extDeleting && known:
		// The name was created again after its predecessor's image was removed,
		// and a power cut brought the mark back.
		return b.remove(b.volumes, name)
	case ext == extDeleting:
		return b.finishDelete(id)
	case ext == extImage && !known:
		return b.removeUncommitted(name)
	}
	return nil
}

// load reads one volume into the index. Metadata that cannot be read is listed
// in doubt: the volume answers with the reason until the file is repaired, and
// its image is safe.
func (b *fileBackend) load(id string) error {
	v, err := b.ReadVolume(id)
	if err != nil {
		b.put(record{volume: Volume{ID: id}, inDoubt: true})
		return err
	}
	b.put(record{volume: v})
	size, err := b.checkImage(v)
	if err != nil || size == v.CapacityBytes {
		return err
	}
	v.CapacityBytes = size
	_, err = b.save(v)
	return err
}

// checkUnwritten: a create that was cut off leaves an image that nobody wrote to.
// One that holds data belongs to a volume whose metadata was lost, and is not ours
// to overwrite or to remove.
func (b *fileBackend) checkUnwritten(f *os.File, name string) error {
	data, err := holdsData(f)
	if err != nil {
		return err
	}
	if data {
		return fmt.Errorf("image %w: %s holds data but its metadata is missing, and is kept; restore the metadata or move the image away", errDamaged, b.file(name))
	}
	return nil
}

// removeUncommitted removes the image of a create that was cut off: its volume
// was never acknowledged. The image may be gone already, with its mark.
func (b *fileBackend) removeUncommitted(name string) error {
	f, err := b.volumes.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := b.checkUnwritten(f, name); err != nil {
		return err
	}
	return b.remove(b.volumes, name)
}
