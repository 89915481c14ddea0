package nfsd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest/nfsd"
	"golang.org/x/sys/unix"
)

// A server that drops every packet, and is back. The package's TestMain calls gate.Main, so
// that the mount is in a private namespace.
func ExampleStart() {
	_ = func(t *testing.T) { // TestServerComesBack
		s := nfsd.Start(t)
		source, target := s.Export("share", "rw,no_root_squash"), t.TempDir()
		if out, err := exec.Command("mount.nfs", source, target, "-o", "vers=4.2").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_FORCE|unix.MNT_DETACH) })
		s.Drop()
		written := make(chan error)
		go func() { written <- os.WriteFile(filepath.Join(target, "file"), nil, 0o600) }() // blocks
		s.Reconnect()
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
}
