package main

import (
	"log/slog"
	"testing"
)

func TestThawDamagedMark(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	write(t, b.file("groups", groupID("g")+extFrozen), "{")
	n := &nodeServer{nodeID: "n"}
	if err := n.thawLeftovers(b.pool, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("the node plugin does not start: %v", err)
	}
}
