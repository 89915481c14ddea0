package main

import (
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
type store struct {
	path string
	dir  *os.File // to make changes of names durable
}

type volume struct {
	ID         string
	AccessType string // "block", or a file system
	Size       int64
	Node, Mode string // to which it is attached, and how
}

// An ID has a digest of the name, by which the volume is found again, and a random part: a
// late request for a deleted volume never reaches a new one of the same name. Nothing but
// an ID becomes the name of a file.
var idPattern = regexp.MustCompile(`^vol-[0-9a-f]{32}-(block|ext4|xfs)-[0-9A-Z]{26}$`)

func idPrefix(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("vol-%x-", sum[:16])
}

// openStore removes files that a killed process has not finished.
func openStore(path string) (store, error) {
	path, err := filepath.EvalSymlinks(path)
	if err == nil {
		path, err = filepath.Abs(path) // as loop devices report it
	}
	if err != nil {
		return store{}, err
	}
	dir, err := os.Open(path)
	s := store{path, dir}
	if err != nil {
		return s, err
	}
	unfinished, err := s.ids("", ".tmp")
	for _, id := range unfinished {
		err = errors.Join(err, os.Remove(s.file(id, ".tmp")))
	}
	return s, err
}

func (s store) file(id, ext string) string { return filepath.Join(s.path, id+ext) }

// ids returns, in order, the IDs with this beginning of all files with this extension.
func (s store) ids(prefix, ext string) (ids []string, err error) {
	files, err := os.ReadDir(s.path)
	for _, f := range files {
		if id, ok := strings.CutSuffix(f.Name(), ext); ok && idPattern.MatchString(id) && strings.HasPrefix(id, prefix) {
			ids = append(ids, id)
		}
	}
	return ids, err
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return v, err
	}
	return v, nil
}

// create makes a file appear at once: after a crash it is there in full, or not at all.
func (s store) create(id, ext string, fill func(*os.File) error) error {
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
	return s.dir.Sync()
}

// remove syncs in any case, because an earlier call may have failed to.
func (s store) remove(id, ext string) error {
	if err := os.Remove(s.file(id, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.dir.Sync()
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
