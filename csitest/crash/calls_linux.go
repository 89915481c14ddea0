//go:build amd64 || arm64

package crash

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A kind describes a system call that may count.
type kind struct {
	name   string
	paths  []int                          // arguments that are paths
	fd     int                            // argument that is a descriptor, or noFD
	counts func(tid int, a []uint64) bool // nil: always
}

const noFD = -1

var kinds = map[uint64]kind{
	unix.SYS_OPENAT:          {name: "openat", paths: []int{1}, fd: noFD, counts: func(_ int, a []uint64) bool { return creates(a[2]) }},
	unix.SYS_OPENAT2:         {name: "openat2", paths: []int{1}, fd: noFD, counts: func(tid int, a []uint64) bool { return creates(firstWord(tid, a[2])) }},
	unix.SYS_MKDIRAT:         {name: "mkdirat", paths: []int{1}, fd: noFD},
	unix.SYS_MKNODAT:         {name: "mknodat", paths: []int{1}, fd: noFD},
	unix.SYS_UNLINKAT:        {name: "unlinkat", paths: []int{1}, fd: noFD},
	unix.SYS_RENAMEAT:        {name: "renameat", paths: []int{1, 3}, fd: noFD},
	unix.SYS_RENAMEAT2:       {name: "renameat2", paths: []int{1, 3}, fd: noFD},
	unix.SYS_LINKAT:          {name: "linkat", paths: []int{1, 3}, fd: noFD},
	unix.SYS_SYMLINKAT:       {name: "symlinkat", paths: []int{0, 2}, fd: noFD},
	unix.SYS_TRUNCATE:        {name: "truncate", paths: []int{0}, fd: noFD},
	unix.SYS_FTRUNCATE:       {name: "ftruncate"},
	unix.SYS_FALLOCATE:       {name: "fallocate"},
	unix.SYS_FSYNC:           {name: "fsync"},
	unix.SYS_FDATASYNC:       {name: "fdatasync"},
	unix.SYS_SYNC:            {name: "sync", fd: noFD},
	unix.SYS_SYNCFS:          {name: "syncfs"},
	unix.SYS_WRITE:           {name: "write", counts: writesStorage},
	unix.SYS_WRITEV:          {name: "writev", counts: writesStorage},
	unix.SYS_PWRITE64:        {name: "pwrite64", counts: writesStorage},
	unix.SYS_PWRITEV:         {name: "pwritev", counts: writesStorage},
	unix.SYS_PWRITEV2:        {name: "pwritev2", counts: writesStorage},
	unix.SYS_SENDFILE:        {name: "sendfile", counts: writesStorage},
	unix.SYS_SPLICE:          {name: "splice", fd: 2, counts: func(tid int, a []uint64) bool { return isStorage(tid, a[2]) }},
	unix.SYS_COPY_FILE_RANGE: {name: "copy_file_range", fd: 2},
	unix.SYS_FCHMOD:          {name: "fchmod"},
	unix.SYS_FCHMODAT:        {name: "fchmodat", paths: []int{1}, fd: noFD},
	unix.SYS_FCHMODAT2:       {name: "fchmodat2", paths: []int{1}, fd: noFD},
	unix.SYS_FCHOWN:          {name: "fchown"},
	unix.SYS_FCHOWNAT:        {name: "fchownat", paths: []int{1}, fd: noFD},
	unix.SYS_UTIMENSAT:       {name: "utimensat", paths: []int{1}, fd: noFD},
	unix.SYS_SETXATTR:        {name: "setxattr", paths: []int{0, 1}, fd: noFD},
	unix.SYS_LSETXATTR:       {name: "lsetxattr", paths: []int{0, 1}, fd: noFD},
	unix.SYS_FSETXATTR:       {name: "fsetxattr"},
	unix.SYS_REMOVEXATTR:     {name: "removexattr", paths: []int{0, 1}, fd: noFD},
	unix.SYS_LREMOVEXATTR:    {name: "lremovexattr", paths: []int{0, 1}, fd: noFD},
	unix.SYS_FREMOVEXATTR:    {name: "fremovexattr"},
	unix.SYS_IOCTL:           {name: "ioctl", counts: func(_ int, a []uint64) bool { return !readsOnly(a[1]) }},
	unix.SYS_MOUNT:           {name: "mount", paths: []int{0, 1}, fd: noFD},
	unix.SYS_UMOUNT2:         {name: "umount2", paths: []int{0}, fd: noFD},
	unix.SYS_OPEN_TREE:       {name: "open_tree", paths: []int{1}, fd: noFD},
	unix.SYS_MOVE_MOUNT:      {name: "move_mount", paths: []int{1, 3}, fd: noFD},
	unix.SYS_MOUNT_SETATTR:   {name: "mount_setattr", paths: []int{1}, fd: noFD},
	unix.SYS_FSOPEN:          {name: "fsopen", paths: []int{0}, fd: noFD},
	unix.SYS_FSPICK:          {name: "fspick", paths: []int{1}, fd: noFD},
	unix.SYS_FSCONFIG:        {name: "fsconfig"},
	unix.SYS_FSMOUNT:         {name: "fsmount"},
	unix.SYS_CLONE:           {name: "clone", fd: noFD, counts: func(_ int, a []uint64) bool { return a[0]&unix.CLONE_THREAD == 0 }},
	unix.SYS_CLONE3:          {name: "clone3", fd: noFD, counts: func(tid int, a []uint64) bool { return firstWord(tid, a[0])&unix.CLONE_THREAD == 0 }},
}

// readKinds are the calls that count with CountReads, before those in kinds.
var readKinds = map[uint64]kind{
	unix.SYS_OPENAT:       {name: "openat", paths: []int{1}, fd: noFD},
	unix.SYS_OPENAT2:      {name: "openat2", paths: []int{1}, fd: noFD},
	unix.SYS_STATX:        {name: "statx", paths: []int{1}, fd: noFD},
	unix.SYS_NEWFSTATAT:   {name: "newfstatat", paths: []int{1}, fd: noFD},
	unix.SYS_FSTAT:        {name: "fstat"},
	unix.SYS_STATFS:       {name: "statfs", paths: []int{0}, fd: noFD},
	unix.SYS_FSTATFS:      {name: "fstatfs"},
	unix.SYS_READLINKAT:   {name: "readlinkat", paths: []int{1}, fd: noFD},
	unix.SYS_GETDENTS64:   {name: "getdents64"},
	unix.SYS_READ:         {name: "read", counts: func(tid int, a []uint64) bool { return isStorage(tid, a[0]) }},
	unix.SYS_PREAD64:      {name: "pread64"},
	unix.SYS_LSEEK:        {name: "lseek"},
	unix.SYS_MEMFD_CREATE: {name: "memfd_create", paths: []int{0}, fd: noFD},
	unix.SYS_STATMOUNT:    {name: "statmount", fd: noFD},
	unix.SYS_LISTMOUNT:    {name: "listmount", fd: noFD},
	unix.SYS_IOCTL:        {name: "ioctl"},
}

// observe returns the call on whose entry, or for a wait exit, thread tid has
// stopped, and whether it counts. waits remembers which wait a thread is in.
func (i *syscallInfo) observe(tid int, waits map[int]string, reads bool) (Call, bool) {
	switch i.op {
	case unix.PTRACE_SYSCALL_INFO_ENTRY:
		delete(waits, tid)
		nr, args := i.data[0], i.data[1:7]
		switch nr {
		case unix.SYS_WAIT4:
			waits[tid] = "wait4"
		case unix.SYS_WAITID:
			waits[tid] = "waitid"
		}
		k, known := readKinds[nr]
		if !known || !reads {
			k, known = kinds[nr]
		}
		if !known {
			k, known = legacyKinds[nr]
		}
		if !known || k.counts != nil && !k.counts(tid, args) {
			return Call{}, false
		}
		return Call{Name: k.name, Object: k.object(tid, args)}, true
	case unix.PTRACE_SYSCALL_INFO_EXIT:
		name := waits[tid]
		delete(waits, tid)
		failed := uint8(i.data[1]) != 0
		none := name == "wait4" && i.data[0] == 0 // WNOHANG
		return Call{Name: name + " returned"}, name != "" && !failed && !none
	}
	return Call{}, false
}

func (k kind) object(tid int, args []uint64) string {
	var names []string
	for _, i := range k.paths {
		names = append(names, readString(tid, args[i]))
	}
	if k.fd != noFD {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(args[k.fd])))
		if err != nil {
			name = fmt.Sprintf("descriptor %d", int32(args[k.fd]))
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// creates determines from the flags of open whether it may change anything.
func creates(flags uint64) bool {
	const tmpfile = unix.O_TMPFILE &^ unix.O_DIRECTORY
	return flags&(unix.O_CREAT|unix.O_TRUNC|tmpfile) != 0
}

func writesStorage(tid int, a []uint64) bool {
	fd := int32(a[0])
	return fd != 1 && fd != 2 && isStorage(tid, a[0])
}

func isStorage(tid int, fd uint64) bool {
	var stat unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)), &stat) != nil {
		return false
	}
	format := stat.Mode & unix.S_IFMT
	return format == unix.S_IFREG || format == unix.S_IFBLK
}

// readsOnly reports whether an ioctl only reads. Newer numbers say so themselves.
func readsOnly(request uint64) bool {
	const directionShift, read = 30, 2
	const fiemap = 0xc020660b // FS_IOC_FIEMAP
	return request>>directionShift&3 == read || slices.Contains([]uint64{
		unix.TCGETS, unix.TIOCGWINSZ, unix.TIOCGPGRP, unix.TIOCINQ,
		unix.BLKROGET, unix.BLKGETSIZE, unix.BLKRAGET, unix.BLKFRAGET, unix.BLKSECTGET, unix.BLKSSZGET,
		unix.BLKIOMIN, unix.BLKIOOPT, unix.BLKALIGNOFF, unix.BLKPBSZGET, unix.BLKDISCARDZEROES, unix.BLKROTATIONAL,
		unix.LOOP_GET_STATUS, unix.LOOP_GET_STATUS64,
		fiemap,
	}, request)
}

// firstWord reads the first member of a struct that a call passes.
func firstWord(tid int, address uint64) uint64 {
	var word [8]byte
	if readMemory(tid, address, word[:]) < len(word) {
		return 0
	}
	return binary.NativeEndian.Uint64(word[:])
}

func readString(tid int, address uint64) string {
	if address == 0 {
		return "NULL"
	}
	var text [256]byte
	n := readMemory(tid, address, text[:])
	return unix.ByteSliceToString(text[:n])
}

func readMemory(tid int, address uint64, into []byte) int {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return 0
	}
	defer mem.Close()
	n, _ := mem.ReadAt(into, int64(address)) // short where the mapping ends
	return n
}
