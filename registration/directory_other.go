//go:build !linux

package registration

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// A directory is the registration directory, by its path: these systems are for
// development, where it is not deleted and instances do not start concurrently.
type directory struct {
	path string
	info fs.FileInfo
}

func openDirectory(path string) (*directory, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return &directory{path, info}, nil
}

func (d *directory) close() {}

func (d *directory) same(e *directory) bool { return os.SameFile(d.info, e.info) }

func (d *directory) at(name string) string { return filepath.Join(d.path, name) }

func (d *directory) tryLock() (unlock func(), err error) { return func() {}, nil }

func (d *directory) listen(name string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.at(name), Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(d.at(name), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (d *directory) renameNew(from, to string) error {
	if _, err := os.Lstat(d.at(to)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, errChanged)
	}
	return os.Rename(d.at(from), d.at(to))
}
