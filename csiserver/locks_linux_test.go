package csiserver

import (
	"syscall"
	"testing"
)

// There are file systems without flock. Then there is no lock to wait for.
func TestFileSystemWithoutLocks(t *testing.T) {
	for _, err := range []error{syscall.ENOTSUP, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EINVAL, syscall.ENOLCK} {
		if !hasNoLocks(err) {
			t.Errorf("%v is fatal", err)
		}
	}
	for _, err := range []error{nil, syscall.EWOULDBLOCK, syscall.EINTR, syscall.EBADF} {
		if hasNoLocks(err) {
			t.Errorf("%v means that there are no locks", err)
		}
	}
}
