package exportdir

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A copy is identical to its source, with all metadata
// (kubernetes-csi/csi-driver-nfs#1117: times and owners were lost).
func TestCopyTree(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	kinds := makeTree(t, src, 2000, 1<<32)
	t.Logf("the tree has %s", strings.Join(kinds, ", "))
	want := describe(t, src)
	must(t, copyDir(dst, src, func(int64, int64) {}))
	compareTrees(t, describe(t, dst), want)
	if again := describe(t, src); !maps.Equal(again, want) {
		compareTrees(t, again, want)
		t.Error("the copy has changed the source")
	}
}

// A copy has the ACLs of its source, not those that new files inherit from the export.
func TestCopyTreeInheritance(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	makeTree(t, src, 3, 1<<20)
	must(t, unix.Setxattr(dst, "system.posix_acl_default", posixACL(7, 7, uint32(os.Getuid()), 7, 7, 5), 0))
	must(t, os.Mkdir(filepath.Join(dst, "data"), 0o700))
	must(t, copyDir(filepath.Join(dst, "data"), src, func(int64, int64) {}))
	compareTrees(t, describe(t, filepath.Join(dst, "data")), describe(t, src))
}

// Data that is reported as copied is not only in the page cache: writing a large file to
// a slow server at the end could take minutes without progress, as if the server was
// unresponsive.
func TestCopyTreeSyncs(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	var fs unix.Statfs_t
	must(t, unix.Statfs(dst, &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("here it is in memory anyway")
	}
	must(t, os.WriteFile(filepath.Join(src, "large"), bytes.Repeat([]byte("text"), 2*chunk/4+1), 0o600))
	for _, holes := range []bool{false, true} {
		from, err := os.Open(filepath.Join(src, "large"))
		must(t, err)
		defer from.Close()
		to, err := os.Create(filepath.Join(dst, "large"))
		must(t, err)
		defer to.Close()
		var copied, unsynced int64
		c := &treeCopy{progress: func(_, n int64) {
			copied += n
			var cached unix.Cachestat_t
			err := unix.Cachestat(uint(to.Fd()), &unix.CachestatRange{}, &cached, 0)
			if errors.Is(err, unix.ENOSYS) {
				t.Skip("cachestat(2) is since Linux 6.5")
			}
			must(t, err)
			unsynced = max(unsynced, int64(cached.Dirty+cached.Writeback)*int64(os.Getpagesize()))
		}}
		if holes {
			err = c.copyNonzero(to, from, 2*chunk+4)
		} else {
			err = c.copyData(to, from, 2*chunk+4, false)
		}
		must(t, err)
		if copied != 2*chunk+4 || unsynced >= chunk {
			t.Errorf("%d bytes were in memory of %d reported as copied", unsynced, copied)
		}
	}
}

// Removing what is no longer in the source counts as progress.
func TestCopyTreeReportsProgressOfRemovals(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(dst, "gone"), 0o700))
	const many = 100
	for i := range many {
		must(t, os.WriteFile(filepath.Join(dst, "gone", fmt.Sprint(i)), nil, 0o600))
	}
	reports := 0
	must(t, copyDir(dst, src, func(int64, int64) { reports++ }))
	if reports < many {
		t.Errorf("%d progress reports while %d files were removed", reports, many)
	}
	compareTrees(t, describe(t, dst), describe(t, src))
}

// A copy that is interrupted at any point can be resumed, also if the source has changed
// in between.
func TestCopyTreeResumed(t *testing.T) {
	src := t.TempDir()
	makeTree(t, src, 3, 1<<32)
	steps := 0
	must(t, copyDir(t.TempDir(), src, func(int64, int64) { steps++ }))
	for n := range steps {
		dst := t.TempDir()
		interruptAt(dst, src, n)
		switch n % 4 { // a different file each time, and one that may be copied already
		case 1:
			must(t, os.WriteFile(filepath.Join(src, "plain"), fmt.Append(nil, "changed ", n), 0o600))
		case 2: // a file becomes a directory, or the other way round
			name := filepath.Join(src, "sub", "changing")
			if info, err := os.Lstat(name); err == nil && info.IsDir() {
				must(t, os.RemoveAll(name))
				must(t, os.WriteFile(name, []byte("a file"), 0o644))
			} else {
				must(t, os.RemoveAll(name))
				must(t, os.MkdirAll(filepath.Join(name, "below"), 0o755))
			}
		case 3:
			must(t, os.WriteFile(filepath.Join(src, fmt.Sprint("new", n)), nil, 0o600))
			os.Remove(filepath.Join(src, fmt.Sprint("new", n-4)))
			// In a directory whose copy may have its default ACL already.
			file := filepath.Join(src, "many", fmt.Sprint("new", n))
			must(t, os.WriteFile(file, nil, 0o600))
			_ = unix.Removexattr(file, "system.posix_acl_access")
		}
		interruptAt(dst, src, n+1)
		want := describe(t, src)
		must(t, copyDir(dst, src, func(int64, int64) {}))
		compareTrees(t, describe(t, dst), want)
		if t.Failed() {
			t.Fatalf("interrupted at step %d of %d", n, steps)
		}
	}
	t.Logf("interrupted at %d steps", steps)
}

// Complete files are not copied again.
func TestCopyTreeRepeated(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	makeTree(t, src, 3, 1<<32)
	must(t, copyDir(dst, src, func(int64, int64) {}))
	must(t, copyDir(dst, src, func(_, bytes int64) {
		if bytes > 0 {
			t.Error("data was copied again")
		}
	}))
}

func TestCopyTreeFails(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	src, dst := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "secret"), nil, 0))
	err := copyDir(dst, src, func(int64, int64) {})
	if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "secret") {
		t.Errorf("copying what may not be read: %v", err)
	}
}

func copyDir(dst, src string, progress func(files, bytes int64)) error {
	to, err := os.Open(dst)
	if err != nil {
		return err
	}
	defer to.Close()
	from, err := os.Open(src)
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = copyTree(to, from, time.Time{}, origins{}, progress)
	return err
}

// interruptAt ends a copy at its n-th step without any of what follows.
func interruptAt(dst, src string, n int) {
	defer func() { _ = recover() }()
	copyDir(dst, src, func(int64, int64) {
		if n--; n < 0 {
			panic("killed")
		}
	})
}

// makeTree creates a file of every kind that it is permitted to, and returns which.
func makeTree(t *testing.T, dir string, many int, sparseSize int64) (kinds []string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, mode fs.FileMode, data string) {
		t.Helper()
		must(t, os.WriteFile(in(name), []byte(data), 0o600))
		must(t, os.Chmod(in(name), mode))
	}
	kind := func(name string, err error) {
		t.Helper()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			return // not for this user, or not on this file system
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kinds = append(kinds, name)
	}
	for _, d := range []string{"sub", "sub/deep", "empty", "locked", "sgid", "many"} {
		must(t, os.Mkdir(in(d), 0o755))
	}
	write("plain", 0o644, "precious")
	write("none", 0, "nobody may")
	write("readonly", 0o444, "look only")
	write("suid", 0o755|fs.ModeSetuid|fs.ModeSetgid, "#!/bin/sh")
	write("empty-file", 0o600, "")
	write("sub/name with\nline break", 0o640, "x")
	write("sub/\xff\xfe is not UTF-8", 0o640, "x")
	write("sub/"+strings.Repeat("n", 255), 0o640, "x")
	write("locked/inside", 0o600, "x")
	for i := range many {
		write(fmt.Sprintf("many/%d", i), 0o600, fmt.Sprint(i))
	}
	random := make([]byte, 3<<20+17)
	rand.New(rand.NewSource(1)).Read(random)
	must(t, os.WriteFile(in("large"), random, 0o600))
	kinds = append(kinds, "directories", "files", "set-ID bits", "names of all sorts")

	sparse, err := os.Create(in("sparse"))
	must(t, err)
	_, err = sparse.WriteAt(random[:70000], 1<<20)
	must(t, err)
	_, err = sparse.WriteAt(random[:10], 9<<20)
	must(t, err)
	must(t, sparse.Truncate(sparseSize))
	must(t, sparse.Close())
	must(t, os.Truncate(in("empty-file"), sparseSize/4))
	kinds = append(kinds, "holes")

	must(t, os.Symlink("plain", in("link")))
	must(t, os.Symlink("/nowhere/"+strings.Repeat("long/", 200), in("sub/dangling")))
	must(t, os.Symlink("../..", in("sub/up")))
	must(t, os.Link(in("plain"), in("sub/hard")))
	must(t, os.Link(in("plain"), in("sub/deep/hard")))
	kind("symbolic links", nil)
	kind("hard links", nil)
	kind("a hard link to a symbolic link", unix.Linkat(unix.AT_FDCWD, in("link"), unix.AT_FDCWD, in("sub/same link"), 0))
	kind("FIFOs", unix.Mkfifo(in("fifo"), 0o620))
	if len(in("socket")) < 100 {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: in("socket"), Net: "unix"})
		must(t, err)
		l.SetUnlinkOnClose(false)
		must(t, l.Close())
		kinds = append(kinds, "sockets")
	}
	kind("character devices", unix.Mknod(in("chr"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	kind("block devices", unix.Mknod(in("blk"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200))))

	kind("owners", os.Lchown(in("sub/deep"), 4711, 4712))
	kind("owners of links", os.Lchown(in("sub/up"), 1, 2))
	kind("owners of files", os.Chown(in("readonly"), 12345678, 87654321))
	kind("extended attributes", unix.Setxattr(in("plain"), "user.csikit", []byte("value\x00with NUL"), 0))
	kind("extended attributes of directories", unix.Setxattr(in("sub"), "user.large", random[:600], 0))
	kind("empty extended attributes", unix.Setxattr(in("large"), "user.empty", nil, 0))
	kind("trusted extended attributes of links", unix.Lsetxattr(in("link"), "trusted.csikit", []byte("x"), 0))
	kind("file capabilities", unix.Setxattr(in("large"), "security.capability",
		[]byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	kind("ACLs", unix.Setxattr(in("large"), "system.posix_acl_access", posixACL(7, 5, 4711, 4, 5, 0), 0))
	kind("default ACLs", unix.Setxattr(in("many"), "system.posix_acl_default", posixACL(7, 6, 4711, 5, 7, 1), 0))
	must(t, os.Mkdir(in("many/with ACL"), 0o755))

	must(t, os.Chmod(in("sgid"), 0o775|fs.ModeSetgid|fs.ModeSticky))
	must(t, os.Chmod(in("sub/deep"), 0o1777))
	long := time.Unix(-86400, 123456789)
	for i, name := range []string{"large", "fifo", "empty", "sub/deep", "sub", "many", "link", "."} {
		at := long.Add(time.Duration(i) * 7777777 * time.Second)
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(name), []unix.Timespec{timespec(at.Add(time.Hour)), timespec(at)}, unix.AT_SYMLINK_NOFOLLOW))
	}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, in("suid"), []unix.Timespec{timespec(long), timespec(time.Unix(4102444800, 1))}, 0))
	must(t, os.Chmod(in("locked"), 0o500))
	t.Cleanup(func() { os.Chmod(in("locked"), 0o700) })
	kinds = append(kinds, "times")
	return kinds
}

func timespec(at time.Time) unix.Timespec {
	return unix.Timespec{Sec: at.Unix(), Nsec: int64(at.Nanosecond())}
}

// posixACL returns the value of such an attribute, with one named user.
func posixACL(user, named uint16, uid uint32, group, mask, other uint16) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, user, 1<<32 - 1}, {2, named, uid}, {4, group, 1<<32 - 1}, {16, mask, 1<<32 - 1}, {32, other, 1<<32 - 1}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// describe returns all metadata below a directory, by path.
func describe(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	first := map[uint64]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.Getuid() != 0 && errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		text := fmt.Sprintf("mode %o owner %d:%d mtime %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR: // walking it is an access
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			must(t, err)
			text += " to " + target
		default:
			text += fmt.Sprintf(" atime %d.%09d size %d device %d", st.Atim.Sec, st.Atim.Nsec, st.Size, st.Rdev)
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			text += fmt.Sprintf(" %d names, the first is %q", st.Nlink, first[st.Ino])
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			text += content(t, path)
		}
		all[rel] = text + xattrsOf(t, path)
		return nil
	}))
	return all
}

func content(t *testing.T, path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return " unreadable"
	}
	must(t, err)
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	text, sum := " data", sha256.New()
	for at := int64(0); at < info.Size(); {
		begin, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		must(t, err)
		end, err := f.Seek(begin, unix.SEEK_HOLE)
		must(t, err)
		text += fmt.Sprintf(" [%d,%d)", begin, end)
		_, err = io.Copy(sum, io.NewSectionReader(f, begin, end-begin))
		must(t, err)
		at = end
	}
	return fmt.Sprintf("%s sum %x", text, sum.Sum(nil)[:8])
}

func xattrsOf(t *testing.T, path string) string {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ""
	}
	must(t, err)
	names := strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if errors.Is(err, unix.EACCES) {
			continue // user.* of what may not be read
		}
		must(t, err)
		fmt.Fprintf(&text, " %s=%x", name, value[:n])
	}
	return text.String()
}

func compareTrees(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%q\n is %s\nwant %s", name, got[name], text)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("%q is only in the copy", name)
		}
	}
}

// If an inode number is reused during the copy, the new file is not a hard link of the
// first one.
func TestCopyTreeReusedInode(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	in := func(name string) string { return filepath.Join(src, name) }
	for _, name := range []string{"a", "b"} {
		must(t, os.Mkdir(in(name), 0o755))
		must(t, os.WriteFile(in(name+"/linked"), []byte("old"), 0o600))
		must(t, os.Link(in(name+"/linked"), in(name+"/other")))
	}
	inodeOf := func(name string) uint64 {
		var st unix.Stat_t
		must(t, unix.Lstat(name, &st))
		return st.Ino
	}
	done, reused := false, false
	must(t, copyDir(dst, src, func(int64, int64) {
		for _, name := range []string{"a", "b"} { // the first that is copied, into new files in the second
			if _, err := os.Lstat(filepath.Join(dst, name, "linked")); err != nil || done {
				continue
			}
			done = true
			other := in(map[string]string{"a": "b", "b": "a"}[name])
			free := inodeOf(in(name + "/linked"))
			must(t, errors.Join(os.RemoveAll(in(name)), os.RemoveAll(other), os.Mkdir(other, 0o755)))
			for i := range 500 {
				file := filepath.Join(other, fmt.Sprint(i))
				must(t, os.WriteFile(file, []byte("new"), 0o600))
				reused = reused || inodeOf(file) == free
			}
		}
	}))
	if !reused {
		t.Skip("no number was used again on this file system")
	}
	must(t, filepath.WalkDir(dst, func(path string, d fs.DirEntry, err error) error {
		if data, _ := os.ReadFile(path); err == nil && d.Type().IsRegular() && d.Name() != "linked" && d.Name() != "other" && string(data) != "new" {
			t.Errorf("%s has %q", path, data)
		}
		return err
	}))
}

// Two names that were one file during the interrupted attempt become two files if they
// are two by now.
func TestCopyTreeUnlinked(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	at := time.Unix(1, 0) // as of files from an archive
	write := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(src, name), []byte(text), 0o600))
		must(t, os.Chtimes(filepath.Join(src, name), at, at))
	}
	link := func(a, b string) { must(t, os.Link(filepath.Join(src, a), filepath.Join(src, b))) }
	const many = 50 // whatever the order in which they are copied
	for i := range many {
		write(fmt.Sprint("a", i), "one")
		link(fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	must(t, copyDir(dst, src, func(int64, int64) {}))
	for i := range many {
		must(t, os.Remove(filepath.Join(src, fmt.Sprint("b", i))))
		write(fmt.Sprint("b", i), "two")
		link(fmt.Sprint("a", i), fmt.Sprint("c", i))
		link(fmt.Sprint("b", i), fmt.Sprint("d", i))
	}
	must(t, copyDir(dst, src, func(int64, int64) {}))
	for i := range many {
		var a, b unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dst, fmt.Sprint("a", i)), &a))
		must(t, unix.Lstat(filepath.Join(dst, fmt.Sprint("b", i)), &b))
		if a.Ino == b.Ino {
			t.Errorf("two files are one in the copy: a%d and b%d", i, i)
		}
	}
}
