package mountapi

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Source is an open file or directory of which a copy is to be mounted elsewhere: what was
// checked is what is copied, whatever is mounted over its path meanwhile. It keeps its mount
// busy.
type Source struct {
	fd   int
	path string
	st   unix.Statx_t
}

// OpenSource opens the path itself with O_PATH; a symlink is refused (ELOOP).
func OpenSource(path string) (*Source, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	s := &Source{fd: fd, path: path}
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_MNT_ID_UNIQUE, &s.st)
	if err == nil && s.st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.ELOOP
	}
	if err != nil {
		s.Close()
		return nil, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return s, nil
}

// Close closes the file. It must be called once.
func (s *Source) Close() { _ = unix.Close(s.fd) }

// Fd returns the descriptor, opened by O_PATH.
func (s *Source) Fd() int { return s.fd }

// Root identifies the file, as [Tree.Root] does for a copy of it.
func (s *Source) Root() (Root, error) { return rootOf(s.st), nil }

// Open opens the directory, for queries to the file system that Root does not answer.
func (s *Source) Open() (*os.File, error) { return openRoot(s.fd) }

// Mount returns the mount whose root the file is; ok is false if it is not the root of one.
func (s *Source) Mount() (m Mount, ok bool, err error) {
	if known := s.st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && s.st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0; known && hasStatCalls() {
		if s.st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			return Mount{}, false, nil
		}
		if m, _, err = statMount(s.st.Mnt_id); err == nil {
			on := []Mount{m}
			setDevices(on, blockDevice)
			return on[0], true, nil
		}
	}
	path, err := Resolve(s.path)
	if err != nil {
		return Mount{}, false, err
	}
	table, err := Table()
	if err != nil {
		return Mount{}, false, err
	}
	on := Stack(table, path)
	if len(on) == 0 {
		return Mount{}, false, nil
	}
	m = on[len(on)-1]
	id, err := mountID(s.fd)
	if err == nil && id != m.ID {
		err = fmt.Errorf("%s was unmounted or covered by another mount meanwhile: %w", s.path, unix.ESTALE)
	}
	return m, err == nil, err
}

// Clone is the function [CloneTree] for this file.
func (s *Source) Clone(attr Attr) (*Tree, error) {
	if !hasTreeCalls() {
		return Kernel{}.cloneByMount(s.fd, attr)
	}
	fd, err := unix.OpenTree(s.fd, "", unix.OPEN_TREE_CLONE|unix.O_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	return newTree(fd, attr)
}
