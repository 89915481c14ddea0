package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

// A driver that csicheck starts runs in csicheck's own mount namespace, and does not see the
// setting by which csicheck recognises it.
func TestStartIsolated(t *testing.T) {
	gate.UserNS(t)
	dir := socketDir(t)
	socket, seen, other := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "seen"), filepath.Join(dir, "csicheck")
	cmd := gate.RoleCommand(t.Context(), "csicheck", "-endpoint", "unix://"+socket, "-kernel", "no", "-size", "1048576", "-rules", "identity.probe.",
		"-start", "readlink /proc/self/ns/mnt >"+seen+"; readlink /proc/$PPID/ns/mnt >"+other+"; echo $"+isolated+" >>"+seen+"; "+commandLine(t, socket))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	driver, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	csicheck, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if string(driver) != string(csicheck)+"\n" || own+"\n" == string(csicheck) {
		t.Errorf("the driver runs in %q, csicheck in %q, the test in %s", driver, csicheck, own)
	}
}
