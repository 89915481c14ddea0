package exportdir

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

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
)

// store is an export with the driver's own directory in it:
//
//	<subDir>/                     a volume, wherever its subDir says
//	.csikit-nfs/marker            marks the directory as the driver's
//	.csikit-nfs/lock              locked by the active controller
//	.csikit-nfs/volumes/K.json    a volume exists as long as this file does; K follows from subDir
//	.csikit-nfs/volumes/K.deleting  one whose deletion has begun and will be completed
//	.csikit-nfs/names/N           the subDir of the volume with that name, a hint
//	.csikit-nfs/snapshots/K.json  likewise for snapshots; K follows from the name
//	.csikit-nfs/snapshots/K/      the copy
//	.csikit-nfs/tmp/T/            a volume or snapshot that is being created
//	.csikit-nfs/trash/            what is being deleted: the only place where anything is deleted recursively
//
// Every path goes through os.Root, so that no link in the export leads outside it.
// Changes take effect by a rename or a link, so that after a kill at any point the next
// call can complete them.
type store struct {
	share.Export
	root *os.Root
	log  *slog.Logger

	mu  sync.Mutex
	own *os.Root // storeName; nil until open or create

	*shareDir
}

// share is the state that all mounts of one share have in common, whatever their options.
type shareDir struct {
	// change serialises checking what is at a subDir and moving a directory there or
	// away: a deletion must not delete a newer volume, and two volumes must not be
	// nested.
	change sync.Mutex

	claimed sync.Map // the directories in tmp that a call is filling

	tryLock     func(*os.File) error // locks a file without waiting, like lockFile
	lockTimeout time.Duration        // how long a call waits for the lock

	lockMu  sync.Mutex
	lock    *os.File     // nil: the share is not locked
	pending *lockRequest // nil: none is in flight
	stores  int          // open ones
}

// lockRequest is a request for the lock, which concurrent calls share.
type lockRequest struct {
	done chan struct{}
	err  error // valid once done is closed
}

const (
	storeName     = share.Reserved
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

// join counts an open store.
func (s *shareDir) join() {
	s.lockMu.Lock()
	defer s.lockMu.Unlock()
	s.stores++
}

// close may block: it can send requests to the server.
func (s *store) close() {
	if s.own != nil {
		s.own.Close()
	}
	s.root.Close()
	s.lockMu.Lock()
	defer s.lockMu.Unlock()
	s.stores--
	s.closeUnusedLock()
}

// closeUnusedLock closes the lock if no store is open. It is called with lockMu held.
func (s *shareDir) closeUnusedLock() {
	if s.stores == 0 && s.pending == nil && s.lock != nil {
		s.lock.Close()
		s.lock = nil
	}
}

// acquireLock locks the share for this process for as long as one of its stores is open.
// errBusy: another controller is active there. Without the lock, two of them could resume
// one copy, or one could empty the trash while the other uses it.
//
// A lock that is held already is requested again: a server drops the locks of a machine
// whose lease has expired.
//
// A server that was restarted responds, but grants no lock: during its grace period, usually
// 90 seconds, clients may only reclaim their locks (RFC 8881, 8.4.2.1). Linux retries
// within the system call, with increasing intervals. So one goroutine makes the request for
// all callers. A caller that has waited for lockTimeout gets an error; if the server
// responds to another request, it does not count as unresponsive.
func (s *store) acquireLock() error {
	s.lockMu.Lock()
	r := s.pending
	if r == nil {
		r = &lockRequest{done: make(chan struct{})}
		s.pending = r
		go s.requestLock(r, s.lock)
	}
	s.lockMu.Unlock()
	timeout := time.NewTimer(s.lockTimeout)
	defer timeout.Stop()
	select {
	case <-r.done:
		return r.err
	case <-timeout.C:
		if _, err := s.root.Lstat(storeName); err != nil { // it blocks if the server does not respond
			return err
		}
		return fmt.Errorf("%s responds, but did not grant a lock within %v: after a restart of the server, clients can only reclaim their locks during its grace period, usually 90 s; retry", s.where(), s.lockTimeout)
	}
}

// requestLock requests the lock from the server; f is the lock if it is held already.
func (s *store) requestLock(r *lockRequest, f *os.File) {
	if f != nil && s.tryLock(f) != nil {
		f.Close()
		f = nil
	}
	var err error
	if f == nil {
		f, err = s.openLock()
	}
	s.lockMu.Lock()
	defer s.lockMu.Unlock()
	s.lock, r.err, s.pending = f, err, nil
	s.closeUnusedLock()
	close(r.done)
}

// openLock returns nil with an error.
func (s *store) openLock() (*os.File, error) {
	f, err := s.own.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600) // NFS locks only what is open for writing
	if err != nil {
		return nil, err
	}
	if err = s.tryLock(f); err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, csierr.Busy) {
		err = fmt.Errorf("%w: another controller holds the lock on %s, or this one does under another name of the server; run only one", csierr.Busy, s.where())
	}
	return nil, err
}

// openLocked is open for calls that change something: it also acquires the lock.
func (s *store) openLocked() error {
	if err := s.open(); err != nil {
		return err
	}
	return s.acquireLock()
}

// open opens the driver's directory. errNotFound: this export has none, and so no volumes.
// Before anything below it is accessed, its parts must be directories and not links, and
// the marker must exist.
func (s *store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		return nil
	}
	info, err := s.root.Lstat(storeName)
	if errors.Is(err, fs.ErrNotExist) {
		return csierr.NotFound
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
		return csierr.NotFound // its creation was interrupted
	}
	if err != nil {
		return err
	}
	var m marker
	if err := json.Unmarshal(data, &m); err != nil || m.Format != storeFormat {
		return fmt.Errorf("%w: %s is not the driver's; restore it as {\"format\":%q,\"version\":%d} if it is", errDamaged, s.where(storeName, "marker"), storeFormat, formatVersion)
	}
	if m.Version != formatVersion {
		return fmt.Errorf("%w: %s has format version %d, this driver supports %d; use the driver that created it", errRefused, s.where(storeName), m.Version, formatVersion)
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

// create is openLocked for calls that create something: it also creates the driver's
// directory, the marker last.
func (s *store) create() error {
	err := s.openLocked()
	if !errors.Is(err, csierr.NotFound) {
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
			return fmt.Errorf("%w: %s has no marker and contains %q: it is not the driver's", errRefused, s.where(storeName), name)
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
	return s.openLocked()
}

// where returns a path for error messages.
func (s *store) where(parts ...string) string { return s.Source(path.Join(parts...)) }

// withChangeLock runs fn with change held.
func (s *store) withChangeLock(fn func() error) error {
	s.change.Lock()
	defer s.change.Unlock()
	return fn()
}

// parentOf opens the parent directory of subDir, and returns the last component of the
// path: fs.ErrNotExist if there is none. Every component must be a directory of this file
// system and not a link, because others may write to the export outside volumes: they must
// not redirect the driver to something else there.
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

// makeParents creates the missing parent directories of subDir, and returns how many it
// created.
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
// or a mount point; errBusy: it was replaced concurrently.
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
			err = csierr.Busy
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

// isDirectory returns the inode number of a directory, fs.ErrNotExist if it does not
// exist. A link to a directory is an error.
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

// readRecord reads the record of a volume or snapshot. errNotFound: there is none.
func (s *store) readRecord(name string, into any) error {
	data, err := s.own.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return csierr.NotFound
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %s: %w; restore it", errDamaged, s.where(storeName, name), err)
	}
	return nil
}

// replace replaces the content of a file atomically: after a crash at any point it is
// the old or the new one. It must not run concurrently for one file.
func (s *store) replace(name string, data []byte) error {
	tmp := path.Join(dirTmp, path.Base(name)+"."+rand.Text())
	if err := writeSynced(s.own, tmp, data); err != nil {
		return errors.Join(err, remove(s.own, tmp))
	}
	if err := s.own.Rename(tmp, name); err != nil {
		return errors.Join(err, remove(s.own, tmp))
	}
	return incomplete(syncDir(s.own, path.Dir(name)))
}

// add creates a file with its content atomically. Of concurrent calls, even in different
// processes, all but one return fs.ErrExist. The new name is not durable yet.
func (s *store) add(name string, data []byte) error {
	tmp := path.Join(dirTmp, path.Base(name)+"."+rand.Text())
	if err := writeSynced(s.own, tmp, data); err != nil {
		return errors.Join(err, remove(s.own, tmp))
	}
	defer func() { _ = remove(s.own, tmp) }() // if that fails, tidy removes it
	return s.own.Link(tmp, name)
}

// writeNew is add for a directory without tmp.
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

// remove removes a file or an empty directory, if it exists.
func remove(dir *os.Root, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes changes of the names in a directory durable.
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
