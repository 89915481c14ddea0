package share

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

func TestMain(m *testing.M) { gate.Main(m) }
