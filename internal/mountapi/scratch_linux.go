package mountapi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A scratch holds a tree on a kernel without detached mounts: on a mount point in a
// private directory that no other mount namespace sees, because it
// is bound to itself and made private. There the tree gets its attributes, and from
// there it is moved to its target. Attributes set at the target would not reach
// the copies that propagation makes of it.
type scratch struct {
	kernel     Kernel
	dir, point string
	lock       *os.File // of dir: without it, it is swept
	bound      bool     // dir is a mount
}

func (k Kernel) newScratch(directory bool) (_ *scratch, err error) {
	dir, lock, err := makeScratch()
	if err != nil {
		return nil, err
	}
	s := &scratch{kernel: k, dir: dir, point: filepath.Join(dir, "m"), lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if directory {
		err = os.Mkdir(s.point, 0o700)
	} else {
		err = os.WriteFile(s.point, nil, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if err := s.mount("bind scratch", s.dir, s.dir, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	s.bound = true
	if err := s.mount("make scratch private", "", s.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return nil, err
	}
	return s, nil
}

// close unmounts what is left in the scratch. The unmount is lazy so that nothing is left
// behind when another process has just opened a file there.
func (s *scratch) close() (err error) {
	defer s.lock.Close()
	if s.bound {
		_, err = Detach(s.dir)
	}
	for _, path := range []string{s.point, s.dir} {
		if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (k Kernel) step(name string) error {
	if k.fail == nil {
		return nil
	}
	return k.fail(name)
}

func (s *scratch) mount(step, source, target, fsType string, flags uintptr, data string) error {
	if err := s.kernel.step(step); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount(source, target, fsType, flags, data))
}

// move is MS_MOVE to the directory or file that is open as at.
func (s *scratch) move(at int) error {
	if err := s.kernel.step("move"); err != nil {
		return err
	}
	return unix.Mount(s.point, fdPath(at), "", unix.MS_MOVE, "")
}

// tree takes over the mount in the scratch once it has the attributes.
func (s *scratch) tree(attr Attr) (*Tree, error) {
	// mount(2) ignores flags that it does not know; this one is of Linux 5.10.
	if attr&NoSymFollow != 0 {
		if m, err := s.top(); err != nil {
			return nil, err
		} else if m.MountAttr()&NoSymFollow == 0 {
			return nil, fmt.Errorf("%w: this kernel does not know %v", ErrOption, NoSymFollow)
		}
	}
	fd, err := openPath(s.point)
	if err != nil {
		return nil, err
	}
	return &Tree{fd: fd, scratch: s}, nil
}

func (s *scratch) top() (Mount, error) {
	if err := s.kernel.step("stat"); err != nil {
		return Mount{}, err
	}
	on, err := s.kernel.At(s.point)
	if err != nil {
		return Mount{}, err
	}
	if len(on) != 1 {
		return Mount{}, fmt.Errorf("%d mounts on the private mount point %s, want 1", len(on), s.point)
	}
	return on[0], nil
}

// cloneByMount copies what is open as from.
func (k Kernel) cloneByMount(from int, attr Attr) (_ *Tree, err error) {
	st, err := statFD(from)
	if err != nil {
		return nil, err
	}
	s, err := k.newScratch(isDir(st))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.mount("bind", fdPath(from), s.point, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	if attr != 0 {
		m, err := s.top()
		if err != nil {
			return nil, err
		}
		// A remount replaces all flags, also those that came with the source.
		flags := mountFlags(m.MountAttr().With(attr))
		if err := s.mount("remount", "", s.point, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
			return nil, err
		}
	}
	return s.tree(attr)
}

func (k Kernel) newByMount(fsType, source string, o Options) (_ *Tree, err error) {
	data, err := mountData(o.Data)
	if err != nil {
		return nil, err
	}
	s, err := k.newScratch(true)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	err = s.mount("mount", source, s.point, fsType, mountFlags(o.Attr), data)
	if errors.Is(err, unix.EINVAL) && data != "" {
		return nil, fmt.Errorf("%w (one of %s), or a file system that the kernel cannot read; see its log: %w", ErrOption, keys(o.Data), err)
	}
	if err != nil {
		return nil, err
	}
	return s.tree(o.Attr)
}

// mountData is what mount(2) takes.
func mountData(options []string) (string, error) {
	data, err := JoinOptions(options)
	if err != nil {
		return "", err
	}
	// mount(2) reads one page and ignores the rest.
	if limit := os.Getpagesize() - 1; len(data) > limit {
		return "", fmt.Errorf("%w: the options have %d bytes, a kernel before 5.2 takes %d", ErrOption, len(data), limit)
	}
	return data, nil
}

// keys leaves out the values, which may be secret (csi.proto on mount_flags).
func keys(options []string) string {
	names := make([]string, len(options))
	for i, o := range options {
		names[i], _, _ = strings.Cut(o, "=")
	}
	return strings.Join(names, ", ")
}

// fdPath names the open file, whatever is mounted or renamed concurrently.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
