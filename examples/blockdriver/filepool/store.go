package filepool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/csikit/csikit/csierr"
)

// store keeps the objects of one kind, in one directory of the pool and in
// memory:
//
//	<id>.json       metadata; an object exists exactly as long as this file does
//	<id>.img        the image, of those that have one
//	<id>.deleting   the metadata of an object whose deletion has begun and will be finished
//	<id>.copying    the image is an unfinished copy, see imageCopy
//	<id>.json.tmp   metadata being written
//
// What is on the disk decides; the index in memory only spares reading it. A
// change is on the disk before it is in the index, and where a failure leaves it
// open whether the change is on the disk, the object is read again before its
// next use.
//
// A caller that changes an object holds its lock (see locks).
type store[T object] struct {
	pool *pool
	dir  *os.Root
	name string // of the directory
	kind string // of the IDs
	ids  *regexp.Regexp
	log  *slog.Logger
	read func(id string) (T, error) // from the disk; csierr.NotFound
	bare func(id string) T          // stands in for one that cannot be read
	// counted is called with mu held for what comes into the index (+1) and what
	// leaves it (-1).
	counted func(v T, by int64)

	mu     sync.Mutex
	index  map[string]*record[T]
	sorted []*record[T]      // what is in index, by ID
	begun  map[string]string // IDs of which a part is there and no metadata, by key
}

// object is what a store keeps.
type object interface {
	objectID() string
	// metadata is the content of its file.
	metadata() any
}

type record[T object] struct {
	id    string
	value T
	// inDoubt: the disk may have other content, or cannot be parsed.
	inDoubt bool
}

func newStore[T object](p *pool, dir *os.Root, name, kind string, ids *regexp.Regexp, log *slog.Logger, read func(string) (T, error), bare func(string) T) *store[T] {
	return &store[T]{pool: p, dir: dir, name: name, kind: kind, ids: ids, log: log, read: read, bare: bare,
		counted: func(T, int64) {}, index: map[string]*record[T]{}, begun: map[string]string{}}
}

// find returns the ID of the object of that name, or of what was begun of one.
func (s *store[T]) find(name string) (id string, ok bool) {
	key := keyOfName(s.kind, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, _ := s.place(key); i < len(s.sorted) && strings.HasPrefix(s.sorted[i].id, key) {
		return s.sorted[i].id, true
	}
	id, ok = s.begun[key]
	return id, ok
}

// has is find without the ID.
func (s *store[T]) has(name string) bool {
	_, ok := s.find(name)
	return ok
}

// idFor returns what find finds, or an ID for a new object.
func (s *store[T]) idFor(name string) string {
	if id, ok := s.find(name); ok {
		return id
	}
	return newID(s.kind, name)
}

// currentOf is current by the name. The name's lock is held.
func (s *store[T]) currentOf(name string) (v T, err error) {
	id, ok := s.find(name)
	if !ok {
		return v, csierr.NotFound
	}
	return s.current(id)
}

// known reports whether the object is there, be it in doubt.
func (s *store[T]) known(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.index[id]
	return ok
}

// get returns the object as it is, without a lock.
func (s *store[T]) get(id string) (T, error) {
	r, ok := s.lookUp(id)
	switch {
	case !ok:
		return r.value, csierr.NotFound
	case r.inDoubt:
		return s.read(id)
	}
	return r.value, nil
}

func (s *store[T]) lookUp(id string) (r record[T], ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.index[id]; ok {
		return *p, true
	}
	return r, false
}

// place returns where the object is in sorted, or would be. mu is held.
func (s *store[T]) place(id string) (int, bool) {
	return slices.BinarySearchFunc(s.sorted, id, func(r *record[T], id string) int { return cmp.Compare(r.id, id) })
}

// page returns at most limit objects (0: all) of those behind the ID after that
// are wanted, in the order of their IDs. A page that is not the last one ends with
// its token's object: such a token stays good when objects come and go, this one
// included.
func (s *store[T]) page(after string, limit int, wanted func(T) bool) (page []T, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start, found := s.place(after)
	if found {
		start++
	}
	rest := s.sorted[start:]
	if wanted == nil {
		page = make([]T, 0, min(len(rest), cmp.Or(limit, len(rest))))
	}
	for _, r := range rest {
		if wanted != nil && !wanted(r.value) {
			continue
		}
		if limit > 0 && len(page) == limit {
			return page, true
		}
		page = append(page, r.value)
	}
	return page, false
}

// current returns the object, from the disk if the index cannot be trusted.
func (s *store[T]) current(id string) (T, error) {
	r, ok := s.lookUp(id)
	var none T
	if !ok {
		return none, csierr.NotFound
	}
	if !r.inDoubt {
		return r.value, nil
	}
	v, err := s.read(id)
	if errors.Is(err, csierr.NotFound) {
		if err := s.pool.sync(s.dir); err != nil {
			return none, err
		}
		if err := s.clear(id); err != nil {
			return none, err
		}
		s.forget(id)
		return none, csierr.NotFound
	}
	if err != nil {
		return none, err
	}
	// Written once more, because after a failed fsync Linux takes the lost
	// pages for clean: another fsync would succeed and prove nothing.
	if _, err := s.save(v); err != nil {
		return none, err
	}
	return v, nil
}

// save writes the object's metadata, then the index. See replaceFile for inDoubt.
func (s *store[T]) save(v T) (inDoubt bool, err error) {
	data, err := encode(v.metadata())
	if err != nil {
		return false, err
	}
	replace := s.pool.replaceFile
	if s.known(v.objectID()) {
		replace = s.pool.replaceWhenFull
	}
	inDoubt, err = replace(s.dir, v.objectID()+extMetadata, data)
	if err == nil || inDoubt {
		s.put(record[T]{id: v.objectID(), value: v, inDoubt: inDoubt})
	}
	return inDoubt, err
}

func (s *store[T]) put(r record[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counted(r.value, +1)
	if was, found := s.index[r.id]; found {
		s.counted(was.value, -1)
		*was = r
		return
	}
	i, _ := s.place(r.id)
	s.sorted = slices.Insert(s.sorted, i, &r)
	s.index[r.id] = &r
}

func (s *store[T]) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := s.place(id)
	if !found {
		return
	}
	s.sorted = slices.Delete(s.sorted, i, i+1)
	s.counted(s.index[id].value, -1)
	delete(s.index, id)
}

// beginDelete is the point of no return. A rename needs no room, so that a full
// pool can be emptied.
func (s *store[T]) beginDelete(v T) error {
	id := v.objectID()
	err := s.pool.do("rename", func() error { return s.dir.Rename(id+extMetadata, id+extDeleting) })
	if err == nil {
		err = s.pool.sync(s.dir)
	}
	if err != nil {
		s.put(record[T]{id: id, value: v, inDoubt: true})
		return err
	}
	s.forget(id)
	return nil
}

// finishDelete removes what is left of an object whose deletion has begun, if
// anything. The mark is removed last, and only when the removal of the image is durable: an
// image without its mark would be kept as data of an unknown volume.
func (s *store[T]) finishDelete(id string) error {
	if _, err := s.dir.Lstat(id + extDeleting); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := s.pool.remove(s.dir, id+extImage); err != nil {
		return err
	}
	if err := s.pool.sync(s.dir); err != nil {
		return err
	}
	return s.pool.remove(s.dir, id+extDeleting)
}

// clear removes what a create or a delete that failed has left of an object
// without metadata.
func (s *store[T]) clear(id string) error {
	if err := s.finishDelete(id); err != nil {
		return err
	}
	if err := s.pool.remove(s.dir, id+extMetadata+extTemp); err != nil {
		return err
	}
	if err := s.dropCopy(id); err != nil {
		return err
	}
	return s.removeUncommitted(id + extImage)
}

// makeImage creates the image of a new object, durable and full of zeros, or leaves
// none behind.
func (s *store[T]) makeImage(id string, size int64) error {
	name := id + extImage
	f, err := s.openImage(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := s.checkUnwritten(f, name); err != nil {
		return err
	}
	err = s.pool.do("truncate image", func() error { return f.Truncate(size) })
	if err == nil {
		err = s.pool.do("sync image", f.Sync)
	}
	if err == nil {
		err = s.pool.sync(s.dir)
	}
	if err != nil {
		return undone(withSpaceKind(err), s.pool.remove(s.dir, name))
	}
	return nil
}

func (s *store[T]) openImage(name string) (f *os.File, err error) {
	err = s.pool.do("create image", func() error {
		f, err = s.dir.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return err
	})
	return f, err
}

func (s *store[T]) growImage(id string, size int64) error {
	f, err := s.dir.OpenFile(id+extImage, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := s.pool.do("truncate image", func() error { return f.Truncate(size) }); err != nil {
		return err
	}
	return s.pool.do("sync image", f.Sync)
}

// checkUnwritten: an interrupted create leaves an image that was never written to.
// One that holds data belongs to an object whose metadata was lost, and is not ours
// to overwrite or to remove.
func (s *store[T]) checkUnwritten(f *os.File, name string) error {
	data, err := holdsData(f)
	if err != nil {
		return err
	}
	if data {
		return fmt.Errorf("image %w: %s holds data but its metadata is missing, and is kept; restore the metadata or move the image away", errDamaged, s.pool.file(s.name, name))
	}
	return nil
}

// removeUncommitted removes the image of an interrupted create: its object
// was never acknowledged. The image may be gone already, with its mark.
func (s *store[T]) removeUncommitted(name string) error {
	f, err := s.dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := s.checkUnwritten(f, name); err != nil {
		return err
	}
	return s.pool.remove(s.dir, name)
}

// repair brings the directory and the index in order at the start. What fails
// for one object is logged, and the others are served. loaded is called for each object
// that was read.
func (s *store[T]) repair(loaded func(T) error) error {
	names, err := readNames(s.dir)
	if err != nil {
		return err
	}
	// Metadata before marks and images, which are checked against it.
	rank := map[string]int{extTemp: 1, extMetadata: 2, extDeleting: 3, extCopying: 3, extImage: 4}
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(cmp.Compare(rank[extension(x)], rank[extension(y)]), cmp.Compare(x, y))
	})
	for _, name := range names {
		id := strings.TrimSuffix(name, extension(name))
		if err := s.repairFile(name, id, loaded); err != nil {
			s.log.Error("repair "+s.name, "id", id, "error", err)
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

func (s *store[T]) repairFile(name, id string, loaded func(T) error) error {
	switch ext := extension(name); {
	case ext == extTemp && s.ids.MatchString(strings.TrimSuffix(id, extension(id))):
		return s.pool.remove(s.dir, name)
	case ext == extFrozen: // the node's to remove, when it has thawed
	case ext == extMaking && s.ids.MatchString(id):
		s.setBegun(id, true)
	case !s.ids.MatchString(id):
		s.log.Warn("the pool has a foreign file", "file", s.pool.file(s.name, name))
		return nil
	case ext == extMetadata:
		return s.load(id, loaded)
	case ext == extDeleting && s.known(id):
		// An earlier version, which reused the ID of a name, created it again after its
		// predecessor's image was removed, and a power failure restored the mark.
		return s.pool.remove(s.dir, name)
	case ext == extDeleting:
		return s.finishDelete(id)
	case ext == extCopying && s.known(id): // and complete
		return s.pool.remove(s.dir, name)
	case ext == extCopying && s.pool.reflinks(): // an atomic clone is repeated
		return s.dropCopy(id)
	case ext == extCopying:
		s.setBegun(id, true)
	case ext == extImage && !s.claimed(id):
		if err := s.removeUncommitted(name); err != nil {
			s.setBegun(id, true) // the name is not free
			return err
		}
	}
	return nil
}

// load reads one object into the index. One that cannot be read is listed in
// doubt: it answers with the reason until the file is repaired, and its image is
// safe.
func (s *store[T]) load(id string, loaded func(T) error) error {
	v, err := s.read(id)
	if err != nil {
		s.put(record[T]{id: id, value: s.bare(id), inDoubt: true})
		return err
	}
	s.put(record[T]{id: id, value: v})
	return loaded(v)
}
