//go:build amd64 || arm64

package crash

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is the part of siginfo_t that waitid fills in, on 64-bit systems.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	_                     [108]byte
}

// nextEvent waits for a child of this thread, and of no other thread of the test, to
// stop or end, and leaves it as it is. The children are those in process group pgid:
// before this thread became a tracer, os/exec may have started programs on it that
// another goroutine waits for.
func nextEvent(pgid int) (pid int, ended bool, err error) {
	const cldExited, cldKilled, cldDumped = 1, 2, 3
	var info siginfo
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PGID, uintptr(pgid), uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WSTOPPED|unix.WALL|unix.WNOTHREAD|unix.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return int(info.pid), info.code == cldExited || info.code == cldKilled || info.code == cldDumped, nil
		case unix.EINTR:
		default:
			return 0, false, os.NewSyscallError("waitid", errno)
		}
	}
}

func wait4(pid int, status *unix.WaitStatus, options int) (int, error) {
	for {
		if pid, err := unix.Wait4(pid, status, options, nil); err != unix.EINTR {
			return pid, err
		}
	}
}

// syscallInfo is struct ptrace_syscall_info. At an exit stop, data[0] is the result and
// the lowest byte of data[1] reports whether it is an error.
type syscallInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64 // instruction and stack pointer
	data [8]uint64
}

func getSyscallInfo(tid int) (*syscallInfo, error) {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return nil, errno
	}
	return &info, nil
}

// setResult replaces the result of the call on whose exit thread tid has stopped.
func setResult(tid int, errno syscall.Errno) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	*resultRegister(&regs) = uint64(-int64(errno))
	return unix.PtraceSetRegs(tid, &regs)
}
