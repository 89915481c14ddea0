package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// store is an export with the driver's own directory in it:
//
//	<subDir>/                     a volume, wherever its subDir says
//	.csikit-nfs/marker            says that the directory is the driver's
//	.csikit-nfs/lock              locked by the controller that is at work
//	.csikit-nfs/volumes/K.json    a volume exists as long as this file does; K follows from subDir
//	.csikit-nfs/volumes/K.deleting  one whose deletion has begun and will be finished
//	.csikit-nfs/names/N           the subDir of the volume with that name, a hint
//	.csikit-nfs/snapshots/K.json  likewise for snapshots; K follows from the name
//	.csikit-nfs/snapshots/K/      the copy
//	.csikit-nfs/tmp/T/            what is being made
//	.csikit-nfs/trash/            what is being removed: the only place where anything is deleted recursively
//
// Every path goes through os.Root, so that nothing in the export leads out of it.
// Changes take effect by a rename or a link, so that a kill at any point leaves
// what the next call completes.
type store struct {
	export
	root *os.Root
	log  *slog.Logger

	mu  sync.Mutex
	own *os.Root // storeName; nil until open or create

	*share
}

// share is what the mounts of one share have in common, however it is mounted.
type share struct {
	// change is held while it is decided what is at a subDir, and something is moved
	// there or away: a deletion must not take its successor, and of two volumes one
	// must not get into the other.
	change sync.Mutex

	making sync.Map // the directories in tmp in which somebody makes something

	askFor     func(*os.File) error // for a lock, as lockFile does
	lockWithin time.Duration        // how long a call waits for it

	lockMu sync.Mutex
	lock   *os.File // nil: the share is not held
	asking *asking  // for the lock; nil: nobody is
	stores int      // open ones
}

// asking is what those wait for who need the lock.
type asking struct {
	done chan struct{}
	err  error // of what came of it
}

const (
	storeName     = ".csikit-nfs"
	storeFormat   = "csikit-nfs"
	formatVersion = 1

	dirVolumes   = "volumes"
	dirNames     = "names"
	dirSnapshots = "snapshots"
	dirTmp       = "tmp"
	dirTrash     = "trash"

	extRecord   = ".json"
	extDeleting = ".deleting"
)

var storeDirs = []string{dirVolumes, dirNames, dirSnapshots, dirTmp, dirTrash}

type marker struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// join counts a store that is opened. It may have to wait for the server.
func (s *share) join() {
	s.lockMu.Lock()
	defer s.lockMu.Unlock()
	s.stores++
}

// close may have to ask the server.
func (s *store) close() {
	if s.own != nil {
		s.own.Close()
	}
	s.root.Close()
	s.lockMu.Lock()
	defer s.lockMu.Unlock()
	s.stores--
	s.letGo()
}

// letGo closes the lock when nobody needs it any more. It is called with lockMu held.
func (s *share) letGo() {
	if s.stores == 0 && s.asking == nil && s.lock != nil {
		s.lock.Close()
		s.lock = nil
	}
}

// hold locks the share for this process, as long as one of its stores is open. errBusy:
// another controller is at work there. Without it, two of them would go on with one copy,
// or one would empty the trash under the other's hands.
//
// A lock that was held is asked for again: a server forgets those of a machine that it has
// not heard of for the time of a lease.
//
// A server that was started again gives none, but answers: for 90 seconds mostly, clients may
// only claim what they had (RFC 8881, 8.4.2.1). Linux asks again by itself, less and less
// often, and the kernel does not come back meanwhile. So it is asked apart, and for all at
// once. Who waited for lockWithin is told, if the server answers something else: it is not
// taken for one that is gone.
func (s *store) hold() error {
	s.lockMu.Lock()
	a := s.asking
	if a == nil {
		a = &asking{done: make(chan struct{})}
		s.asking = a
		go s.ask(a, s.lock)
	}
	s.lockMu.Unlock()
	enough := time.NewTimer(s.lockWithin)
	defer enough.Stop()
	select {
	case <-a.done:
		return a.err
	case <-enough.C:
		if _, err := s.root.Lstat(storeName); err != nil { // it hangs if the server is gone
			return err
		}
		return fmt.Errorf("%s answers, but gives no lock within %v: if it was started again, its clients may only claim what they had at first, for 90 s mostly; try again", s.where(), s.lockWithin)
	}
}

// ask asks the server for the lock, which may be held as f.
func (s *store) ask(a *asking, f *os.File) {
	if f != nil && s.askFor(f) != nil {
		f.Close()
		f = nil
	}
	var err error
	if f == nil {
		f, err = s.openLock()
	}
	s.lockMu.Lock()
	defer s.lockMu.Unlock()
	s.lock, a.err, s.asking = f, err, nil
	s.letGo()
	close(a.done)
}

// openLock returns nil with an error.
func (s *store) openLock() (*os.File, error) {
	f, err := s.own.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600) // NFS locks only what is open for writing
	if err != nil {
		return nil, err
	}
	if err = s.askFor(f); err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, errBusy) {
		err = fmt.Errorf("%w: another controller is at work on %s, or this one under another name of the server; let one run alone", errBusy, s.where())
	}
	return nil, err
}

// begin is open for those who are about to change something.
func (s *store) begin() error {
	if err := s.open(); err != nil {
		return err
	}
	return s.hold()
}

// open opens the driver's directory, errNotFound if this export has none: then it has no
// volumes either. The parts have to be directories and not links, and the marker
// has to be there, before anything below is touched.
func (s *store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		return nil
	}
	info, err := s.root.Lstat(storeName)
	if errors.Is(err, fs.ErrNotExist) {
		return errNotFound
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory", errDamaged, s.where(storeName))
	}
	own, err := openDirectory(s.root, storeName)
	if err != nil {
		return fmt.Errorf("%s: %w", s.where(storeName), err)
	}
	defer func() {
		if own != nil {
			own.Close()
		}
	}()
	data, err := own.ReadFile("marker")
	if errors.Is(err, fs.ErrNotExist) {
		return errNotFound // made, and cut off
	}
	if err != nil {
		return err
	}
	var m marker
	if err := json.Unmarshal(data, &m); err != nil || m.Format != storeFormat {
		return fmt.Errorf("%w: %s is not the driver's; restore it as {\"format\":%q,\"version\":%d} if it is", errDamaged, s.where(storeName, "marker"), storeFormat, formatVersion)
	}
	if m.Version != formatVersion {
		return fmt.Errorf("%w: %s has format version %d, this driver knows %d; use the driver that made it", errRefused, s.where(storeName), m.Version, formatVersion)
	}
	for _, name := range storeDirs {
		info, err := own.Lstat(name)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%w: %s is not a directory", errDamaged, s.where(storeName, name))
		}
	}
	s.own, own = own, nil
	return nil
}

// create is begin for those who are about to make something, the driver's directory as
// well. The marker comes last.
func (s *store) create() error {
	err := s.begin()
	if !errors.Is(err, errNotFound) {
		return err
	}
	if err := ignoreExisting(s.root.Mkdir(storeName, 0o700)); err != nil {
		return err
	}
	own, err := openDirectory(s.root, storeName)
	if err != nil {
		return err
	}
	defer own.Close()
	there, err := readNames(own, ".")
	if err != nil {
		return err
	}
	for _, name := range there {
		if !slices.Contains(storeDirs, name) && !strings.HasPrefix(name, "marker") && name != "lock" {
			return fmt.Errorf("%w: %s has no marker and holds %q: it is not the driver's", errRefused, s.where(storeName), name)
		}
	}
	for _, name := range storeDirs {
		if err := ignoreExisting(own.Mkdir(name, 0o700)); err != nil {
			return err
		}
	}
	data, err := encode(marker{Format: storeFormat, Version: formatVersion})
	if err != nil {
		return err
	}
	if err := ignoreExisting(writeNew(own, "marker", data)); err != nil {
		return err
	}
	if err := errors.Join(syncDir(own, "."), syncDir(s.root, ".")); err != nil {
		return err
	}
	return s.begin()
}

// where is for people who read an error.
func (s *store) where(parts ...string) string { return s.source(path.Join(parts...)) }

// changing runs fn with change held.
func (s *store) changing(fn func() error) error {
	s.change.Lock()
	defer s.change.Unlock()
	return fn()
}

// parentOf opens the directory that subDir is in, and returns the last part of the path:
// fs.ErrNotExist if there is none. Every part has to be a directory of this file system and
// no link, because others may write beside volumes: they must not lead the driver
// to something else in the export.
func (s *store) parentOf(subDir string) (*os.Root, string, error) {
	dir, err := s.root.OpenRoot(".")
	if err != nil {
		return nil, "", err
	}
	parts := strings.Split(subDir, "/")
	last := len(parts) - 1
	for i, part := range parts[:last] {
		sub, err := openDirectory(dir, part)
		dir.Close()
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", s.where(parts[:i+1]...), err)
		}
		dir = sub
	}
	return dir, parts[last], nil
}

// makeParents makes the directories that subDir is in, as far as they are not there,
// and returns how many it made.
func (s *store) makeParents(subDir string) (made int, err error) {
	parent := path.Dir(subDir)
	if parent == "." {
		return 0, nil
	}
	if made, err = s.makeParents(parent); err != nil {
		return made, err
	}
	dir, name, err := s.parentOf(parent)
	if err != nil {
		return made, err
	}
	defer dir.Close()
	err = dir.Mkdir(name, 0o755)
	if err == nil {
		made++
	} else if !errors.Is(err, fs.ErrExist) {
		return made, err
	}
	return made, syncDir(dir, ".")
}

// openDirectory opens a directory in dir. errRefused: it is a link, another kind of file,
// or a mount point. Nobody can exchange it meanwhile.
func openDirectory(dir *os.Root, name string) (*os.Root, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%w: it is not a directory", errRefused)
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	err = notMounted(dir, sub, ".")
	if err == nil {
		var opened fs.FileInfo
		if opened, err = sub.Stat("."); err == nil && !os.SameFile(info, opened) {
			err = errBusy
		}
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// notMounted returns an error if a directory, seen from another one, is a mount point.
func notMounted(dir, sub *os.Root, name string) error {
	a, err := dir.OpenFile(".", pathOnly, 0)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := sub.OpenFile(name, pathOnly, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	return sameMount(a, b)
}

// isDirectory returns the inode number of a directory, fs.ErrNotExist if there is nothing.
// A link to one is none.
func (s *store) isDirectory(dir *os.Root, name, shown string) (uint64, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return 0, fmt.Errorf("%w: %s is not a directory", errDamaged, s.where(shown))
	}
	return inodeOf(info), nil
}

// readRecord reads the file of a volume or snapshot. errNotFound: there is none.
func (s *store) readRecord(name string, into any) error {
	data, err := s.own.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return errNotFound
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %s: %w; restore it", errDamaged, s.where(storeName, name), err)
	}
	return nil
}

// replace makes data the content of a file: after a crash at any point the file is
// the old or the new one. Two writers of one file must not run at once.
func (s *store) replace(name string, data []byte) error {
	tmp := path.Join(dirTmp, path.Base(name)+"."+rand.Text())
	if err := writeSynced(s.own, tmp, data); err != nil {
		return errors.Join(err, remove(s.own, tmp))
	}
	if err := s.own.Rename(tmp, name); err != nil {
		return errors.Join(err, remove(s.own, tmp))
	}
	return unsettled(syncDir(s.own, path.Dir(name)))
}

// add writes a file that must not be there yet: of two who do so at once, in two
// processes even, one gets fs.ErrExist. That it is there is not durable yet.
func (s *store) add(name string, data []byte) error {
	tmp := path.Join(dirTmp, path.Base(name)+"."+rand.Text())
	if err := writeSynced(s.own, tmp, data); err != nil {
		return errors.Join(err, remove(s.own, tmp))
	}
	defer func() { _ = remove(s.own, tmp) }() // or tidy does it
	return s.own.Link(tmp, name)
}

// writeNew is add where there is no tmp yet.
func writeNew(dir *os.Root, name string, data []byte) error {
	tmp := name + "." + rand.Text()
	if err := writeSynced(dir, tmp, data); err != nil {
		return errors.Join(err, remove(dir, tmp))
	}
	return errors.Join(dir.Link(tmp, name), remove(dir, tmp))
}

func writeSynced(dir *os.Root, name string, data []byte) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove unlinks a file or an empty directory, if it is there.
func remove(dir *os.Root, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes what happened to the names in a directory durable.
func syncDir(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func ignoreExisting(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func readNames(dir *os.Root, name string) ([]string, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
