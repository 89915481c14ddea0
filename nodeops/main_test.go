package nodeops

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/oldkernel"
)

// roles are the programs that the test binary can run as; other files add theirs in init.
var roles []gate.Option

func TestMain(m *testing.M) {
	oldkernel.FromEnv()
	gate.Main(m, roles...)
}
