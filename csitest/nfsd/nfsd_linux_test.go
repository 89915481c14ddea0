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
	// What a fault is to the server does not depend on the version, and clients take
	// some seconds to come back.
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
			ask := func() <-chan error {
				answer := make(chan error, 1)
				go func() { answer <- unix.Statfs(dir, new(unix.Statfs_t)) }()
				return answer
			}
			for _, fault := range []struct {
				name       string
				begin, end func()
			}{
				{"drop", s.Drop, s.Mend},
				{"unplug", s.Unplug, s.Mend},
				{"stop", s.Stop, s.Start},
				{"withdraw", func() { s.Withdraw("share") }, func() { s.Export("share", "rw,no_root_squash") }},
			} {
				if version != "3,nolock" {
					break
				}
				fault.begin()
				answer := ask()
				select {
				case err := <-answer:
					answer = nil
					t.Logf("%s: %v", fault.name, err)
					if err == nil {
						t.Errorf("%s: the server answers", fault.name)
					}
				case <-time.After(time.Second): // it hangs: nothing that could be waited for
				}
				fault.end()
				if answer != nil {
					ok(t, <-answer)
				}
				ok(t, <-ask())
			}
			s.Replace()
			if err := <-ask(); !errors.Is(err, unix.ESTALE) {
				t.Errorf("after the file system was replaced: %v", err)
			}
		})
	}
}
