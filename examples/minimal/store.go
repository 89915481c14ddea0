package main

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/csikit/csikit/csierr"
)

// store is a directory with one or two files for each volume, and with no other state:
//
//	ID.img       the data; the volume exists while this file does, and has its size
//	ID.attached  the node and the access mode, while the volume is attached
//
// Detaching and deleting only remove a file, which succeeds on a full disk too.
type store struct{ path string }

type volume struct {
	ID         string
	AccessType string // "block", or a file system
	Size       int64
	Node, Mode string // to which it is attached, and how
}

// An ID has a digest of the name, by which the volume is found again, and a random part: a
// late request for a deleted volume never reaches a new one of the same name. Nothing but
// an ID becomes the name of a file.
var idPattern = regexp.MustCompile(`^vol-(block|ext4|xfs)-([0-9a-f]{32})-[0-9A-Z]{26}$`)

func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%x", sum[:16])
}

// openStore removes files that a killed process has not finished.
func openStore(dir string) (store, error) {
	path, err := filepath.EvalSymlinks(dir) // as loop devices report it
	s := store{path}
	if err != nil {
		return s, err
	}
	unfinished, err := s.ids(".tmp")
	for _, id := range unfinished {
		err = errors.Join(err, os.Remove(s.file(id, ".tmp")))
	}
	return s, err
}

func (s store) file(id, ext string) string { return filepath.Join(s.path, id+ext) }

// ids returns, in order, the ID of each file with this ending.
func (s store) ids(ext string) (ids []string, err error) {
	files, err := os.ReadDir(s.path)
	for _, f := range files {
		if id, ok := strings.CutSuffix(f.Name(), ext); ok && idPattern.MatchString(id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// find returns the volume with this name, or csierr.NotFound.
func (s store) find(name string) (volume, error) {
	ids, err := s.ids(".img")
	if err != nil {
		return volume{}, err
	}
	for _, id := range ids {
		if idPattern.FindStringSubmatch(id)[2] == digest(name) {
			return s.load(id)
		}
	}
	return volume{}, csierr.NotFound
}

// load returns the volume with this ID, or csierr.NotFound.
func (s store) load(id string) (volume, error) {
	parts := idPattern.FindStringSubmatch(id)
	if parts == nil {
		return volume{}, fmt.Errorf("%w: volume %q", csierr.NotFound, id)
	}
	image, err := os.Stat(s.file(id, ".img"))
	if errors.Is(err, fs.ErrNotExist) {
		return volume{}, fmt.Errorf("%w: volume %s", csierr.NotFound, id)
	} else if err != nil {
		return volume{}, err
	}
	v := volume{ID: id, AccessType: parts[1], Size: image.Size()}
	attached, err := os.ReadFile(s.file(id, ".attached"))
	v.Node, v.Mode, _ = strings.Cut(string(attached), "\n")
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return v, err
}

func (s store) create(name, accessType string, size int64) (volume, error) {
	v := volume{ID: "vol-" + accessType + "-" + digest(name) + "-" + rand.Text(), AccessType: accessType, Size: size}
	return v, s.put(v.ID, ".img", func(f *os.File) error { return f.Truncate(size) })
}

func (s store) attach(id, node, mode string) error {
	return s.put(id, ".attached", func(f *os.File) error { _, err := f.WriteString(node + "\n" + mode); return err })
}

// put makes a file appear at once: after a crash it is there in full, or not at all.
func (s store) put(id, ext string, fill func(*os.File) error) error {
	tmp := s.file(id, ".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(fill(f), f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, s.file(id, ext))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return s.sync()
}

func (s store) remove(id, ext string) error {
	if err := os.Remove(s.file(id, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.sync()
}

// grow makes the image of a volume size bytes large, unless it is larger.
func (s store) grow(v volume, size int64) error {
	f, err := os.OpenFile(s.file(v.ID, ".img"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if size > v.Size {
		err = f.Truncate(size)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// sync makes names durable. A repeated call has to do it too: the first one may have ended
// before.
func (s store) sync() error {
	dir, err := os.Open(s.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
