package exportdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// backend is the storage.Backend that stores a volume as a directory of an export, and its
// record in the same export: it has no other state, and any process that reaches the
// server can take over. Of two processes, one is refused while the other one is active.
type backend struct {
	servers *breaker.Group
	server  func(share.Export) breaker.Server
	exports *exports
	known   []share.Export // of -exports; nil: any, and no lists
	log     *slog.Logger

	mu       sync.Mutex
	cleaning map[share.Export]chan struct{} // not empty: run again
	closed   chan struct{}
}

func newBackend(s *breaker.Group, x *exports, known []share.Export, log *slog.Logger) *backend {
	return &backend{servers: s, server: share.Export.Breaker, exports: x, known: known, log: log, cleaning: map[share.Export]chan struct{}{}, closed: make(chan struct{})}
}

// Recover completes, in the background, operations of an earlier process on the known
// exports.
func (b *backend) Recover() {
	for _, e := range b.known {
		b.clean(e)
	}
}

// Close stops the background work. It must be called once, after the last call.
func (b *backend) Close() { close(b.closed) }

// volume is a volume as its record has it.
type volume struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`           // the CO's
	SubDir        string            `json:"sub_dir"`        // relative to the share
	CapacityBytes int64             `json:"capacity_bytes"` // as requested; NFS does not enforce it
	Parameters    map[string]string `json:"parameters,omitempty"`
	SourceID      string            `json:"source_id,omitempty"` // ID of the volume or snapshot it was copied from
}

// public returns the volume as the driver knows it.
func (v volume) public() storage.Volume {
	ref, _ := share.ParseVolumeID(v.ID)
	ref.SubDir = v.SubDir
	out := storage.Volume{ID: v.ID, Name: v.Name, CapacityBytes: v.CapacityBytes, Parameters: v.Parameters, Context: ref.Context()}
	if _, err := share.ParseSnapshotID(v.SourceID); err == nil {
		out.Source = &storage.Source{SnapshotID: v.SourceID}
	} else if v.SourceID != "" {
		out.Source = &storage.Source{VolumeID: v.SourceID}
	}
	return out
}

// request is a storage.VolumeSpec and what follows from it.
type request struct {
	storage.VolumeSpec
	share.Plan
	sourceID string
}

// differences lists every mismatch between v and a request, so that one error shows them
// all.
func (v volume) differences(r request) []string {
	diff := v.public().Differences(r.VolumeSpec)
	wants := r.Ref
	wants.Nonce = share.NonceOf(v.ID)
	if id := wants.Encode(); id != v.ID {
		diff = append(diff, fmt.Sprintf("ID: the volume has %q, the request %q", v.ID, id))
	}
	return diff
}

// volumeRecord is the content of volumes/K.json.
type volumeRecord struct {
	Version int    `json:"version"`
	Inode   uint64 `json:"inode"` // of the directory that the driver created
	volume
}

// ref returns the parsed ID, which is valid in a record.
func (r volumeRecord) ref() share.VolumeRef {
	ref, _ := share.ParseVolumeID(r.ID)
	ref.SubDir, ref.Digest = r.SubDir, ""
	return ref
}

func (r volumeRecord) temp() string { return tempOf("volume", r.Name, r.SubDir, r.SourceID) }

// tempOf returns the directory in which a volume or snapshot is created. It follows from
// the request, so that a retry finds what the first attempt did.
func tempOf(kind, name, place, source string) string {
	return path.Join(dirTmp, share.Digest(strings.Join([]string{kind, name, place, source}, "\x00")))
}

func (s *store) readVolume(key string) (volumeRecord, error) {
	return s.readVolumeFile(path.Join(dirVolumes, key+extRecord))
}

func (s *store) readVolumeFile(name string) (r volumeRecord, err error) {
	if err := s.readRecord(name, &r); err != nil {
		return r, err
	}
	ref, err := share.ParseVolumeID(r.ID)
	if err != nil || r.Version != formatVersion || r.ref().Check() != nil || ref.Key() != share.Digest(r.SubDir) || path.Join(dirVolumes, ref.Key()) != strings.TrimSuffix(strings.TrimSuffix(name, extRecord), extDeleting) {
		return r, fmt.Errorf("%w: %s describes volume %q with version %d; restore it", errDamaged, s.where(storeName, name), r.ID, r.Version)
	}
	return r, nil
}

// progress reports what a call has done since the last report. It means that the server
// responds.
type progress = func(files, bytes int64)

// withStore runs fn with the store of an export. The key must identify the whole operation.
func withStore[T any](ctx context.Context, b *backend, e share.Export, key string, fn func(progress, *store) (T, error)) (T, error) {
	v, _, err := joinStore(ctx, b, e, key, fn)
	return v, err
}

// queryStore is withStore for an fn that only reads. If the call joined an earlier one, it
// runs once more: the earlier result may predate a change that has since been reported as
// done.
func queryStore[T any](ctx context.Context, b *backend, e share.Export, key string, fn func(*store) (T, error)) (T, error) {
	query := func(_ progress, s *store) (T, error) { return fn(s) }
	v, joined, err := joinStore(ctx, b, e, key, query)
	if joined && ctx.Err() == nil {
		v, _, err = joinStore(ctx, b, e, key, query)
	}
	return v, err
}

func joinStore[T any](ctx context.Context, b *backend, e share.Export, key string, fn func(progress, *store) (T, error)) (T, bool, error) {
	v, joined, err := b.servers.Do(ctx, b.server(e), key, func(j *breaker.Job) (any, error) {
		var v T
		err := b.exports.Use(e, func(s *store) (err error) {
			v, err = fn(j.Progress, s)
			return err
		})
		if path := (*fs.PathError)(nil); errors.As(err, &path) { // its path is relative to the export
			err = fmt.Errorf("%s: %w", e, err)
		}
		return v, err
	})
	t, _ := v.(T) // a nil any has no type
	return t, joined, err
}

func (b *backend) CreateVolume(ctx context.Context, spec storage.VolumeSpec) (storage.Volume, error) {
	const op = "create volume"
	plan, err := share.PlanVolume(spec)
	if err == nil {
		err = b.allowed(plan.Ref.Export)
	}
	if err != nil {
		return storage.Volume{}, fail(op, spec.Name, "%w", err)
	}
	r := request{spec, plan, spec.Source.String()}
	r.Secrets, r.Metadata = nil, nil // in no key
	whole, err := json.Marshal(r)
	if err != nil {
		return storage.Volume{}, fail(op, spec.Name, "%w", err)
	}
	key := fmt.Sprintf("%s %s (%s)", op, r.Ref.Source(r.Ref.SubDir), share.Digest(string(whole))[:8])
	v, err := withStore(ctx, b, r.Ref.Export, key, func(did progress, s *store) (volume, error) {
		return b.create(did, s, r)
	})
	if err != nil {
		return storage.Volume{}, fail(op, spec.Name, "%w", err)
	}
	return v.public(), nil
}

// CloneVolume implements storage.Cloner.
func (b *backend) CloneVolume(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	return b.CreateVolume(ctx, s)
}

// RestoreSnapshot is a part of storage.Snapshotter.
func (b *backend) RestoreSnapshot(ctx context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	return b.CreateVolume(ctx, s)
}

func (b *backend) allowed(e share.Export) error { return share.Allowed(b.known, e) }

func (b *backend) create(did progress, s *store, spec request) (volume, error) {
	if err := s.create(); err != nil {
		return volume{}, err
	}
	r, err := s.readVolume(share.Digest(spec.Ref.SubDir))
	if errors.Is(err, csierr.NotFound) {
		r, err = b.make(did, s, spec)
	}
	if err != nil {
		return volume{}, err
	}
	if diff := r.differences(spec); len(diff) > 0 {
		return volume{}, fmt.Errorf("%s %w: %s", s.where(spec.Ref.SubDir), csierr.Conflict, strings.Join(diff, "; "))
	}
	return r.volume, incomplete(s.placeVolume(r))
}

// checkPlace checks whether a volume can be created at its subDir: not inside another
// volume, not in place of foreign files, and not if a volume with its name exists.
// errCreatedConcurrently: its record exists by now. It is called with change held.
func (s *store) checkPlace(spec request) error {
	subDir := spec.Ref.SubDir
	if _, err := s.own.Lstat(path.Join(dirVolumes, share.Digest(subDir)+extRecord)); err == nil {
		return errCreatedConcurrently
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.finishDelete(share.Digest(subDir)); err != nil {
		return fmt.Errorf("finish the deletion of its predecessor: %w", err)
	}
	if err := s.notInside(subDir); err != nil {
		return err
	}
	if err := s.nothingAt(subDir); err != nil {
		return err
	}
	hint, err := s.own.ReadFile(path.Join(dirNames, share.Digest(spec.Name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if r, err := s.readVolume(share.Digest(string(hint))); err == nil && r.Name == spec.Name {
		return fmt.Errorf("%w: %s", csierr.Conflict, strings.Join(r.differences(spec), "; "))
	} else if err != nil && !errors.Is(err, csierr.NotFound) {
		return err
	}
	return nil
}

var errCreatedConcurrently = errors.New("created concurrently by another call")

func (s *store) notInside(subDir string) error {
	for parent := path.Dir(subDir); parent != "."; parent = path.Dir(parent) {
		if r, err := s.readVolume(share.Digest(parent)); err == nil {
			return fmt.Errorf("%s %w: it is inside volume %q; choose another subDir", s.where(subDir), csierr.Conflict, r.ID)
		} else if !errors.Is(err, csierr.NotFound) {
			return err
		}
	}
	return nil
}

func (s *store) nothingAt(subDir string) error {
	parent, base, err := s.parentOf(subDir)
	if err == nil {
		defer parent.Close()
		if _, err = parent.Lstat(base); err == nil {
			return fmt.Errorf("%s %w: the existing file or directory is not a volume of this driver; choose another subDir, or create a PersistentVolume for it by hand", s.where(subDir), csierr.Conflict)
		}
	}
	return ignoreMissing(err)
}

// make creates the directory in tmp, and then the record: from then on the volume
// exists.
func (b *backend) make(did progress, s *store, spec request) (r volumeRecord, err error) {
	temp, key := tempOf("volume", spec.Name, spec.Ref.SubDir, spec.sourceID), share.Digest(spec.Ref.SubDir)
	done, err := s.claimTemp(temp)
	if err != nil {
		return r, err
	}
	defer done()
	defer func() {
		if errors.Is(err, errCreatedConcurrently) {
			r, err = b.useExisting(s, temp, key)
		} else if final(err) {
			err = b.discard(s, temp, err)
		}
	}()
	if err := s.withChangeLock(func() error { return s.checkPlace(spec) }); err != nil { // before anything is copied
		return volumeRecord{}, err
	}
	var content int64
	if spec.sourceID != "" {
		err := s.useSource(spec.sourceID, b.exports, func(in origin) error {
			content = in.capacity
			return nil
		})
		if err != nil {
			return volumeRecord{}, err
		}
	}
	size, err := s.chooseSize(spec.Capacity, content)
	if err != nil {
		return volumeRecord{}, err
	}
	inode, _, err := s.fill(temp, spec.sourceID, spec.CopyInUse, spec.Access, b.exports, s.progressOf(did, temp))
	if err != nil {
		return volumeRecord{}, err
	}
	ref := spec.Ref
	ref.Nonce = share.NewNonce()
	r = volumeRecord{Version: formatVersion, Inode: inode, volume: volume{
		ID: ref.Encode(), Name: spec.Name, SubDir: spec.Ref.SubDir, CapacityBytes: size, Parameters: spec.Parameters, SourceID: spec.sourceID,
	}}
	data, err := encode(r)
	if err != nil {
		return r, err
	}
	err = s.withChangeLock(func() error {
		if err := s.checkPlace(spec); err != nil {
			return err
		}
		// First, so that nothing else can be created in their place.
		made, err := s.makeParents(spec.Ref.SubDir)
		hint := path.Join(dirNames, share.Digest(spec.Name))
		if err == nil {
			err = s.replace(hint, []byte(spec.Ref.SubDir))
		}
		if err == nil {
			err = s.add(path.Join(dirVolumes, key+extRecord), data)
		}
		if err != nil && final(err) {
			s.removeParents(spec.Ref.SubDir, made)
			err = errors.Join(err, remove(s.own, hint))
		}
		return err
	})
	return r, err
}

// claimTemp claims a directory in tmp until done is called: of two calls that fill it, one
// would write to what the other one has already moved to its final path. errBusy: an
// earlier call, which may have timed out, is still creating a different object of this name.
func (s *shareDir) claimTemp(temp string) (done func(), err error) {
	if _, taken := s.claimed.LoadOrStore(temp, true); taken {
		return nil, fmt.Errorf("%w: an earlier request with this name and other properties is in flight", csierr.Busy)
	}
	return func() { s.claimed.Delete(temp) }, nil
}

// useExisting returns the volume that another call created concurrently, and moves temp to
// the trash, unless it is the directory of that volume and still to be moved.
func (b *backend) useExisting(s *store, temp, key string) (r volumeRecord, err error) {
	defer b.clean(s.Export)
	err = s.withChangeLock(func() error {
		if r, err = s.readVolume(key); err != nil {
			return err
		}
		data := path.Join(temp, "data")
		inode, err := s.isDirectory(s.own, data, path.Join(storeName, data))
		if err == nil && inode == r.Inode {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return s.moveToTrash(s.own, temp)
	})
	return r, err
}

// placeVolume moves a volume to its final path, or checks that it is there.
func (s *store) placeVolume(r volumeRecord) error {
	subDir := r.ref().SubDir
	return s.withChangeLock(func() error {
		if err := s.notInside(subDir); err != nil {
			return err
		}
		made, err := s.makeParents(subDir)
		if err != nil {
			return err
		}
		parent, base, err := s.parentOf(subDir)
		if err != nil {
			return err
		}
		defer parent.Close()
		if err := syncDir(s.own, dirVolumes); err != nil {
			return err
		}
		err = s.place(r.temp(), parent, base, subDir, r.Inode)
		if !errors.Is(err, errDamaged) {
			return err
		}
		if now, gone := s.readVolume(share.Digest(subDir)); isDeleted(now.ID, r.ID, gone) {
			s.removeParents(subDir, made)
			return errDeleted
		}
		return err
	})
}

// errDeleted: the directory is missing because the record was deleted concurrently.
var errDeleted = fmt.Errorf("%w: it was deleted concurrently", csierr.Busy)

// isDeleted reports, from the result of reading a record again, whether it was deleted.
func isDeleted(now, was string, err error) bool {
	return errors.Is(err, csierr.NotFound) || err == nil && now != was
}

// place moves the directory in temp to its final path, or checks that it is there. It is
// called with change held.
func (s *store) place(temp string, to *os.Root, name, shown string, inode uint64) error {
	has, err := s.isDirectory(to, name, shown)
	if errors.Is(err, fs.ErrNotExist) {
		data := path.Join(temp, "data")
		made, err := s.isDirectory(s.own, data, path.Join(storeName, data))
		if errors.Is(err, fs.ErrNotExist) || err == nil && made != inode {
			return fmt.Errorf("%w: %s is missing; delete the volume, or restore the directory and write its inode number into the record", errDamaged, s.where(shown))
		}
		if err != nil {
			return err
		}
		if err := move(s.own, data, to, name); err != nil {
			return err
		}
	} else if err != nil {
		return err
	} else if has != inode {
		return fmt.Errorf("%w: %s is not the directory that the driver created (inode %d, not %d); %s", errRefused, s.where(shown), has, inode, replacedHint)
	}
	if err := syncDir(to, "."); err != nil { // of an earlier attempt, too
		return err
	}
	return errors.Join(remove(s.own, path.Join(temp, "source")), remove(s.own, temp))
}

// discard moves temp to the trash after a final error. If that fails, the error is not
// final. Only a copy of a source in use is kept, for an hour: COs retry, and each attempt
// would copy everything again.
func (b *backend) discard(s *store, temp string, err error) error {
	if errors.Is(err, storage.ErrInUse) {
		b.cleanLater(s.Export, keptInUse+time.Minute) // there may be no other call for this export
		long := time.Now().Add(keptInUse - abandonedAfter)
		return errors.Join(err, s.own.Chtimes(temp, long, long))
	}
	defer b.clean(s.Export)
	if left := s.moveToTrash(s.own, temp); left != nil {
		return incomplete(errors.Join(err, left))
	}
	return err
}

// keptInUse is how long a partial copy of a source in use is kept for the next attempt.
const keptInUse = time.Hour

const replacedHint = "if it was restored from a backup, write its inode number into the record; otherwise remove the record, and the driver no longer manages the volume"

// chooseSize returns the capacity to record for a volume. NFS does not enforce it; a size
// is only refused if the whole export is smaller.
func (s *store) chooseSize(r storage.CapacityRange, has int64) (int64, error) {
	size := max(r.Required, has)
	if !r.Contains(size) {
		return 0, fmt.Errorf("%w: the size is at least %d bytes, and the limit is %d", csierr.OutOfRange, size, r.Limit)
	}
	total, _, err := s.statfs()
	if err != nil {
		return 0, err
	}
	if size > has && size > total {
		return 0, fmt.Errorf("%w: %d bytes are required, and the size of %s is %d", csierr.OutOfRange, size, s.where(), total)
	}
	return size, nil
}

func (s *store) statfs() (total, free int64, err error) {
	f, err := s.root.Open(".")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	return statfs(f)
}

func (b *backend) DeleteVolume(ctx context.Context, id string) error {
	const op = "delete volume"
	ref, err := share.ParseVolumeID(id)
	if err != nil {
		b.log.Warn("ignore DeleteVolume: the ID is not of this driver", "volume_id", id, "error", err)
		return nil
	}
	if b.allowed(ref.Export) != nil {
		return fail(op, id, "%w: the export %s is not one of -exports; nothing is changed", errRefused, ref.Export)
	}
	_, err = withStore(ctx, b, ref.Export, op+" "+id, func(_ progress, s *store) (any, error) {
		if err := s.openLocked(); err != nil {
			return nil, err
		}
		return nil, s.withChangeLock(func() error { return s.deleteByID(id, ref.Key()) })
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

// deleteByID deletes the volume with the ID, or resumes its deletion. It is called with
// change held.
func (s *store) deleteByID(id, key string) error {
	r, err := s.readVolume(key)
	begun := errors.Is(err, csierr.NotFound)
	if begun {
		r, err = s.readVolumeFile(path.Join(dirVolumes, key+extDeleting))
	}
	if err != nil {
		return err
	}
	if meant, err := s.matchesRecord(id, r.ID); err != nil || !meant {
		return err
	}
	if begun {
		return s.finishDelete(key)
	}
	return s.delete(r)
}

// matchesRecord reports whether an ID to delete is that of the record, and not of an
// earlier object in its place. errRefused: the nonces are equal, but one ID was edited.
func (s *store) matchesRecord(id, has string) (bool, error) {
	if id == has {
		return true, nil
	}
	if share.NonceOf(id) == share.NonceOf(has) {
		return false, fmt.Errorf("%w: the record has the ID %q; nothing is changed", errRefused, has)
	}
	s.log.Warn("ignore deletion: the ID was deleted earlier, and a newer one is in its place", "id", id, "newer_id", has)
	return false, nil
}

// delete renames the record, which commits the deletion: from then on it will be
// completed. It is called with change held.
func (s *store) delete(r volumeRecord) error {
	ref := r.ref()
	key := path.Join(dirVolumes, share.Digest(ref.SubDir))
	if ref.OnDelete != share.Retain {
		err := s.ifExists(ref.SubDir, func(_ *os.Root, _ string, has uint64) error {
			if has != r.Inode {
				return fmt.Errorf("%w: %s is not the directory that the driver created (inode %d, not %d), and is not deleted; %s", errRefused, s.where(ref.SubDir), has, r.Inode, replacedHint)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := s.own.Rename(key+extRecord, key+extDeleting); err != nil {
		return err
	}
	return s.finishDelete(share.Digest(ref.SubDir))
}

// ifExists calls fn with the directory at a subDir, if it exists.
func (s *store) ifExists(subDir string, fn func(parent *os.Root, name string, inode uint64) error) error {
	parent, name, err := s.parentOf(subDir)
	if err != nil {
		return ignoreMissing(err)
	}
	defer parent.Close()
	inode, err := s.isDirectory(parent, name, subDir)
	if errors.Is(err, fs.ErrNotExist) {
		return syncDir(parent, ".") // an earlier attempt may have moved it
	}
	if err != nil {
		return err
	}
	return fn(parent, name, inode)
}

// finishDelete deletes, archives or retains the directory of a volume whose deletion
// has begun, if there is one. The record is removed last; if a newer volume has a record,
// the rest is done. It is called with change held.
func (s *store) finishDelete(key string) error {
	name := path.Join(dirVolumes, key+extDeleting)
	r, err := s.readVolumeFile(name)
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.exists(path.Join(dirVolumes, key+extRecord)) {
		return remove(s.own, name)
	}
	if err := syncDir(s.own, dirVolumes); err != nil { // before anything is moved
		return err
	}
	ref := r.ref()
	// A directory in tmp was never visible to a node.
	if err := s.moveToTrash(s.own, r.temp()); err != nil {
		return err
	}
	if ref.OnDelete != share.Retain {
		err := s.ifExists(ref.SubDir, func(parent *os.Root, base string, has uint64) error {
			switch {
			case has != r.Inode: // done already, and another directory is there
				return nil
			case ref.OnDelete == share.Archive:
				return s.archive(parent, base, ref.SubDir)
			default:
				return s.moveToTrash(parent, base)
			}
		})
		if err != nil {
			return err
		}
		s.removeParents(ref.SubDir, math.MaxInt)
	}
	if hint, err := s.own.ReadFile(path.Join(dirNames, share.Digest(r.Name))); err == nil && string(hint) == ref.SubDir {
		if err := remove(s.own, path.Join(dirNames, share.Digest(r.Name))); err != nil {
			return err
		}
	}
	return remove(s.own, name)
}

// archive renames the directory to archived-NAME, or archived-NAME.2 and so on, because an
// existing archive is not overwritten.
func (s *store) archive(parent *os.Root, base, subDir string) error {
	for n := 1; n < math.MaxInt16; n++ {
		to := "archived-" + share.Shorten(base, 200)
		if n > 1 {
			to = fmt.Sprintf("%s.%d", to, n)
		}
		if _, err := parent.Lstat(to); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := parent.Rename(base, to); err != nil {
			return ignoreMissing(err)
		}
		s.log.Info("archived volume", "path", s.where(path.Dir(subDir), to))
		return syncDir(parent, ".")
	}
	return fmt.Errorf("%w: %s has too many archives", errRefused, s.where(subDir))
}

// removeParents removes the last n parent directories of a subDir as long as they are
// empty, with rmdir, which cannot remove a directory with content.
func (s *store) removeParents(subDir string, n int) {
	for dir := path.Dir(subDir); dir != "." && n > 0; dir = path.Dir(dir) {
		n--
		parent, name, err := s.parentOf(dir)
		if err != nil {
			return
		}
		info, err := parent.Lstat(name)
		if err == nil && info.IsDir() {
			err = parent.Remove(name)
		}
		parent.Close()
		if err != nil || !info.IsDir() {
			return
		}
	}
}

func (b *backend) ExpandVolume(ctx context.Context, id string, r storage.CapacityRange) (storage.Volume, error) {
	const op = "expand volume"
	ref, err := b.parse(id)
	if err != nil {
		return storage.Volume{}, fail(op, id, "%w", err)
	}
	v, err := withStore(ctx, b, ref.Export, fmt.Sprintf("%s %s to %d..%d", op, id, r.Required, r.Limit), func(_ progress, s *store) (volume, error) {
		v, err := s.volume(ref)
		if err != nil {
			return volume{}, err
		}
		if err := s.acquireLock(); err != nil {
			return v.volume, err
		}
		size, err := s.chooseSize(r, v.CapacityBytes)
		if err != nil {
			return v.volume, err
		}
		if size == v.CapacityBytes { // possibly written by an earlier attempt
			return v.volume, syncDir(s.own, dirVolumes)
		}
		v.CapacityBytes = size
		data, err := encode(v)
		if err != nil {
			return v.volume, err
		}
		return v.volume, s.replace(path.Join(dirVolumes, share.Digest(v.ref().SubDir)+extRecord), data)
	})
	if err != nil {
		return storage.Volume{}, fail(op, id, "%w", err)
	}
	return v.public(), nil
}

func (b *backend) GetVolume(ctx context.Context, id string) (storage.Volume, error) {
	const op = "get volume"
	ref, err := b.parse(id)
	if err != nil {
		return storage.Volume{}, fail(op, id, "%w", err)
	}
	r, err := queryStore(ctx, b, ref.Export, op+" "+id, func(s *store) (volumeRecord, error) { return s.volume(ref) })
	if err != nil {
		return storage.Volume{}, fail(op, id, "%w", err)
	}
	return r.public(), nil
}

// parse returns errNotFound for an ID that no volume of this driver can have.
func (b *backend) parse(id string) (share.VolumeRef, error) {
	ref, err := share.ParseVolumeID(id)
	if err != nil || b.allowed(ref.Export) != nil {
		return ref, csierr.NotFound
	}
	return ref, nil
}

// volume returns errNotFound if there is no such volume, or if its ID differs.
func (s *store) volume(ref share.VolumeRef) (volumeRecord, error) {
	if err := s.open(); err != nil {
		return volumeRecord{}, err
	}
	r, err := s.readVolume(ref.Key())
	if err == nil && r.ID != ref.Encode() {
		err = csierr.NotFound
	}
	return r, err
}

// openVolume opens the directory of a volume for reading.
func (s *store) openVolume(r volumeRecord) (*os.File, error) {
	if err := s.placeVolume(r); err != nil {
		return nil, err
	}
	subDir := r.ref().SubDir
	parent, name, err := s.parentOf(subDir)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return openCreated(parent, name, r.Inode)
}

// openCreated opens a directory that the driver created, for reading.
func openCreated(dir *os.Root, name string, inode uint64) (*os.File, error) {
	sub, err := openDirectory(dir, name)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	f, err := sub.Open(".")
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && inodeOf(info) != inode {
		err = csierr.Busy // replaced concurrently
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (b *backend) Capacity(ctx context.Context, parameters map[string]string, mountFlags []string) (free, largest int64, err error) {
	const op = "capacity of"
	e, err := share.PlanCapacity(parameters, mountFlags)
	if err != nil {
		return 0, 0, fail(op, "", "%w", err)
	}
	all := b.known
	if e != (share.Export{}) {
		all = []share.Export{e}
	}
	for _, e := range all {
		if err := b.allowed(e); err != nil {
			return 0, 0, fail(op, e.String(), "%w", err)
		}
		size, err := withStore(ctx, b, e, "capacity of "+e.String(), func(_ progress, s *store) ([2]int64, error) {
			total, free, err := s.statfs()
			return [2]int64{free, total}, err
		})
		if err != nil {
			return 0, 0, fail(op, e.String(), "%w", err)
		}
		if size[0] >= free {
			free, largest = size[0], size[1]
		}
	}
	return free, largest, nil
}
