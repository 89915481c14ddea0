package mountapi

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filtered is a process that binds and mounts under a seccomp filter which
// refuses all newer calls with the errno of the first argument, in the directory
// of the second.
func filtered() {
	if err := mountFiltered(os.Args[1], os.Args[2]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(hasTreeCalls(), hasContextCalls(), hasStatCalls())
}

func mountFiltered(errno, dir string) error {
	runtime.LockOSThread() // the filter is this thread's
	if err := refuse(errno, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_STATMOUNT); err != nil {
		return err
	}
	target := filepath.Join(dir, "target")
	if err := bind(Kernel{}, dir, target, ReadOnly); err != nil {
		return err
	}
	on, err := At(target)
	if err != nil || len(on) != 1 || !on[0].MountReadOnly() {
		return fmt.Errorf("bound as %v, %w", on, err)
	}
	if _, err := Unmount(target); err != nil {
		return err
	}
	tree, err := NewTree("tmpfs", "tmpfs", Options{Data: []string{"size=1m"}})
	if err != nil {
		return err
	}
	if err := tree.Attach(target); err != nil {
		return err
	}
	if err := tree.Close(); err != nil {
		return err
	}
	_, err = Unmount(target)
	return err
}

func refuse(errno string, calls ...uint32) error {
	var e uint32
	if _, err := fmt.Sscan(errno, &e); err != nil {
		return err
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for i, nr := range calls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(calls) - i), K: nr})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | e})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}
