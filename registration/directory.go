package registration

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

func (d *directory) lstat(name string) (fs.FileInfo, error) {
	info, err := os.Lstat(d.at(name))
	return info, d.known(err, name)
}

func (d *directory) remove(name string) error {
	return d.known(os.Remove(d.at(name)), name)
}

// known replaces the path in the error of a call on name, which may lead through
// /proc/self/fd, by the configured one.
func (d *directory) known(err error, name string) error {
	path := filepath.Join(d.path, name)
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return &fs.PathError{Op: p.Op, Path: path, Err: p.Err}
	}
	if n := (*net.OpError)(nil); errors.As(err, &n) {
		return &fs.PathError{Op: n.Op, Path: path, Err: n.Err}
	}
	if l := (*os.LinkError)(nil); errors.As(err, &l) {
		return &fs.PathError{Op: l.Op, Path: path, Err: l.Err}
	}
	return err
}
