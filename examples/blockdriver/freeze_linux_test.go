package main

import (
	"log/slog"
	"testing"
)

func TestThawDamagedMark(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	write(t, b.file("groups", groupID("g")+extFrozen), "{")
	pools := nodePools{poolSet: &poolSet[*pool]{configs: []poolConfig{{Name: "p"}}, opened: map[string]*pool{"p": b.pool}}}
	n := &nodeServer{nodeID: "n", volumes: pools}
	if err := n.thawLeftovers(t.Context(), pools, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("the node plugin does not start: %v", err)
	}
}
