package mountapi

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Point is a path at which something is, or is to be, mounted: an open directory, and a name
// in it. Symlinks on the way were followed once, when it was opened; what is renamed or
// replaced above the directory afterwards changes nothing. The name itself is neither
// followed nor touched, because the mount on it may be stale. A Point keeps the mount of its
// directory busy. It is safe for concurrent use until Close.
type Point struct {
	dir  int    // by O_PATH
	name string // without a slash
	path string
	call string // for calls that take only a path
}

// OpenPoint opens the directory of the path, which may block if that is on a stale mount. A
// missing directory is fs.ErrNotExist.
func OpenPoint(path string) (*Point, error) {
	if path == "" { // as system calls return it; filepath.Abs returns the working directory
		return nil, fs.ErrNotExist
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := openDirectory(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	p := &Point{dir: dir, name: filepath.Base(path)}
	var text [unix.PathMax]byte
	link := fdPath(dir)
	if n, err := unix.Readlink(link, text[:]); err == nil && n > 0 && text[0] == '/' {
		p.path, p.call = filepath.Join(string(text[:n]), p.name), link+"/"+p.name
		if len(p.path) >= unix.PathMax { // here it could be used, but by no other process
			p.Close()
			return nil, &os.PathError{Op: "open", Path: p.path, Err: unix.ENAMETOOLONG}
		}
		return p, nil
	}
	// Without /proc.
	_ = unix.Close(dir)
	if p.path, err = Resolve(path); err != nil {
		return nil, err
	}
	p.call = p.path
	if p.dir, err = openDirectory(filepath.Dir(p.path)); err != nil {
		return nil, err
	}
	return p, nil
}

func openDirectory(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// Close closes the directory. It must be called once.
func (p *Point) Close() { _ = unix.Close(p.dir) }

// Dup returns a second Point for the same path, which is closed separately.
func (p *Point) Dup() (*Point, error) {
	fd, err := unix.FcntlInt(uintptr(p.dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	second := &Point{dir: fd, name: p.name, path: p.path, call: p.path}
	if p.call != p.path {
		second.call = fdPath(fd) + "/" + p.name
	}
	return second, nil
}

// Path returns the path as the mount table shows it. All spellings of a path have the same.
func (p *Point) Path() string { return p.path }

// Dir returns the descriptor of the directory, opened by O_PATH, for calls that take one and
// the Name.
func (p *Point) Dir() int { return p.dir }

// Name returns the last component of the path.
func (p *Point) Name() string { return p.name }

// At is the function [At] for this path.
func (p *Point) At() ([]Mount, error) { return Kernel{}.at(p.dir, p.name, p.path) }

// Unmount is the function [Unmount] for this path. Without /proc the path is resolved again.
func (p *Point) Unmount() (bool, error) { return unmount(p.call, p.path, 0) }
