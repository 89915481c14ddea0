package driver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
)

func TestMain(m *testing.M) { gate.Main(m) }

// TestSanity runs csi-sanity against the driver with a storage in memory.
func TestSanity(t *testing.T) {
	shares := drivertest.NewShares(t)
	drivertest.Sanity(t, drivertest.Serve(t, memory.New(), "-dir", shares), "server", "/a")
	wantEmpty(t, shares)
}

// TestRules runs all rules of csitest that need no restart of the driver: the storage is in
// its memory.
func TestRules(t *testing.T) {
	shares := drivertest.NewShares(t)
	endpoint := drivertest.Serve(t, memory.New(), "-dir", shares)
	drivertest.Check(t, csitest.Target{Endpoint: endpoint}, map[string]string{"server": "server", "share": "/a"}, 1<<20)
	wantEmpty(t, shares)
}

func wantEmpty(t *testing.T, shares string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(shares, "a"))
	if err != nil || len(left) > 0 {
		t.Errorf("the share holds %v (%v)", left, err)
	}
}
