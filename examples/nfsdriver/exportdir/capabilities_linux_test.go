package exportdir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// The controller needs FOWNER because the client's kernel checks who may remove from a
// sticky directory (namei.c), before it calls any file system or server. The checks that
// a server would make are made by the local file system here. The test also shows that
// the controller needs no other capability.
func TestCapabilities(t *testing.T) {
	gate.Root(t)
	const decidedByServer = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_CHOWN | 1<<unix.CAP_FSETID | 1<<unix.CAP_SETFCAP
	const deployed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_FOWNER | 1<<unix.CAP_MKNOD // deploy/base/controller.yaml
	for _, tt := range []struct {
		name string
		caps uint64
		want error
	}{
		{"without FOWNER", (deployed | decidedByServer) &^ (1 << unix.CAP_FOWNER), unix.EPERM},
		{"as deployed", deployed | decidedByServer, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src, trash := t.TempDir(), t.TempDir()
			makeTree(t, src, 3, 1<<20)
			sticky := filepath.Join(src, "sticky")
			must(t, os.Mkdir(sticky, 0o755))
			must(t, os.WriteFile(filepath.Join(sticky, "file"), nil, 0o600))
			must(t, errors.Join(os.Chown(filepath.Join(sticky, "file"), 4711, 4711), os.Chown(sticky, 4712, 4712), os.Chmod(sticky, 0o777|os.ModeSticky)))
			want := describe(t, src)
			must(t, withCapabilities(tt.caps, func() error {
				if tt.want == nil {
					if err := copyDir(trash, src, func(int64, int64) {}); err != nil {
						return err
					}
				} else if err := os.Rename(src, filepath.Join(trash, "src")); err != nil {
					return err
				}
				return nil
			}))
			if tt.want == nil {
				compareTrees(t, describe(t, trash), want)
			}
			err := withCapabilities(tt.caps, func() error {
				dir, err := os.OpenRoot(trash)
				if err != nil {
					return err
				}
				defer dir.Close()
				return (&emptying{trash: dir, did: func(int64, int64) {}}).removeAll(dir, 0)
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("removing it: %v, want %v", err, tt.want)
			}
		})
	}
}

// withCapabilities runs fn with only these capabilities, on a thread that exits
// afterwards.
func withCapabilities(caps uint64, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		for i := range data {
			data[i].Effective = uint32(caps >> (32 * i))
			data[i].Permitted = data[i].Effective
		}
		err := unix.Capset(&head, &data[0])
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}
