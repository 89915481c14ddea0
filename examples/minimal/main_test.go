package main

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

func TestMain(m *testing.M) { gate.Main(m, gate.WithRole("minimal", main)) }
