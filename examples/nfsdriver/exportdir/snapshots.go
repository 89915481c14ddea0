package exportdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// snapshot is a snapshot as its record has it.
type snapshot struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	VolumeID  string    `json:"volume_id"`
	SizeBytes int64     `json:"size_bytes"` // the volume's capacity
	Created   time.Time `json:"created"`    // the copy's point in time; with copyInUse, the start of the last pass
}

// public returns the snapshot as the driver knows it.
func (s snapshot) public() storage.Snapshot {
	return storage.Snapshot{ID: s.ID, Name: s.Name, SourceVolumeID: s.VolumeID, SizeBytes: s.SizeBytes, CreatedAt: s.Created}
}

// snapshotRecord is the content of snapshots/K.json.
type snapshotRecord struct {
	Version int    `json:"version"`
	Inode   uint64 `json:"inode"`
	snapshot
}

func (s *store) readSnapshot(name string) (r snapshotRecord, err error) {
	if err := s.readRecord(name, &r); err != nil {
		return r, err
	}
	ref, err := share.ParseSnapshotID(r.ID)
	if err != nil || r.Version != formatVersion || !strings.HasPrefix(name, path.Join(dirSnapshots, ref.Key)+".") {
		return r, fmt.Errorf("%w: %s describes snapshot %q with version %d; restore it", errDamaged, s.where(storeName, name), r.ID, r.Version)
	}
	return r, nil
}

func (r snapshotRecord) temp() string { return tempOf("snapshot", r.Name, "", r.VolumeID) }

func (b *backend) CreateSnapshot(ctx context.Context, spec storage.SnapshotSpec) (storage.Snapshot, error) {
	const op = "create snapshot"
	name, volumeID := spec.Name, spec.SourceVolumeID
	snap, err := func() (snapshot, error) {
		inUse, err := share.PlanSnapshot(spec)
		if err != nil {
			return snapshot{}, err
		}
		ref, err := share.ParseVolumeID(volumeID)
		if err != nil || b.allowed(ref.Export) != nil {
			return snapshot{}, fmt.Errorf("volume %q %w", volumeID, csierr.NotFound)
		}
		id := share.SnapshotRef{Export: ref.Export, Key: share.Digest(name), Nonce: share.NewNonce()}.Encode()
		if len(id) > share.MaxID {
			return snapshot{}, fmt.Errorf("%w: the snapshot ID would have %d bytes, and CSI allows %d: use a shorter server or share", csierr.Invalid, len(id), share.MaxID)
		}
		return withStore(ctx, b, ref.Export, fmt.Sprintf("%s %q of %s, in use: %t", op, name, volumeID, inUse), func(did progress, s *store) (snapshot, error) {
			return b.take(did, s, snapshot{ID: id, Name: name, VolumeID: volumeID}, ref, inUse)
		})
	}()
	if err != nil {
		return storage.Snapshot{}, fail(op, name, "%w", err)
	}
	return snap.public(), nil
}

func (b *backend) take(did progress, s *store, snap snapshot, source share.VolumeRef, inUse bool) (snapshot, error) {
	if err := s.create(); err != nil {
		return snap, err
	}
	key := path.Join(dirSnapshots, share.Digest(snap.Name))
	r, err := s.readSnapshot(key + extRecord)
	if errors.Is(err, csierr.NotFound) {
		r, err = b.takeSnapshot(did, s, snap, source, key, inUse)
	}
	if err != nil {
		return snap, err
	}
	if err := r.public().Matches(storage.SnapshotSpec{Name: snap.Name, SourceVolumeID: snap.VolumeID}); err != nil {
		return snap, err
	}
	return r.snapshot, incomplete(s.placeSnapshot(r, key))
}

func (s *store) placeSnapshot(r snapshotRecord, key string) error {
	return s.withChangeLock(func() error {
		dir, err := openDirectory(s.own, dirSnapshots)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := syncDir(dir, "."); err != nil {
			return err
		}
		err = s.place(r.temp(), dir, path.Base(key), path.Join(storeName, key), r.Inode)
		if !errors.Is(err, errDamaged) {
			return err
		}
		if now, gone := s.readSnapshot(key + extRecord); isDeleted(now.ID, r.ID, gone) {
			return errDeleted
		}
		return err
	})
}

func (b *backend) takeSnapshot(did progress, s *store, snap snapshot, source share.VolumeRef, key string, inUse bool) (r snapshotRecord, err error) {
	r = snapshotRecord{Version: formatVersion, snapshot: snap}
	done, err := s.claimTemp(r.temp())
	if err != nil {
		return r, err
	}
	defer done()
	defer func() {
		if final(err) {
			err = b.discard(s, r.temp(), err)
		}
	}()
	v, err := s.volume(source)
	if err != nil {
		return r, fmt.Errorf("volume %q: %w", snap.VolumeID, err)
	}
	if err := s.finishDeleteSnapshot(key); err != nil {
		return r, fmt.Errorf("finish the deletion of its predecessor: %w", err)
	}
	if r.Inode, r.Created, err = s.fill(r.temp(), snap.VolumeID, inUse, share.Access{}, b.exports, s.progressOf(did, r.temp())); err != nil {
		return r, err
	}
	r.SizeBytes = v.CapacityBytes
	data, err := encode(r)
	if err != nil {
		return r, err
	}
	err = s.add(key+extRecord, data)
	if errors.Is(err, fs.ErrExist) { // created concurrently
		return s.readSnapshot(key + extRecord)
	}
	return r, err
}

func (b *backend) DeleteSnapshot(ctx context.Context, id string) error {
	const op = "delete snapshot"
	ref, err := share.ParseSnapshotID(id)
	if err != nil {
		b.log.Warn("ignore DeleteSnapshot: the ID is not of this driver", "snapshot_id", id, "error", err)
		return nil
	}
	if b.allowed(ref.Export) != nil {
		return fail(op, id, "%w: the export %s is not one of -exports; nothing is changed", errRefused, ref.Export)
	}
	_, err = withStore(ctx, b, ref.Export, op+" "+id, func(_ progress, s *store) (any, error) {
		if err := s.openLocked(); err != nil {
			return nil, err
		}
		return nil, s.deleteSnapshotByID(id, path.Join(dirSnapshots, ref.Key))
	})
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err != nil {
		return fail(op, id, "%w", err)
	}
	b.clean(ref.Export)
	return nil
}

// deleteSnapshotByID is deleteByID for a snapshot.
func (s *store) deleteSnapshotByID(id, key string) error {
	meant := false
	err := s.withChangeLock(func() error {
		r, err := s.readSnapshot(key + extRecord)
		begun := errors.Is(err, csierr.NotFound)
		if begun {
			r, err = s.readSnapshot(key + extDeleting)
		}
		if err == nil {
			meant, err = s.matchesRecord(id, r.ID)
		}
		if err != nil || !meant || begun {
			return err
		}
		return s.own.Rename(key+extRecord, key+extDeleting)
	})
	if err != nil || !meant {
		return err
	}
	return s.finishDeleteSnapshot(key)
}

// finishDeleteSnapshot is finishDelete for a snapshot.
func (s *store) finishDeleteSnapshot(key string) error {
	s.change.Lock()
	defer s.change.Unlock()
	r, err := s.readSnapshot(key + extDeleting)
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err == nil && s.exists(key+extRecord) {
		return remove(s.own, key+extDeleting)
	}
	if err == nil {
		err = syncDir(s.own, dirSnapshots) // before anything is moved
	}
	if err == nil {
		err = s.moveToTrash(s.own, r.temp())
	}
	if err == nil {
		err = s.moveToTrash(s.own, key)
	}
	if err != nil {
		return err
	}
	return remove(s.own, key+extDeleting)
}

func (b *backend) GetSnapshot(ctx context.Context, id string) (storage.Snapshot, error) {
	const op = "get snapshot"
	ref, err := share.ParseSnapshotID(id)
	if err != nil || b.allowed(ref.Export) != nil {
		return storage.Snapshot{}, fail(op, id, "%w", csierr.NotFound)
	}
	snap, err := queryStore(ctx, b, ref.Export, op+" "+id, func(s *store) (snapshot, error) {
		if err := s.open(); err != nil {
			return snapshot{}, err
		}
		r, err := s.snapshotByID(id, path.Join(dirSnapshots, ref.Key))
		return r.snapshot, err
	})
	if err != nil {
		return storage.Snapshot{}, fail(op, id, "%w", err)
	}
	return snap.public(), nil
}

// snapshotByID returns errNotFound if there is no such snapshot, or if its ID differs.
func (s *store) snapshotByID(id, key string) (snapshotRecord, error) {
	r, err := s.readSnapshot(key + extRecord)
	if err == nil && r.ID != id {
		err = csierr.NotFound
	}
	return r, err
}

// fill creates a directory in tmp, empty or as a copy of a volume or snapshot, and
// returns its inode number, and a copy's point in time. It resumes an interrupted attempt.
func (s *store) fill(temp, sourceID string, inUse bool, a share.Access, x *exports, did progress) (inode uint64, at time.Time, err error) {
	err = s.withChangeLock(func() error { // so that tidy does not take it for orphaned from here on
		if err := ignoreExisting(s.own.Mkdir(temp, 0o700)); err != nil {
			return err
		}
		_, err := s.touch(temp)
		return err
	})
	if err != nil {
		return 0, at, err
	}
	data := path.Join(temp, "data")
	if sourceID == "" {
		if err := ignoreExisting(s.own.Mkdir(data, 0o700)); err != nil {
			return 0, at, err
		}
		if a.Permissions == nil {
			permissions := uint32(share.DefaultPermissions)
			a.Permissions = &permissions
		}
	} else if at, err = s.copyInto(temp, sourceID, inUse, x, did); err != nil {
		return 0, at, err
	}
	if err := s.setAccess(data, a); err != nil {
		return 0, at, err
	}
	if err := errors.Join(syncDir(s.own, data), syncDir(s.own, temp)); err != nil {
		return 0, at, err
	}
	inode, err = s.isDirectory(s.own, data, path.Join(storeName, data))
	return inode, at, err
}

// resume creates the directory for a copy in temp, or keeps that of an earlier attempt
// if it is of the same source and not of a directory that had the same ID before. since is
// when that attempt began, by the server's clock, and dirs are its origins.
func (s *store) resume(temp, source string) (since time.Time, dirs origins, err error) {
	data, of := path.Join(temp, "data"), path.Join(temp, "source")
	dirs, err = s.takeOrigins(temp)
	if err != nil {
		return since, nil, err
	}
	was, err := s.own.ReadFile(of)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return since, nil, err
	}
	if err == nil && string(was) == source {
		info, err := s.own.Lstat(of)
		if err != nil {
			return since, nil, err
		}
		return changedAt(info), dirs, ignoreExisting(s.own.Mkdir(data, 0o700))
	}
	if err := s.moveToTrash(s.own, data); err != nil {
		return since, nil, err
	}
	if err := remove(s.own, of); err != nil {
		return since, nil, err
	}
	if err := writeSynced(s.own, of, []byte(source)); err != nil {
		return since, nil, errors.Join(err, remove(s.own, of))
	}
	return since, origins{}, ignoreExisting(s.own.Mkdir(data, 0o700))
}

// touch updates the time of temp, so that tidy does not take it for orphaned, and returns
// the time on the server.
func (s *store) touch(temp string) (time.Time, error) {
	now := time.Now()
	if err := s.own.Chtimes(temp, now, now); err != nil {
		return now, err
	}
	info, err := s.own.Lstat(temp)
	if err != nil {
		return now, err
	}
	return changedAt(info), nil
}

// progressOf returns the progress callback of a copy. It also keeps tidy from taking a long
// one for orphaned.
func (s *store) progressOf(did progress, temp string) progress {
	var last time.Time
	return func(files, bytes int64) {
		did(files, bytes)
		if now := time.Now(); now.Sub(last) > time.Hour {
			last = now
			_, _ = s.touch(temp) // if it fails, so will the copy
		}
	}
}

// setAccess sets owner, group and mode of a directory, as far as they are given. The owner
// comes first, because changing it clears set-group-ID.
func (s *store) setAccess(name string, a share.Access) error {
	if a.Owner != nil || a.Group != nil {
		id := func(v *uint32) int {
			if v == nil {
				return -1
			}
			return int(*v)
		}
		if err := s.own.Lchown(name, id(a.Owner), id(a.Group)); err != nil {
			return err
		}
	}
	if a.Permissions == nil {
		return nil
	}
	mode := fs.FileMode(*a.Permissions & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if *a.Permissions&bit != 0 {
			mode |= flag
		}
	}
	return s.own.Chmod(name, mode)
}

// copyInto copies a volume or a snapshot. If the source keeps changing, it returns
// errInUse, and keeps the partial copy for the next attempt; with inUse that copy is
// accepted. at is the copy's point in time.
func (s *store) copyInto(temp, sourceID string, inUse bool, x *exports, did progress) (at time.Time, err error) {
	err = s.useSource(sourceID, x, func(in origin) error {
		since, dirs, err := s.resume(temp, in.which)
		if err != nil {
			return err
		}
		out, err := s.own.Open(path.Join(temp, "data"))
		if err != nil {
			return err
		}
		defer out.Close()
		at, err = copyConsistent(since, func() (time.Time, error) { return s.touch(temp) }, func(since time.Time) (changes, error) {
			return copyTree(out, in.dir, since, dirs, did)
		})
		if inUse && errors.Is(err, storage.ErrInUse) {
			err = nil
		}
		// A source whose deletion has begun in between may be incomplete.
		still, gone := in.again()
		if gone != nil {
			return fmt.Errorf("source %q: %w", sourceID, gone)
		}
		still.dir.Close()
		if still.which != in.which {
			return fmt.Errorf("source %q: %w", sourceID, csierr.Busy)
		}
		if errors.Is(err, storage.ErrInUse) {
			err = errors.Join(err, s.keepOrigins(temp, dirs))
		}
		if err != nil {
			return fmt.Errorf("source %q: %w", sourceID, err)
		}
		return nil
	})
	return at, err
}

// keepOrigins saves the origins, so that the next attempt need not copy everything again.
func (s *store) keepOrigins(temp string, of origins) error {
	data, err := encode(of)
	if err != nil {
		return err
	}
	return writeSynced(s.own, path.Join(temp, "origins"), data)
}

// takeOrigins returns the saved origins and removes them, because they become invalid
// when the copy continues. A truncated file counts as none.
func (s *store) takeOrigins(temp string) (origins, error) {
	name := path.Join(temp, "origins")
	data, err := s.own.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return origins{}, nil
	}
	if err != nil {
		return nil, err
	}
	of := origins{}
	if json.Unmarshal(data, &of) != nil {
		of = origins{}
	}
	return of, remove(s.own, name)
}

// An origin is the source of a copy.
type origin struct {
	dir      *os.File
	capacity int64
	which    string // its ID and inode number, which changes when it is restored from a backup
	again    func() (origin, error)
}

// useSource runs fn with a volume or a snapshot. It may be on another export, but not on
// another server: the copy could then block on either.
func (s *store) useSource(id string, x *exports, fn func(origin) error) error {
	from, open, err := openSource(id)
	if err != nil {
		return err
	}
	if from.Server != s.Server {
		return fmt.Errorf("%w: the source is on server %s, and copies between servers are not supported; use a class with that server", csierr.Invalid, from.Server)
	}
	return x.Use(from, func(src *store) error {
		if err := src.openLocked(); err != nil {
			return fmt.Errorf("source %q: %w", id, err)
		}
		in, err := open(src)
		if err != nil {
			return fmt.Errorf("source %q: %w", id, err)
		}
		defer in.dir.Close()
		in.again = func() (origin, error) { return open(src) }
		return fn(in)
	})
}

// openSource returns the export of a source, and a function that opens the source.
func openSource(id string) (share.Export, func(*store) (origin, error), error) {
	which := func(inode uint64) string { return fmt.Sprintf("%s inode %d\n", id, inode) }
	if ref, err := share.ParseSnapshotID(id); err == nil {
		return ref.Export, func(s *store) (origin, error) {
			key := path.Join(dirSnapshots, ref.Key)
			r, err := s.snapshotByID(id, key)
			if err == nil {
				err = s.placeSnapshot(r, key)
			}
			if err != nil {
				return origin{}, err
			}
			dir, err := openCreated(s.own, key, r.Inode)
			return origin{dir: dir, capacity: r.SizeBytes, which: which(r.Inode)}, err
		}, nil
	}
	if ref, err := share.ParseVolumeID(id); err == nil {
		return ref.Export, func(s *store) (origin, error) {
			r, err := s.volume(ref)
			if err != nil {
				return origin{}, err
			}
			dir, err := s.openVolume(r)
			return origin{dir: dir, capacity: r.CapacityBytes, which: which(r.Inode)}, err
		}, nil
	}
	return share.Export{}, nil, fmt.Errorf("source %q %w", id, csierr.NotFound)
}
