package filepool

import (
	"github.com/csikit/csikit/csitest/gate"
	"testing"
)

func TestMain(m *testing.M) { gate.Main(m) }
