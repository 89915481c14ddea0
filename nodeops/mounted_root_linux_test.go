package nodeops

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// The device of a path is known without it, also when the file system does not respond.
func TestDeviceAt(t *testing.T) {
	f := newFixture(t, 64*mib)
	_, err := f.node.DeviceAt(t.Context(), f.staging)
	wantKind(t, err, csierr.NotFound)
	_, err = f.node.DeviceAt(t.Context(), f.staging+"/none/x")
	wantKind(t, err, csierr.NotFound)
	_, err = f.node.DeviceAt(t.Context(), "relative")
	wantKind(t, err, csierr.NotFound)
	check := func(path string, want MountedDevice) {
		t.Helper()
		want.Major, want.Minor = unix.Major(f.dev.Rdev), unix.Minor(f.dev.Rdev)
		if got, err := f.node.DeviceAt(t.Context(), path); err != nil || got != want {
			t.Errorf("%s has %+v, %v; want %+v", path, got, err, want)
		}
	}
	ok(t, f.publishBlock("block", nil))
	check(f.target("block"), MountedDevice{Block: true, Path: f.dev.Path})
	ok(t, f.unpublish("block"))
	f.mustStage("ext4")
	ok(t, f.publish("p", nil))
	for _, path := range []string{f.staging, f.target("p")} {
		check(path, MountedDevice{Path: f.dev.Path, Source: f.dev.Path})
	}

	dir := filepath.Join(filepath.Dir(f.image), "share")
	ok(t, os.Mkdir(dir, 0o755))
	server := mountFuse(t, dir)
	server.hangs.Store(true)
	got, err := f.node.DeviceAt(t.Context(), dir)
	if err != nil || got.Source != "server" || got.Path != "" || got.Block {
		t.Errorf("a share that hangs has %+v, %v", got, err)
	}
	server.die()
	_, err = mountapi.Detach(dir)
	ok(t, err)
}
