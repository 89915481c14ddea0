package nodeops

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csierr"
	"golang.org/x/sys/unix"
)

func TestCheckPropagation(t *testing.T) {
	_, staging, _ := staged(t)
	dir := filepath.Join(staging, "kubelet", "a dir")
	ok(t, os.MkdirAll(dir, 0o755))
	for _, tt := range []struct {
		flags  uintptr
		shared bool
	}{
		{unix.MS_PRIVATE, false},
		{unix.MS_SHARED, true},
		{unix.MS_UNBINDABLE, false},
		{unix.MS_SHARED, true},
	} {
		ok(t, unix.Mount("", staging, "", tt.flags, ""))
		for _, path := range []string{staging, dir} {
			err := CheckPropagation(path)
			if tt.shared {
				ok(t, err)
			} else {
				wantKind(t, err, csierr.Precondition, path, "mountPropagation: Bidirectional")
			}
		}
	}
	// A slave receives mounts and passes none on: HostToContainer.
	ok(t, unix.Mount(staging, dir, "", unix.MS_BIND, ""))
	ok(t, CheckPropagation(dir))
	ok(t, unix.Mount("", dir, "", unix.MS_SLAVE, ""))
	wantKind(t, CheckPropagation(dir), csierr.Precondition, "mountPropagation: Bidirectional")
	ok(t, unix.Mount("", dir, "", unix.MS_SHARED, "")) // a slave, and shared
	ok(t, CheckPropagation(dir))
	if err := CheckPropagation(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}
