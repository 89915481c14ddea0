package mountapi

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/oldkernel"
)

func TestMain(m *testing.M) {
	oldkernel.FromEnv()
	gate.Main(m, roles...)
}
