package csitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ref") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A driver that dies fails the rule under way, is started again, and the other rules
// go on.
func TestDriverThatDies(t *testing.T) {
	socket := filepath.Join(socketDir(t), "csi.sock")
	report, err := Check(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
		return gate.RoleCommand(t.Context(), "reference", socket, "ValidateVolumeCapabilities")
	}}, Config{Rules: []string{"controller.validate.confirms", "controller.delete.idempotent", "controller.attach.*"}, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	failed := report.With(Failed)
	if len(failed) != 1 || failed[0].Rule.ID != "controller.validate.confirms" || len(report.With(Passed)) != 1 {
		t.Fatalf("%+v", report.Results)
	}
	last := failed[0].Failures[len(failed[0].Failures)-1].String()
	for _, words := range []string{"the driver runs on", "exit status 2", "at the disco"} {
		if !strings.Contains(last, words) {
			t.Errorf("%q is missing in %s", words, last)
		}
	}
}

// A driver of two processes is killed and started as a whole.
func TestTwoProcesses(t *testing.T) {
	dir := socketDir(t)
	node, controller := filepath.Join(dir, "node.sock"), filepath.Join(dir, "ctl.sock")
	started := map[string]int{}
	start := func(socket string) func() *exec.Cmd {
		return func() *exec.Cmd {
			started[socket]++
			return gate.RoleCommand(t.Context(), "reference", socket)
		}
	}
	target := Target{
		Endpoint: "unix://" + node, ControllerEndpoint: "unix://" + controller,
		Start: start(node), StartController: start(controller),
	}
	report, err := Check(t.Context(), target, Config{Rules: []string{"identity.", "restart.volumes-kept"}, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if failed := report.With(Failed); len(failed) != 1 || failed[0].Rule.ID != "restart.volumes-kept" { // its volumes are in memory
		t.Errorf("%+v", failed)
	}
	if started[node] != 2 || started[controller] != 2 {
		t.Errorf("started: %v, want each twice", started)
	}
	target.ControllerEndpoint = ""
	if _, err := Check(t.Context(), target, Config{}); err == nil {
		t.Error("a controller without an endpoint")
	}
}
