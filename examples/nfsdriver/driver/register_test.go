package driver_test

import (
	"io"
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
)

// A node plugin that kubelet has not registered is healthy and not ready; a controller is
// never registered.
func TestRegister(t *testing.T) {
	_, get := drivertest.ServeHealth(t, memory.New(), "-mode", "node", "-node-id", "n",
		"-register", "/kubelet/csi.sock", "-registration-dir", t.TempDir())
	for page, want := range map[string]string{"/healthz": "ok", "/readyz": "registration: not registered with kubelet", "/debug": "registration: 1\n"} {
		if body := get(page); !strings.Contains(body, want) {
			t.Errorf("%s: %s", page, body)
		}
	}
	bad := []string{"-mode", "controller", "-register", "/kubelet/csi.sock", "-endpoint", "unix:///s.sock"}
	if err := driver.Run(t.Context(), memory.New(), bad, func(string) string { return "" }, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "-register is for the node plugin") {
		t.Errorf("%q: %v", bad, err)
	}
}
