package exportdir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
)

// abandonedAfter is the age at which an unfinished volume or snapshot that was not
// requested again is orphaned and deleted: COs retry a request for days, but not forever.
const abandonedAfter = 7 * 24 * time.Hour

// recordOrphanedAfter is the age at which a record in tmp is orphaned: its writer was
// interrupted.
const recordOrphanedAfter = time.Hour

// moveToTrash moves a directory into the trash atomically, if it exists. Emptying the
// trash may take hours and happens in the background.
func (s *store) moveToTrash(dir *os.Root, name string) error {
	trash, err := openDirectory(s.own, dirTrash)
	if err != nil {
		return err
	}
	defer trash.Close()
	err = move(dir, name, trash, share.Shorten(path.Base(name), 200)+"."+rand.Text())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier attempt may have moved it
		return err
	}
	return errors.Join(syncDir(dir, path.Dir(name)), syncDir(trash, "."))
}

// emptyTrash removes the content of the trash, and resumes an interrupted attempt.
func (s *store) emptyTrash(did progress) error {
	// A separate os.Root, so that nothing outside the trash can be reached.
	return within(s.own, dirTrash, func(trash *os.Root) error {
		for {
			e := emptying{trash: trash, did: did}
			if err := e.removeAll(trash, 0); !e.moved {
				return err
			}
		}
	})
}

type emptying struct {
	trash *os.Root
	did   progress
	moved bool // a directory was moved to the top of the trash
}

const (
	// maxNesting bounds the descriptors and the stack that a tree needs. Deeper directories
	// are moved up: pods can nest without limit.
	maxNesting = 50
	// maxEntries bounds the memory that a directory needs.
	maxEntries = 10_000
)

// removeAll removes the content of a directory, except file systems mounted there, which
// are not part of the volume. It continues after errors, and returns them.
func (e *emptying) removeAll(dir *os.Root, depth int) error {
	for {
		entries, err := readEntries(dir) // from the beginning each time: a server may lose its position in a directory that changes
		errs, removed := []error{err}, 0
		for _, entry := range entries {
			err := e.remove(dir, entry, depth)
			if err == nil {
				removed++
			}
			if errs = append(errs, err); len(errs) > 10 { // one line for each would be unreadable
				errs = []error{errors.Join(errs...)}
			}
			e.did(1, 0)
		}
		if removed == 0 || len(entries) < maxEntries {
			return errors.Join(errs...)
		}
	}
}

func (e *emptying) remove(dir *os.Root, entry fs.DirEntry, depth int) error {
	name := entry.Name()
	if entry.IsDir() && depth == maxNesting {
		err := withRights(dir, name, func() error { return move(dir, name, e.trash, rand.Text()) })
		e.moved = e.moved || err == nil
		return err
	}
	if entry.IsDir() {
		if err := within(dir, name, func(sub *os.Root) error { return e.removeAll(sub, depth+1) }); err != nil {
			return err
		}
	}
	return remove(dir, name)
}

func readEntries(dir *os.Root) ([]fs.DirEntry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// withRights calls fn, and on EACCES or EPERM once more after a chmod of the directory,
// whose owner may have removed the permissions.
func withRights(dir *os.Root, name string, fn func() error) error {
	err := fn()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err := notMounted(dir, dir, name); err != nil {
		return err
	}
	if err := dir.Chmod(name, 0o700); err != nil {
		return err
	}
	return fn()
}

// within calls fn with a directory in dir.
func within(dir *os.Root, name string, fn func(*os.Root) error) error {
	var sub *os.Root
	err := withRights(dir, name, func() (err error) {
		sub, err = openDirectory(dir, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer sub.Close()
	return fn(sub)
}

// tidy completes interrupted operations that may not be requested again: it finishes
// deletions, and deletes orphaned volumes and snapshots in tmp.
func (s *store) tidy() error {
	var errs []error
	finish := map[string]func(key string) error{
		dirVolumes:   func(key string) error { return s.withChangeLock(func() error { return s.finishDelete(key) }) },
		dirSnapshots: func(key string) error { return s.finishDeleteSnapshot(path.Join(dirSnapshots, key)) },
	}
	for dir, finish := range finish {
		names, err := readNames(s.own, dir)
		errs = append(errs, err)
		for _, name := range names {
			if key, ok := strings.CutSuffix(name, extDeleting); ok {
				errs = append(errs, finish(key))
			}
		}
	}
	names, err := readNames(s.own, dirTmp)
	errs = append(errs, err)
	abandoned := map[string]bool{}
	for _, name := range names {
		name = path.Join(dirTmp, name)
		info, err := s.own.Lstat(name)
		if err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > recordOrphanedAfter {
			err = remove(s.own, name)
		} else if err == nil && info.IsDir() && time.Since(info.ModTime()) > abandonedAfter {
			abandoned[name] = true
		}
		errs = append(errs, ignoreMissing(err))
	}
	if len(abandoned) > 0 {
		if err := s.placeAll(); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for name := range abandoned {
		errs = append(errs, s.withChangeLock(func() error { // see fill
			info, err := s.own.Lstat(name)
			if err != nil || time.Since(info.ModTime()) <= abandonedAfter {
				return ignoreMissing(err)
			}
			s.log.Info("delete orphaned directory", "path", s.where(storeName, name), "modified", info.ModTime())
			return s.moveToTrash(s.own, name)
		}))
	}
	return errors.Join(errs...)
}

// placeAll moves every directory that has a record, but is still in tmp, to its final
// path. Only after that can directories in tmp be orphaned.
func (s *store) placeAll() error {
	names, err := readNames(s.own, dirVolumes)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, extRecord) {
			continue
		}
		r, err := s.readVolumeFile(path.Join(dirVolumes, name))
		if err == nil && s.exists(r.temp()) {
			err = s.placeVolume(r)
		}
		if err != nil && !errors.Is(err, csierr.NotFound) {
			return err
		}
	}
	if names, err = readNames(s.own, dirSnapshots); err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, extRecord) {
			continue
		}
		name = path.Join(dirSnapshots, name)
		r, err := s.readSnapshot(name)
		if err == nil && s.exists(r.temp()) {
			err = s.placeSnapshot(r, strings.TrimSuffix(name, extRecord))
		}
		if err != nil && !errors.Is(err, csierr.NotFound) {
			return err
		}
	}
	return nil
}

func (s *store) exists(name string) bool {
	_, err := s.own.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// clean tidies the export and empties its trash in the background. A call while it runs
// makes it run once more. It retries failures with exponential backoff: a file that is open
// on an NFS client keeps its directory, and a server may be unresponsive.
func (b *backend) clean(e share.Export) {
	b.mu.Lock()
	defer b.mu.Unlock()
	again, running := b.cleaning[e]
	if !running {
		again = make(chan struct{}, 1)
		b.cleaning[e] = again
		go b.keepCleaning(e, again)
	}
	select {
	case again <- struct{}{}:
	default:
	}
}

// cleanLater is clean after a delay, unless the backend is closed by then.
func (b *backend) cleanLater(e share.Export, in time.Duration) {
	time.AfterFunc(in, func() {
		select {
		case <-b.closed:
		default:
			b.clean(e)
		}
	})
}

func (b *backend) keepCleaning(e share.Export, again chan struct{}) {
	const first, longest = time.Second, 10 * time.Minute
	wait := first
	for {
		select {
		case <-again:
		case <-b.closed:
			b.cleaned(e, again)
			return
		}
		err := b.cleanOnce(e)
		if err == nil {
			if b.cleaned(e, again) {
				return
			}
			wait = first
			continue
		}
		b.log.Warn("clean up export; will retry", "export", e.String(), "in", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-b.closed:
		}
		wait = min(2*wait, longest)
		select {
		case again <- struct{}{}:
		default:
		}
	}
}

// cleaned ends the cleaning, unless clean was called again in between.
func (b *backend) cleaned(e share.Export, again chan struct{}) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed:
	default:
		if len(again) > 0 {
			return false
		}
	}
	delete(b.cleaning, e)
	return true
}

func (b *backend) cleanOnce(e share.Export) error {
	_, err := withStore(context.Background(), b, e, "clean "+e.String(), func(did progress, s *store) (any, error) {
		if err := s.openLocked(); err != nil {
			return nil, err
		}
		return nil, errors.Join(s.tidy(), s.emptyTrash(did))
	})
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	return err
}
