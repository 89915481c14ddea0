package mountapi

// Calls is a set of system calls, by the Linux version that brought them.
type Calls uint8

const (
	TreeCalls    Calls = 1 << iota // open_tree and mount_setattr, 5.12; else mount(2)
	ContextCalls                   // fsopen, fsconfig and fsmount, 5.2; else mount(2)
	StatCalls                      // statmount with the source, 6.13; else the whole mount table
)

// A Kernel is the running kernel, of which some system calls are not used, as if it were an
// older one. The zero value uses all of them, as the functions of this package do.
type Kernel struct {
	Without Calls

	fail func(step string) error // lets a test fail a step of the fallback
}

// Root identifies what a tree shows where it is attached.
type Root struct {
	Major, Minor         uint32 // st_dev: the device of the file system, but for btrfs; see Open
	BlockDevice          bool   // the root is a block device node, of this number:
	RdevMajor, RdevMinor uint32
}

// CloneTree makes a detached copy of the mount (or of the file) at source, without
// the mounts below it and with attr added to what it inherits. A symlink is
// refused (ELOOP).
func CloneTree(source string, attr Attr) (*Tree, error) { return Kernel{}.CloneTree(source, attr) }

// NewTree creates a detached mount of the file system of type fsType on the
// block device at source. An option that the file system does not take is
// ErrOption. What the kernel logs about a refusal is in the error from Linux 5.2
// on; before, an EINVAL counts as ErrOption if there are any options in o.Data,
// because that kernel does not distinguish one from a file system that it cannot read.
func NewTree(fsType, source string, o Options) (*Tree, error) {
	return Kernel{}.NewTree(fsType, source, o)
}

// At returns the mounts that are stacked on the path itself, each as [Table]
// describes it, the top last; none when the path is missing or a symlink. Unlike
// Table, it leaves out a mount on a directory that is itself covered by another mount.
//
// Its cost does not depend on the number of mounts where the kernel has
// statmount. It then calls statx on what is mounted there, without asking a server for fresh
// attributes; a stale network file system may block it all the same. Teardown must use Table.
func At(path string) ([]Mount, error) { return Kernel{}.At(path) }
