package oldkernel

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	FromEnv()
	os.Exit(m.Run())
}

// Each kernel has the calls up to its version.
func TestCalls(t *testing.T) {
	version, child := os.LookupEnv(Env)
	if !child {
		Run(t, "^TestCalls$", Versions...)
		return
	}
	has := map[string]bool{
		"5.1":  unix.PidfdSendSignal(-1, 0, nil, 0) != unix.ENOSYS,
		"5.2":  call(unix.SYS_FSOPEN, 0, ^uintptr(0)) != unix.ENOSYS,
		"5.6":  call(unix.SYS_OPENAT2, 0, 0) != unix.ENOSYS,
		"5.8":  call(unix.SYS_FACCESSAT2, ^uintptr(0), 0) != unix.ENOSYS,
		"5.9":  call(unix.SYS_CLOSE_RANGE, 9, 8) != unix.ENOSYS,
		"5.12": call(unix.SYS_MOUNT_SETATTR, ^uintptr(0), 0) != unix.ENOSYS,
		"6.8":  call(unix.SYS_STATMOUNT, 0, 0) != unix.ENOSYS,
	}
	want := map[string][]string{
		"4.18": nil, "5.4": {"5.1", "5.2"}, "5.10": {"5.1", "5.2", "5.6", "5.8", "5.9"}, "5.14": {"5.1", "5.2", "5.6", "5.8", "5.9", "5.12"},
	}[version]
	for _, v := range want {
		if !has[v] {
			t.Errorf("%s lacks a call of %s", version, v)
		}
		delete(has, v)
	}
	for v, ok := range has {
		if ok {
			t.Errorf("%s has a call of %s", version, v)
		}
	}
	if version == "4.18" {
		null, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		if errno := call(unix.SYS_IOCTL, null.Fd(), loopConfigure); errno != unix.EINVAL {
			t.Errorf("LOOP_CONFIGURE: %v", errno)
		}
		if errno := call(unix.SYS_IOCTL, null.Fd(), loopConfigure+1); errno != unix.ENOTTY {
			t.Errorf("another ioctl: %v", errno)
		}
	}
}

func call(number, a, b uintptr) unix.Errno {
	_, _, errno := unix.Syscall6(number, a, b, 0, 0, 0, 0)
	return errno
}
