package exportdir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// copyTree makes dst, an open directory, recursively equal to src: contents, owners,
// modes, times, extended attributes and ACLs, symbolic and hard links, holes, FIFOs,
// sockets and device nodes. It copies data with copy_file_range(2), which an NFS 4.2
// server executes itself, and a file system with reflinks by sharing extents.
//
// An interrupted copy is resumed by calling it again: a file gets its mtime last, so a
// file that has it is complete. Entries of dst that are not in src are removed. A file that
// has changed since the given time is copied even if it looks complete, and counted as a
// change; so are the files of a directory that has replaced another one, whose times are
// not comparable.
// If src changes during the copy, each file is copied in its state at that time, and
// deleted files are omitted: see copyConsistent.
//
// It follows no symbolic link, opens no special file, and fails with errMounted at a
// mount point: another file system is not part of the source, and a copy without it
// would be incomplete. It resolves one name at a time in an open directory, so concurrent
// renames cannot lead it outside the two trees.
func copyTree(dst, src *os.File, since time.Time, of origins, progress func(files, bytes int64)) (changes, error) {
	for _, dir := range []*os.File{dst, src} { // which an earlier call has read
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return changes{}, err
		}
	}
	there, err := dst.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return changes{}, err
	}
	if _, err := dst.Seek(0, io.SeekStart); err != nil {
		return changes{}, err
	}
	if len(there) == 0 {
		if err := removeInheritedACLs(dst); err != nil {
			return changes{}, err
		}
	}
	c := &treeCopy{progress: progress, root: dst, resumed: len(there) > 0, since: since, origins: of, links: map[inode]linked{}, copies: map[inode]inode{}}
	var st unix.Stat_t
	if err := statSync(src, "", &st); err != nil {
		return changes{}, err
	}
	c.noteChange(&st, ".")
	err = c.directory(dst, src, &st, ".", true)
	return c.changes, err
}

// removeInheritedACLs removes the ACLs that a new directory inherited from its parent, because its
// entries would inherit them as well.
func removeInheritedACLs(dir *os.File) error {
	for _, name := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		err := fdNode(dir).removeXattr(name)
		if err = ignore(ignore(err, unix.ENODATA), unix.EOPNOTSUPP); err != nil {
			return fmt.Errorf("remove extended attribute %s: %w", name, err)
		}
	}
	return nil
}

type treeCopy struct {
	progress func(files, bytes int64)
	root     *os.File
	resumed  bool
	since    time.Time
	origins  origins
	changes  changes
	links    map[inode]linked // files with more than one name
	copies   map[inode]inode  // from their copies to the originals
}

// linked is the state of a file with more than one name when it was copied.
type linked struct {
	name string // of the copy, relative to root
	stat unix.Stat_t
}

type inode struct{ dev, ino uint64 }

// noteChange records the ctime of a file.
func (c *treeCopy) noteChange(st *unix.Stat_t, rel string) {
	if c.changed(st) {
		c.changes.count++
	}
	if at := ctime(st); at.After(c.changes.newest) {
		c.changes.newest, c.changes.name = at, rel
	}
}

// changed reports whether a file may have changed since the given time, by its ctime,
// which unlike mtime cannot be set.
func (c *treeCopy) changed(st *unix.Stat_t) bool {
	return !c.since.IsZero() && settled(ctime(st)).After(c.since)
}

// statSync gets the attributes of a name in an open directory, or of the directory itself
// if name is empty, from the server. Without AT_STATX_FORCE_SYNC an NFS client returns
// cached attributes, up to a minute old, and reads a directory from its cache.
func statSync(dir *os.File, name string, st *unix.Stat_t) error {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_EMPTY_PATH
	var fresh unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), name, flags|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &fresh); err != nil {
		return err
	}
	return unix.Fstatat(int(dir.Fd()), name, st, flags)
}

func ctime(st *unix.Stat_t) time.Time { return time.Unix(st.Ctim.Unix()) }

// maxDepth bounds the descriptors that a tree needs, and, with the maximum length of a
// path, the memory.
const maxDepth = 250

// errChanged: the name refers to another file than before.
var errChanged = errors.New("changed during the copy")

// directory copies the entries and the attributes of a directory. sameDir: dst is a
// copy of this directory, made by an earlier pass or attempt.
func (c *treeCopy) directory(dst, src *os.File, st *unix.Stat_t, rel string, sameDir bool) error {
	if strings.Count(rel, "/") > maxDepth || len(rel) >= unix.PathMax {
		return fmt.Errorf("%w: %.100q...: not copied: nested deeper than %d directories, or a path longer than %d bytes", errRefused, rel, maxDepth, unix.PathMax)
	}
	names, err := src.Readdirnames(-1)
	if err != nil {
		return err
	}
	if c.resumed {
		if err := c.removeOthers(dst, names); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := c.entry(dst, src, name, path.Join(rel, name), sameDir); err != nil {
			return err
		}
	}
	if err := c.attributes(fdNode(dst), fdNode(src), st); err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	// Names that were added or removed during the copy show in the directory's ctime.
	var now unix.Stat_t
	if err := statSync(src, "", &now); err != nil {
		return err
	}
	c.noteChange(&now, rel)
	if err := dst.Sync(); err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	c.progress(1, 0)
	return fdNode(dst).setTimes(st)
}

func (c *treeCopy) entry(dst, src *os.File, name, rel string, sameDir bool) error {
	var err error
	for range 3 {
		err = c.tryEntry(dst, src, name, rel, sameDir)
		if (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)) && vanished(src, name) {
			return c.removeEntry(dst, name)
		}
		if !errors.Is(err, errChanged) {
			break
		}
	}
	var named *os.PathError
	if err != nil && !errors.As(err, &named) {
		err = &os.PathError{Op: "copy", Path: rel, Err: err}
	}
	return err
}

func vanished(dir *os.File, name string) bool {
	var st unix.Stat_t
	return errors.Is(statSync(dir, name, &st), unix.ENOENT)
}

func (c *treeCopy) tryEntry(dst, src *os.File, name, rel string, sameDir bool) error {
	var st unix.Stat_t
	if err := statSync(src, name, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return c.subdirectory(dst, src, name, rel, sameDir)
	}
	c.noteChange(&st, rel)
	id := inode{uint64(st.Dev), st.Ino}
	// The inode number may have been reused.
	if first, ok := c.links[id]; ok && st.Nlink > 1 && same(&first.stat, &st) {
		return c.link(dst, name, first.name)
	}
	done, err := c.complete(dst, src, name, &st)
	if err == nil && !(done && sameDir) {
		if err = c.removeEntry(dst, name); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			err = c.file(dst, src, name, &st)
		} else {
			err = c.special(dst, src, name, &st)
		}
	}
	if err == nil && st.Nlink > 1 {
		var copied unix.Stat_t
		if err := unix.Fstatat(int(dst.Fd()), name, &copied, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		c.links[id] = linked{rel, st}
		c.copies[inode{uint64(copied.Dev), copied.Ino}] = id
	}
	if err == nil {
		c.progress(1, 0)
	}
	return err
}

// same reports whether two attributes are equal, except for those that a copy cannot have.
func same(a, b *unix.Stat_t) bool {
	return a.Mode == b.Mode && a.Uid == b.Uid && a.Gid == b.Gid && a.Mtim == b.Mtim && a.Rdev == b.Rdev && a.Size == b.Size
}

// complete reports whether an earlier attempt copied the file to its end.
func (c *treeCopy) complete(dst, src *os.File, name string, st *unix.Stat_t) (bool, error) {
	var have unix.Stat_t
	err := unix.Fstatat(int(dst.Fd()), name, &have, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	done := err == nil && same(&have, st) && !c.changed(st) && (have.Nlink == 1 || st.Nlink > 1)
	if of, ok := c.copies[inode{uint64(have.Dev), have.Ino}]; ok && of != (inode{uint64(st.Dev), st.Ino}) {
		done = false // the two were one file then
	}
	if !done || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return done, err
	}
	a, err := readlink(dst, name)
	if err != nil {
		return false, err
	}
	b, err := readlink(src, name)
	return a == b, err
}

// link creates another name for the copy of a file.
func (c *treeCopy) link(dst *os.File, name, first string) error {
	var a, b unix.Stat_t
	if err := unix.Fstatat(int(c.root.Fd()), first, &a, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := unix.Fstatat(int(dst.Fd()), name, &b, unix.AT_SYMLINK_NOFOLLOW); err == nil && a.Ino == b.Ino && a.Dev == b.Dev {
		return nil
	}
	if err := c.removeEntry(dst, name); err != nil {
		return err
	}
	if err := unix.Linkat(int(c.root.Fd()), first, int(dst.Fd()), name, 0); err != nil {
		return err
	}
	c.progress(1, 0)
	return nil
}

func (c *treeCopy) subdirectory(dst, src *os.File, name, rel string, sameDir bool) error {
	from, err := openIn(src, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := sameMount(src, from); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := statSync(from, "", &st); err != nil {
		return err
	}
	c.noteChange(&st, rel)
	err = unix.Mkdirat(int(dst.Fd()), name, 0o700)
	var to *os.File
	if err == nil || errors.Is(err, unix.EEXIST) {
		to, err = openIn(dst, name, unix.O_RDONLY|unix.O_DIRECTORY)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // an earlier attempt found a file there
		return errors.Join(c.removeEntry(dst, name), errChanged)
	}
	if err != nil {
		return err
	}
	defer to.Close()
	if c.resumed { // it may have its final mode already
		if err := to.Chmod(0o700); err != nil {
			return err
		}
	}
	same, err := c.isCopy(to, &st, sameDir)
	if err != nil {
		return err
	}
	return c.directory(to, from, &st, rel, same)
}

// isCopy reports whether the entries of a directory were copied from the one with these
// attributes. For a directory copied by an earlier attempt that is not known: it counts as
// copied from it unless the source or one of its parents has changed, possibly by a rename.
func (c *treeCopy) isCopy(dst *os.File, st *unix.Stat_t, sameParent bool) (bool, error) {
	var copied unix.Stat_t
	if err := unix.Fstat(int(dst.Fd()), &copied); err != nil {
		return false, err
	}
	of, known := c.origins[copied.Ino]
	c.origins[copied.Ino] = st.Ino
	if known {
		return of == st.Ino, nil
	}
	return sameParent && !c.changed(st), nil
}

func (c *treeCopy) file(dst, src *os.File, name string, st *unix.Stat_t) (err error) {
	from, err := openIn(src, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer from.Close()
	var now unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &now); err != nil {
		return err
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG || now.Ino != st.Ino {
		return errChanged
	}
	if err := sameMount(src, from); err != nil {
		return err
	}
	*st = now
	to, err := openIn(dst, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }() // a network file system may report ENOSPC only here
	if err := c.copyData(to, from, st.Size, st.Blocks*512 < st.Size); err != nil {
		return err
	}
	if err := c.attributes(fdNode(to), fdNode(from), st); err != nil {
		return err
	}
	if err := to.Sync(); err != nil {
		return err
	}
	return fdNode(to).setTimes(st) // last: from here on it is complete
}

// chunk is how much is copied and synced between two reports of progress: with enough
// memory a whole file would stay in the page cache, and its sync then take minutes.
const chunk = 16 << 20

// copyData copies all but the holes.
func (c *treeCopy) copyData(to, from *os.File, size int64, holes bool) error {
	for at := int64(0); at < size; {
		begin, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		end := size
		if err != nil {
			begin = at
		} else if hole, err := from.Seek(begin, unix.SEEK_HOLE); err == nil {
			end = min(hole, size)
		}
		if begin == 0 && end == size && holes { // the file system does not report them
			return c.copyNonzero(to, from, size)
		}
		if _, err := from.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		if _, err := to.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		for at = begin; at < end; {
			n, err := io.CopyN(to, from, min(chunk, end-at))
			at += n
			if err == nil && n == chunk {
				err = to.Sync()
			}
			c.progress(0, n)
			if errors.Is(err, io.EOF) {
				return to.Truncate(at) // it was truncated during the copy
			}
			if err != nil {
				return err
			}
		}
	}
	return to.Truncate(size)
}

// copyNonzero copies a file with holes from a file system that does not report them, such as
// NFS before 4.2: it does not write zeros.
func (c *treeCopy) copyNonzero(to, from *os.File, size int64) error {
	const page = 4096
	zeros, buf := make([]byte, page), make([]byte, 1<<20)
	unsynced := 0
	for at := int64(0); at < size; {
		n, err := from.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		for i := 0; i < n; i += page {
			block := buf[i:min(i+page, n)]
			if bytes.Equal(block, zeros[:len(block)]) {
				continue
			}
			if _, err := to.WriteAt(block, at+int64(i)); err != nil {
				return err
			}
			unsynced += len(block)
		}
		if unsynced >= chunk {
			if err := to.Sync(); err != nil {
				return err
			}
			unsynced = 0
		}
		at += int64(n)
		c.progress(0, int64(n))
		if errors.Is(err, io.EOF) {
			return to.Truncate(at) // it was truncated during the copy
		}
		if err != nil {
			return err
		}
	}
	return to.Truncate(size)
}

func (c *treeCopy) special(dst, src *os.File, name string, st *unix.Stat_t) error {
	at := int(dst.Fd())
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readlink(src, name)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, at, name); err != nil {
			return err
		}
	} else if err := unix.Mknodat(at, name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev)); err != nil {
		return err
	}
	to := nameNode(dst, name)
	if err := c.attributes(to, nameNode(src, name), st); err != nil {
		return err
	}
	return to.setTimes(st)
}

// attributes sets all attributes except the times. The owner comes first, because changing
// it clears set-user-ID and file capabilities; NFSv4 ACLs come last, because they include
// the mode.
func (c *treeCopy) attributes(to, from node, st *unix.Stat_t) error {
	var have unix.Stat_t
	if err := to.stat(&have); err != nil {
		return err
	}
	if have.Uid != st.Uid || have.Gid != st.Gid {
		if err := to.chown(int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("set owner %d:%d: %w", st.Uid, st.Gid, err)
		}
	}
	if err := c.xattrs(to, from, func(name string) bool { return !strings.HasPrefix(name, "system.nfs4_") }); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := to.chmod(st.Mode & 0o7777); err != nil {
			return fmt.Errorf("set mode %o: %w", st.Mode&0o7777, err)
		}
	}
	return c.xattrs(to, from, func(name string) bool { return strings.HasPrefix(name, "system.nfs4_") })
}

// xattrs copies the extended attributes that are wanted, except the SELinux label, which
// depends on the location.
func (c *treeCopy) xattrs(to, from node, wanted func(name string) bool) error {
	names, err := from.listXattrs()
	if err != nil {
		return fmt.Errorf("list extended attributes: %w", err)
	}
	keep := map[string]bool{}
	for _, name := range names {
		if !wanted(name) || name == "security.selinux" {
			continue
		}
		keep[name] = true
		value, err := from.getXattr(name)
		if err != nil {
			return fmt.Errorf("read extended attribute %s: %w", name, err)
		}
		if have, err := to.getXattr(name); err == nil && string(have) == string(value) {
			continue
		}
		if err := to.setXattr(name, value); err != nil {
			return fmt.Errorf("set extended attribute %s: %w", name, err)
		}
	}
	if !c.resumed {
		return nil
	}
	// Entries of a directory that had its default ACL already have inherited it.
	have, err := to.listXattrs()
	if err != nil {
		return fmt.Errorf("list extended attributes: %w", err)
	}
	for _, name := range have {
		if strings.HasPrefix(name, "system.posix_acl_") && wanted(name) && !keep[name] {
			if err := to.removeXattr(name); err != nil {
				return fmt.Errorf("remove extended attribute %s: %w", name, err)
			}
		}
	}
	return nil
}

// removeOthers removes what is in dst and not in names.
func (c *treeCopy) removeOthers(dst *os.File, names []string) error {
	have, err := dst.Readdirnames(-1)
	if err != nil {
		return err
	}
	keep := make(map[string]bool, len(names))
	for _, name := range names {
		keep[name] = true
	}
	for _, name := range have {
		if !keep[name] {
			if err := c.removeEntry(dst, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeEntry removes a name, with all that is below it.
func (c *treeCopy) removeEntry(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == nil {
		c.progress(0, 0) // there may be many
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	sub, err := openIn(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := c.removeOthers(sub, nil); err != nil {
		return err
	}
	return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
}

// openIn opens one name in a directory, without following a link and, where permitted,
// without updating the access time.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	open := func(more int) (fd int, err error) {
		for {
			fd, err = unix.Openat(int(dir.Fd()), name, flags|more, 0o600)
			if !errors.Is(err, unix.EINTR) {
				return fd, err
			}
		}
	}
	fd, err := open(unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		fd, err = open(0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path.Join(dir.Name(), name)), nil
}

func readlink(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	return string(buf[:max(n, 0)]), err
}

// node identifies a file whose attributes are set: an open one, or, if it must not be
// opened, a name in an open directory.
type node struct {
	dir  *os.File
	name string // "": dir itself, which may be any kind of file
}

func fdNode(f *os.File) node               { return node{f, ""} }
func nameNode(dir *os.File, n string) node { return node{dir, n} }
func (n node) stat(st *unix.Stat_t) error  { return unix.Fstatat(n.fd(), n.name, st, n.flags()) }
func (n node) chown(uid, gid int) error    { return unix.Fchownat(n.fd(), n.name, uid, gid, n.flags()) }
func (n node) fd() int                     { return int(n.dir.Fd()) }
func (n node) setTimes(st *unix.Stat_t) error {
	times := []unix.Timespec{st.Atim, st.Mtim}
	if n.name == "" {
		return unix.UtimesNanoAt(unix.AT_FDCWD, n.path(), times, 0)
	}
	return unix.UtimesNanoAt(n.fd(), n.name, times, unix.AT_SYMLINK_NOFOLLOW)
}

func (n node) flags() int {
	if n.name == "" {
		return unix.AT_EMPTY_PATH
	}
	return unix.AT_SYMLINK_NOFOLLOW
}

// chmod is not for symbolic links, which have no mode.
func (n node) chmod(mode uint32) error {
	if n.name == "" {
		return unix.Fchmod(n.fd(), mode)
	}
	return unix.Fchmodat(n.fd(), n.name, mode, 0)
}

// path is for system calls without a variant for directory descriptors.
func (n node) path() string {
	p := fmt.Sprintf("/proc/self/fd/%d", n.fd())
	if n.name != "" {
		p += "/" + n.name
	}
	return p
}

func (n node) listXattrs() ([]string, error) {
	raw, err := n.read(func(buf []byte) (int, error) {
		if n.name == "" {
			return unix.Flistxattr(n.fd(), buf)
		}
		return unix.Llistxattr(n.path(), buf)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || len(raw) == 0 {
		return nil, ignore(err, unix.EOPNOTSUPP)
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00"), err
}

func (n node) getXattr(name string) ([]byte, error) {
	return n.read(func(buf []byte) (int, error) {
		if n.name == "" {
			return unix.Fgetxattr(n.fd(), name, buf)
		}
		return unix.Lgetxattr(n.path(), name, buf)
	})
}

func (n node) setXattr(name string, value []byte) error {
	if n.name == "" {
		return unix.Fsetxattr(n.fd(), name, value, 0)
	}
	return unix.Lsetxattr(n.path(), name, value, 0)
}

func (n node) removeXattr(name string) error {
	if n.name == "" {
		return unix.Fremovexattr(n.fd(), name)
	}
	return unix.Lremovexattr(n.path(), name)
}

// read calls get with a buffer that is large enough.
func (node) read(get func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := get(buf)
		if errors.Is(err, unix.ERANGE) && size <= 1<<20 {
			continue
		}
		return buf[:max(n, 0)], err
	}
}

func ignore(err error, errno unix.Errno) error {
	if errors.Is(err, errno) {
		return nil
	}
	return err
}
