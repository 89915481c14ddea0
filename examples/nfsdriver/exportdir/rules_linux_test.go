package exportdir

import (
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
)

// TestRules checks the driver as a separate process, which is killed and restarted, with
// a directory in place of the server.
func TestRules(t *testing.T) {
	shares := newShares(t)
	drivertest.Rules(t, localClass, 1<<20, "localdriver", "-exports", localExports)
	wantShare(t, filepath.Join(shares, "a"))
}

// TestSanity runs csi-sanity against the driver, which serves from a local directory.
func TestSanity(t *testing.T) {
	shares := newShares(t)
	drivertest.Sanity(t, startLocal(t, shares), "server", "/a")
	wantShare(t, filepath.Join(shares, "a"))
}
