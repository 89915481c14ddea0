package share

import (
	"errors"

	"golang.org/x/sys/unix"
)

// askKernel opens a context for a mount of the type. The kernel looks up the type, and
// requests its module, before anything else; ENODEV is its answer for a type without one.
func askKernel(fsType string) error {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return errNoType
	} else if err != nil {
		return err
	}
	return unix.Close(fd)
}
