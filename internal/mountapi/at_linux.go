package mountapi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// At is the function [At] on this kernel.
func (k Kernel) At(path string) ([]Mount, error) {
	if on, err := k.statAt(unix.AT_FDCWD, path); err == nil {
		return on, nil
	}
	path, err := Resolve(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return tableAt(path)
}

func tableAt(path string) ([]Mount, error) {
	table, err := Table()
	if err != nil {
		return nil, err
	}
	return Stack(table, path), nil
}

// at is At for a name in an open directory. In the table it has the path that the directory
// has now; without /proc that is the one from before.
func (k Kernel) at(dir int, name, before string) ([]Mount, error) {
	if on, err := k.statAt(dir, name); err == nil {
		return on, nil
	}
	if now, err := os.Readlink(fdPath(dir)); err == nil {
		return tableAt(filepath.Join(now, name))
	}
	return tableAt(before)
}

// statAt fails if the mount is stale, or was removed concurrently, or this kernel does not
// report every field: the table has it then.
func (k Kernel) statAt(dir int, name string) ([]Mount, error) {
	if k.Without&StatCalls != 0 || !hasStatCalls() {
		return nil, errIncomplete
	}
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
		unix.STATX_MNT_ID_UNIQUE, &st)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case err != nil:
		return nil, err
	case st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return nil, errIncomplete
	case st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return nil, nil
	}
	var on []Mount
	for id := st.Mnt_id; ; {
		m, parent, err := statMount(id)
		if len(on) > 0 && (errors.Is(err, errUnreachable) || errors.Is(err, unix.EPERM)) {
			break // below the root of this process
		}
		if err != nil {
			return nil, err
		}
		// A mount on the root of another one has its mount point.
		if len(on) > 0 && m.MountPoint != on[0].MountPoint {
			break
		}
		on = append(on, m)
		if parent == id {
			break
		}
		id = parent
	}
	slices.Reverse(on)
	setDevices(on, blockDevice)
	return on, nil
}

var (
	errIncomplete  = errors.New("statmount does not report every field of the mount")
	errUnreachable = errors.New("the mount point cannot be reached from here")
)

// Of linux/mount.h, as golang.org/x/sys lacks them.
const (
	statSuper       = 0x001
	statMountBasics = 0x002
	statRoot        = 0x008
	statMountPoint  = 0x010
	statFSType      = 0x020
	statOptions     = 0x080 // 6.11
	statFSSubtype   = 0x100 // 6.13
	statSource      = 0x200 // 6.13
)

// mountIDRequest is struct mnt_id_req of its first version.
type mountIDRequest struct {
	size, _ uint32
	id      uint64
	mask    uint64
}

// mountStat is struct statmount. Strings are offsets into what follows it.
type mountStat struct {
	size                   uint32
	options                uint32 // string
	mask                   uint64
	major, minor           uint32
	_                      uint64
	superFlags             uint32
	fsType                 uint32 // string
	id, parent             uint64 // never used again, unlike:
	oldID, oldParent       uint32 // as in mountinfo
	attr                   uint64
	_                      [4]uint64 // propagation
	root, mountPoint       uint32    // strings
	_                      uint64
	fsSubtype, superSource uint32 // strings
	_                      [48]uint64
}

// statMount returns the mount and the unique id of its parent.
func statMount(id uint64) (Mount, uint64, error) {
	request := mountIDRequest{
		size: uint32(unsafe.Sizeof(mountIDRequest{})),
		id:   id,
		mask: statSuper | statMountBasics | statRoot | statMountPoint | statFSType | statOptions | statFSSubtype | statSource,
	}
	for size := 4 << 10; ; size *= 2 {
		buf := make([]uint64, size/8)
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&request)),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(size), 0, 0, 0)
		switch {
		case errno == unix.EOVERFLOW && size < 1<<20:
			continue
		case errno != 0:
			return Mount{}, 0, errno
		}
		st := (*mountStat)(unsafe.Pointer(&buf[0]))
		all := unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), size)
		m, err := st.mount(string(all[unsafe.Sizeof(*st):max(uintptr(st.size), unsafe.Sizeof(*st))]))
		return m, st.parent, err
	}
}

// mount converts to the form of mountinfo.
func (s *mountStat) mount(text string) (Mount, error) {
	str := func(bit uint64, offset uint32) string {
		if s.mask&bit == 0 || int(offset) > len(text) {
			return ""
		}
		value, _, _ := strings.Cut(text[offset:], "\x00")
		return value
	}
	const always = statSuper | statMountBasics | statRoot | statFSType
	switch {
	case s.mask&statMountPoint == 0:
		return Mount{}, errUnreachable
	case s.mask&always != always, s.mask&statSource == 0: // which is also so for an empty source
		return Mount{}, errIncomplete
	}
	m := Mount{
		ID: int(s.oldID), ParentID: int(s.oldParent),
		Major: s.major, Minor: s.minor,
		Root:         str(statRoot, s.root),
		MountPoint:   str(statMountPoint, s.mountPoint),
		Options:      s.mountOptions(),
		FSType:       str(statFSType, s.fsType),
		Source:       str(statSource, s.superSource),
		SuperOptions: s.superOptions(str(statOptions, s.options)),
	}
	if sub := str(statFSSubtype, s.fsSubtype); sub != "" {
		m.FSType += "." + sub
	}
	return m, nil
}

func (s *mountStat) mountOptions() string {
	words := []string{"rw"}
	if s.attr&unix.MOUNT_ATTR_RDONLY != 0 {
		words[0] = "ro"
	}
	for _, o := range []struct {
		bit  uint64
		word string
	}{
		{unix.MOUNT_ATTR_NOSUID, "nosuid"},
		{unix.MOUNT_ATTR_NODEV, "nodev"},
		{unix.MOUNT_ATTR_NOEXEC, "noexec"},
		{unix.MOUNT_ATTR_NOATIME, "noatime"},
		{unix.MOUNT_ATTR_NODIRATIME, "nodiratime"},
	} {
		if s.attr&o.bit != 0 {
			words = append(words, o.word)
		}
	}
	if s.attr&unix.MOUNT_ATTR__ATIME == unix.MOUNT_ATTR_RELATIME { // which is 0
		words = append(words, "relatime")
	}
	if s.attr&unix.MOUNT_ATTR_NOSYMFOLLOW != 0 {
		words = append(words, "nosymfollow")
	}
	if s.attr&unix.MOUNT_ATTR_IDMAP != 0 {
		words = append(words, "idmapped")
	}
	return strings.Join(words, ",")
}

func (s *mountStat) superOptions(ofFileSystem string) string {
	words := []string{"rw"}
	if s.superFlags&unix.MS_RDONLY != 0 {
		words[0] = "ro"
	}
	for _, o := range []struct {
		bit  uint32
		word string
	}{
		{unix.MS_SYNCHRONOUS, "sync"},
		{unix.MS_DIRSYNC, "dirsync"},
		{unix.MS_LAZYTIME, "lazytime"},
	} {
		if s.superFlags&o.bit != 0 {
			words = append(words, o.word)
		}
	}
	if ofFileSystem != "" {
		words = append(words, ofFileSystem)
	}
	return strings.Join(words, ",")
}
