package filepool

import (
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/examples/blockdriver/storage/storagetest"
)

func TestStorage(t *testing.T) {
	needLinux(t)
	nodes := [2]string{"node-1", "node-2"}
	storagetest.Run(t, storagetest.Config{
		Nodes: nodes, Size: 64 * mib, Mutable: map[string]string{paramReadAhead: "64"},
		Open: func(t *testing.T) storage.Backend {
			dir := t.TempDir()
			makePool(t, dir)
			p, err := configured(t, "-pool", "default="+dir, "-reserve", "0", "-overcommit", "0")
			must(t, err)
			b, err := p.OpenBackend(t.Context(), testEnv())
			must(t, err)
			for _, id := range nodes {
				RegisterNode(t, dir, id, nil)
			}
			t.Cleanup(func() { must(t, p.Close()) })
			return b
		},
	})
}
