package csitest

import (
	"flag"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // many defects are waited for; the command line goes first
	gate.Main(m)
}
