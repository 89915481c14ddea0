package driver_test

import (
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
)

// Metrics are served beside the health page.
func TestMetrics(t *testing.T) {
	_, get := drivertest.ServeHealth(t, memory.New(), "-mode", "controller")
	if page := get("/metrics"); !strings.Contains(page, "go_goroutines") {
		t.Errorf("/metrics has:\n%s", page)
	}
}
