package csitest

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// createAs makes a directory and a file as that user, both below root.
func createAs(u podUser, root *os.File, dir, file string) error {
	return as(u, root, func(at int) error {
		if err := unix.Mkdirat(at, dir, 0o755); err != nil {
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		return open(at, file, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	})
}

// openAs opens a file below root for reading and writing, as that user.
func openAs(u podUser, root *os.File, file string) error {
	return as(u, root, func(at int) error { return open(at, file, unix.O_RDWR) })
}

func open(at int, file string, flags int) error {
	fd, err := unix.Openat(at, file, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	return unix.Close(fd)
}

// as calls do with the descriptor of root, on a thread that has the user's IDs for file
// access, no supplementary groups, and hence no capabilities that override permissions.
// The directories above root need not be open to the user.
func as(u podUser, root *os.File, do func(at int) error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- func() error {
			// The calls of package unix would change every thread.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
				return errNoUsers
			}
			for _, id := range []struct {
				call uintptr
				want int
			}{{unix.SYS_SETFSGID, u.gid}, {unix.SYS_SETFSUID, u.uid}} {
				// They report no error, but the ID before.
				unix.RawSyscall(id.call, uintptr(id.want), 0, 0)
				if now, _, _ := unix.RawSyscall(id.call, ^uintptr(0), 0, 0); int(now) != id.want {
					return errNoUsers
				}
			}
			return do(int(root.Fd()))
		}()
	}()
	return <-result
}
