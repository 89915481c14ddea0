package crash

import (
	"golang.org/x/sys/unix"
)

// legacyKinds are the calls that the *at family replaced; C libraries on amd64 still use
// them.
var legacyKinds = map[uint64]kind{
	unix.SYS_OPEN:      {name: "open", paths: []int{0}, fd: noFD, counts: func(_ int, a []uint64) bool { return creates(a[1]) }},
	unix.SYS_CREAT:     {name: "creat", paths: []int{0}, fd: noFD},
	unix.SYS_MKDIR:     {name: "mkdir", paths: []int{0}, fd: noFD},
	unix.SYS_MKNOD:     {name: "mknod", paths: []int{0}, fd: noFD},
	unix.SYS_RMDIR:     {name: "rmdir", paths: []int{0}, fd: noFD},
	unix.SYS_UNLINK:    {name: "unlink", paths: []int{0}, fd: noFD},
	unix.SYS_RENAME:    {name: "rename", paths: []int{0, 1}, fd: noFD},
	unix.SYS_LINK:      {name: "link", paths: []int{0, 1}, fd: noFD},
	unix.SYS_SYMLINK:   {name: "symlink", paths: []int{0, 1}, fd: noFD},
	unix.SYS_CHMOD:     {name: "chmod", paths: []int{0}, fd: noFD},
	unix.SYS_CHOWN:     {name: "chown", paths: []int{0}, fd: noFD},
	unix.SYS_LCHOWN:    {name: "lchown", paths: []int{0}, fd: noFD},
	unix.SYS_UTIME:     {name: "utime", paths: []int{0}, fd: noFD},
	unix.SYS_UTIMES:    {name: "utimes", paths: []int{0}, fd: noFD},
	unix.SYS_FUTIMESAT: {name: "futimesat", paths: []int{1}, fd: noFD},
	unix.SYS_FORK:      {name: "fork", fd: noFD},
	unix.SYS_VFORK:     {name: "vfork", fd: noFD},
}
