package crash

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// skipCall keeps the kernel from running the call on whose entry thread tid has
// stopped. The thread stops on its exit nevertheless. The kernel has read the number
// from its register before the stop, so it is changed where the kernel keeps it.
func skipCall(tid int) error {
	number := int32(-1)
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&number)), Len: uint64(unsafe.Sizeof(number))}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid),
		unix.NT_ARM_SYSTEM_CALL, uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func resultRegister(regs *unix.PtraceRegs) *uint64 { return &regs.Regs[0] }
