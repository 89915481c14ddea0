package storage

import (
	"context"
	"flag"
	"log/slog"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/topology"
)

// Provider starts the storage. main has one: it adds its settings to those of the driver,
// and is asked for what the process serves.
type Provider interface {
	// Flags adds the settings of the storage. Each is an environment variable as well.
	Flags(*flag.FlagSet)
	// Check returns what is wrong with the settings, in one line that names the flag.
	Check() error
	// Type returns a Backend of the type that OpenBackend returns, which need not work: the
	// processes of the nodes report the same capabilities as the controller.
	Type() Backend
	// HasTopology reports whether volumes are accessible only from some nodes.
	HasTopology() bool
	// OpenBackend returns the storage for a controller.
	OpenBackend(context.Context, Env) (Backend, error)
	// OpenDevices returns the storage for a node. In a process that is both, it is called
	// after OpenBackend.
	OpenDevices(context.Context, NodeEnv) (Devices, error)
	// Close ends both, after the last call has returned.
	Close() error
}

// Env is what the driver hands to the storage.
type Env struct {
	Logger *slog.Logger
	// Work runs calls that the kernel may block; all of it is on the debug page.
	Work       *blocking.Group
	Parameters Parameters // what is in none of these, and unknown to the storage, is refused
}

// NodeEnv is Env on a node.
type NodeEnv struct {
	Env
	NodeID     string
	MaxVolumes int64 // that the node takes; 0: no limit
	Topology   topology.Segments
	Ops        *nodeops.Node // for instance to ask where a device is mounted
}
