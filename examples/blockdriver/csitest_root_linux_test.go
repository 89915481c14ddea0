package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
)

// TestRules checks the driver as a program of its own, which is killed and started.
func TestRules(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	dir := t.TempDir()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	pool := filepath.Join(dir, "pool")
	second := secondNode(t, pool)
	csitest.Run(t, csitest.Target{
		Endpoint: endpoint,
		Start: func() *exec.Cmd {
			return gate.RoleCommand(t.Context(), "blockdriver", "-endpoint", endpoint, "-pool", pool, "-node-id", "node", "-max-volumes", "12")
		},
		SecondNode: second,
	}, csitest.Config{Dir: dir, Size: 64 << 20, Kernel: true})
}

// secondNode makes a second node known to the pool and returns its ID.
func secondNode(t *testing.T, pool string) string {
	p, err := openPool(pool)
	must(t, err)
	defer p.Close()
	must(t, p.RegisterNode("other", 0, nil))
	return "other"
}
