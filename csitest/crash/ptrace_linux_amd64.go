package crash

import (
	"golang.org/x/sys/unix"
)

// skipCall keeps the kernel from running the call on whose entry thread tid has
// stopped. The thread stops on its exit nevertheless.
func skipCall(tid int) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Orig_rax = ^uint64(0) // no call has the number -1
	return unix.PtraceSetRegs(tid, &regs)
}

func resultRegister(regs *unix.PtraceRegs) *uint64 { return &regs.Rax }
