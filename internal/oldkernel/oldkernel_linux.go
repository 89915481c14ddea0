package oldkernel

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A call came with a version. From 424 on, all architectures have the same numbers.
var calls = []struct {
	major, minor int
	first, last  uint32 // numbers
}{
	{5, 1, 424, 427},  // pidfd_send_signal, io_uring_setup, io_uring_enter, io_uring_register
	{5, 2, 428, 433},  // open_tree, move_mount, fsopen, fsconfig, fsmount, fspick
	{5, 3, 434, 435},  // pidfd_open, clone3
	{5, 6, 437, 438},  // openat2, pidfd_getfd
	{5, 8, 439, 439},  // faccessat2
	{5, 9, 436, 436},  // close_range
	{5, 10, 440, 440}, // process_madvise
	{5, 11, 441, 441}, // epoll_pwait2
	{5, 12, 442, 442}, // mount_setattr
	{5, 13, 444, 446}, // landlock
	{5, 14, 443, 443}, // quotactl_fd
	{5, 14, 447, 447}, // memfd_secret
	{5, 15, 448, 500}, // and all that followed, such as statmount and listmount
}

const loopConfigure = 0x4c0a // of linux/loop.h, 5.8

// FromEnv imitates the kernel that [Env] names, if it is set, for this process and its children.
// Call it first in TestMain.
func FromEnv() {
	version := os.Getenv(Env)
	if version == "" {
		return
	}
	if err := imitate(version); err != nil {
		fmt.Fprintln(os.Stderr, "oldkernel:", err)
		os.Exit(2)
	}
}

func imitate(version string) error {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("%s=%q: want a version such as 4.18: %w", Env, version, err)
	}
	newer := func(a, b int) bool { return a > major || a == major && b > minor }
	const (
		numberAt  = 0      // of struct seccomp_data: nr
		requestAt = 16 + 8 // args[1], its low half: amd64 and arm64 are little endian
		load      = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		ret       = unix.BPF_RET | unix.BPF_K
		notEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atLeast   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		above     = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	)
	filter := []unix.SockFilter{{Code: load, K: numberAt}}
	for _, c := range calls {
		if newer(c.major, c.minor) {
			filter = append(filter,
				unix.SockFilter{Code: atLeast, K: c.first, Jf: 2},
				unix.SockFilter{Code: above, K: c.last, Jt: 1},
				unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
		}
	}
	if newer(5, 8) {
		filter = append(filter,
			unix.SockFilter{Code: notEqual, K: unix.SYS_IOCTL, Jf: 3},
			unix.SockFilter{Code: load, K: requestAt},
			unix.SockFilter{Code: notEqual, K: loopConfigure, Jf: 1},
			unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)})
	}
	filter = append(filter, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})

	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// TSYNC: for all threads of this process.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH}); err == nil {
		_ = unix.Close(fd)
		if newer(5, 6) {
			return fmt.Errorf("openat2 of Linux 5.6 succeeds under the filter for %s", version)
		}
	}
	return nil
}
