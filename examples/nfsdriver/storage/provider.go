package storage

import (
	"context"
	"flag"
	"log/slog"
	"time"

	"github.com/csikit/csikit/breaker"
	"go.opentelemetry.io/otel/metric"
)

// Provider starts the storage. main has one: it adds its settings to those of the driver,
// and is asked for what the process serves.
type Provider interface {
	// Flags adds the settings of the storage. Each is an environment variable as well.
	Flags(*flag.FlagSet)
	// Check returns what is wrong with the settings, in one line that names the flag.
	Check() error
	// Type returns a Backend of the type that OpenBackend returns, which need not work: the
	// driver reports the capabilities of its interfaces.
	Type() Backend
	// OpenBackend returns the storage for a controller.
	OpenBackend(context.Context, Env) (Backend, error)
	// OpenMounts returns the storage for a node.
	OpenMounts(context.Context, Env) (Mounts, error)
	// Close ends both, after the last call has returned.
	Close() error
}

// Env is what the driver hands to the storage.
type Env struct {
	Logger *slog.Logger
	Meters metric.MeterProvider // may be nil
	// Servers runs calls that block while a server does not respond, and is on the debug page.
	Servers *breaker.Group
	// ServerTimeout is how long to wait for a server, as the settings say.
	ServerTimeout time.Duration
}
