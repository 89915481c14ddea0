package storagetest_test

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/examples/blockdriver/storage/storagetest"
)

func TestMain(m *testing.M) { gate.Main(m) }

// The small storage keeps the contract of the devices. Its volumes end with the process, so
// there is nothing to reopen.
func TestMemory(t *testing.T) {
	gate.Root(t)
	cfg := storagetest.DevicesConfig{Node: "node-1", Other: "node-2"}
	cfg.Open = func(t *testing.T) (storage.Backend, storage.Devices, func() storage.Devices) {
		m := memory.New()
		b, err := m.OpenBackend(t.Context(), storage.Env{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := m.OpenDevices(t.Context(), storage.NodeEnv{NodeID: cfg.Other}); err != nil {
			t.Fatal(err)
		}
		d, err := m.OpenDevices(t.Context(), storage.NodeEnv{NodeID: cfg.Node})
		if err != nil {
			t.Fatal(err)
		}
		return b, d, nil
	}
	storagetest.RunDevices(t, cfg)
}
