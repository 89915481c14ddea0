package driver_test

import (
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
)

// A node plugin that kubelet has not registered is healthy and not ready.
func TestHealthBeforeRegistration(t *testing.T) {
	_, get := drivertest.ServeHealth(t, memory.New(), "-mode", "node", "-node-id", "n",
		"-register", "/kubelet/csi.sock", "-registration-dir", t.TempDir())
	for page, want := range map[string]string{"/healthz": "ok", "/readyz": "registration: not registered with kubelet", "/debug": "registration: 1\n"} {
		if body := get(page); !strings.Contains(body, want) {
			t.Errorf("%s: %s", page, body)
		}
	}
}
