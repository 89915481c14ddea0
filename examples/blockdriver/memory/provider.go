// Package memory is a storage of one node that forgets its volumes when the process ends:
// sparse files in a temporary directory, attached as loop devices. It is small, to be read
// first and replaced, and the tests of the driver use it. It serves -mode all only.
//
// backend.go is for the controller, devices.go for the node, and this file starts both.
package memory

import (
	"context"
	"flag"
	"os"
	"path/filepath"

	"github.com/csikit/csikit/examples/blockdriver/storage"
)

func New() *Memory                      { return &Memory{volumes: map[string]*volume{}, nodes: map[string]*node{}} }
func (m *Memory) Flags(*flag.FlagSet)   {}
func (m *Memory) Check() error          { return nil }
func (m *Memory) Type() storage.Backend { return m }
func (m *Memory) HasTopology() bool     { return false }

func (m *Memory) OpenBackend(_ context.Context, env storage.Env) (_ storage.Backend, err error) {
	m.parameters = env.Parameters
	m.dir, err = os.MkdirTemp("", "volumes")
	return m, err
}

func (m *Memory) OpenDevices(_ context.Context, env storage.NodeEnv) (storage.Devices, error) {
	m.nodes[env.NodeID] = &node{most: env.MaxVolumes}
	return devices{m, env.NodeID}, nil
}

func (m *Memory) Close() error {
	if m.dir == "" { // -mode node
		return nil
	}
	for id := range m.volumes {
		_ = os.Remove(m.file(id))
	}
	return os.Remove(m.dir)
}

func (m *Memory) file(id string) string { return filepath.Join(m.dir, id) }
