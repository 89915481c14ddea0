package memory

import (
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/examples/blockdriver/storage/storagetest"
)

func TestStorage(t *testing.T) {
	nodes := [2]string{"node-1", "node-2"}
	storagetest.Run(t, storagetest.Config{Nodes: nodes, Open: func(t *testing.T) storage.Backend {
		m := New()
		b, err := m.OpenBackend(t.Context(), storage.Env{})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range nodes {
			if _, err := m.OpenDevices(t.Context(), storage.NodeEnv{NodeID: id}); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		return b
	}})
}
