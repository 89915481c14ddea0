package filepool

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

// mountPool creates a file system for the pool at dir.
func mountPool(t *testing.T, dir, fsType string) {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "mkfs."+fsType)
	disk := dir + ".disk"
	must(t, os.WriteFile(disk, nil, 0o600))
	must(t, os.Truncate(disk, 4<<30))
	dev, err := loopdev.Attach(t.Context(), disk)
	must(t, err)
	t.Cleanup(func() {
		must(t, dev.Detach(context.Background()))
	})
	if out, err := exec.Command("mkfs."+fsType, "-q", dev.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, out)
	}
	must(t, os.MkdirAll(dir, 0o700))
	must(t, unix.Mount(dev.Path, dir, fsType, 0, ""))
	makePool(t, dir)
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
}
