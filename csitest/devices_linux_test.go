package csitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// A process in another mount namespace is found that keeps what was unmounted here.
func TestMountedElsewhere(t *testing.T) {
	gate.UserNS(t)
	dir := t.TempDir()
	if err := unix.Mount("csitest", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	number := deviceNumber(dir)
	cmd := exec.CommandContext(t.Context(), "cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	// Its namespace is a copy, which unmounting here does not change.
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if all := mountedElsewhere(number); len(all) != 1 || all[0].pid != cmd.Process.Pid || all[0].path != dir || all[0].name != "cat" {
		t.Errorf("%v, want process %d at %s", all, cmd.Process.Pid, dir)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if all := mountedElsewhere(number); len(all) > 0 {
		t.Errorf("%v, want none", all)
	}
}

// The device of a volume that stays is listed in the end, with the file behind it.
func TestDeviceLeft(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "losetup")
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	losetup := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "losetup", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("losetup %s: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	loop := losetup("--show", "-f", file)
	second := losetup("--show", "-f", file)
	c := &ruleRun{run: &run{dir: t.TempDir()}}
	d := c.deviceBelow(loop)
	c.deviceBelow(second)
	var left []string
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		left = c.run.attachedDevices()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it waited %v for two devices, want 5 s for both", took)
		}
	})
	losetup("-d", loop, second)
	want := []string{"the device " + filepath.Base(loop) + " of " + file, "the device " + filepath.Base(second) + " of " + file}
	if slices.Sort(want); !slices.Equal(left, want) {
		t.Errorf("%q, want %q", left, want)
	}
	if d.attached() || len(c.run.attachedDevices()) > 0 {
		t.Error("it is still there, after it was detached")
	}
}
