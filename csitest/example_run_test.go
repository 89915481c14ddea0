package csitest_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/csikit/csikit/csitest"
)

// A driver's own test runs every rule as a subtest. Rules that check mounts need CheckMounts,
// rules that kill the driver need Start.
func ExampleRun() {
	_ = func(t *testing.T) { // TestCSI
		csitest.Run(t, csitest.Target{
			Endpoint: "unix:///tmp/csi.sock",
			Start:    func() *exec.Cmd { return exec.Command("./driver", "-endpoint", "unix:///tmp/csi.sock") },
		}, csitest.Config{CheckMounts: os.Geteuid() == 0})
	}
}
