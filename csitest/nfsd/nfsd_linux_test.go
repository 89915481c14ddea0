package nfsd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/csitest/nfsd"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { gate.Main(m) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mount(t *testing.T, source, options string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount.nfs", source, dir, "-o", options).CombinedOutput(); err != nil {
		t.Fatalf("mount %s: %v: %s", source, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestServer(t *testing.T) {
	// The faults do not depend on the version, and clients take some seconds to recover,
	// so only one version is tested with all of them.
	for _, version := range []string{"3,nolock", "4.2"} {
		t.Run(version, func(t *testing.T) {
			s := nfsd.Start(t)
			source := s.Export("share", "rw,no_root_squash")
			dir := mount(t, source, "vers="+version)
			ok(t, os.WriteFile(filepath.Join(dir, "file"), []byte(version), 0o644))
			got, err := os.ReadFile(filepath.Join(s.Dir("share"), "file"))
			if err != nil || string(got) != version {
				t.Errorf("the server has %q (%v)", got, err)
			}
			statfs := func() <-chan error {
				result := make(chan error, 1)
				go func() { result <- unix.Statfs(dir, new(unix.Statfs_t)) }()
				return result
			}
			for _, fault := range []struct {
				name       string
				begin, end func()
			}{
				{"drop", s.Drop, s.Reconnect},
				{"unplug", s.Unplug, s.Reconnect},
				{"stop", s.Stop, s.Start},
				{"withdraw", func() { s.Withdraw("share") }, func() { s.Export("share", "rw,no_root_squash") }},
			} {
				if version != "3,nolock" {
					break
				}
				fault.begin()
				result := statfs()
				select {
				case err := <-result:
					result = nil
					t.Logf("%s: %v", fault.name, err)
					if err == nil {
						t.Errorf("%s: the server responds", fault.name)
					}
				case <-time.After(time.Second): // it blocks, which no event announces
				}
				fault.end()
				if result != nil {
					ok(t, <-result)
				}
				ok(t, <-statfs())
			}
			s.Replace()
			if err := <-statfs(); !errors.Is(err, unix.ESTALE) {
				t.Errorf("after the file system was replaced: %v", err)
			}
		})
	}
}
