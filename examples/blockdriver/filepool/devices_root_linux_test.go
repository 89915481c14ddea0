package filepool

import (
	"testing"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/examples/blockdriver/storage/storagetest"
	"github.com/csikit/csikit/nodeops"
)

func TestDevices(t *testing.T) {
	gate.Root(t)
	nodes := [2]string{"node-1", "node-2"}
	storagetest.RunDevices(t, storagetest.DevicesConfig{Node: nodes[0], Other: nodes[1], Open: func(t *testing.T) (storage.Backend, storage.Devices, func() storage.Devices) {
		dir := t.TempDir()
		makePool(t, dir)
		open := func() *Provider {
			p, err := configured(t, "-pool", "default="+dir, "-reserve", "0", "-overcommit", "0")
			must(t, err)
			t.Cleanup(func() { must(t, p.Close()) })
			return p
		}
		openDevices := func() storage.Devices {
			work := new(blocking.Group)
			ops, err := nodeops.New(nodeops.Config{Blocking: work})
			must(t, err)
			env := testEnv()
			env.Work = work
			d, err := open().OpenDevices(t.Context(), storage.NodeEnv{Env: env, NodeID: nodes[0], Ops: ops})
			must(t, err)
			return d
		}
		b, err := open().OpenBackend(t.Context(), testEnv())
		must(t, err)
		RegisterNode(t, dir, nodes[1], nil)
		return b, openDevices(), openDevices
	}})
}
