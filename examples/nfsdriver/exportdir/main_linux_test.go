package exportdir

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

func TestMain(m *testing.M) {
	gate.Main(m, gate.WithRole("nfsdriver", nfsMain), gate.WithRole("localdriver", localMain), gate.WithRole("holder", holderMain))
}
