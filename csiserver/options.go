package csiserver

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// An Option adds a service to a [Server] or changes how it serves.
type Option interface{ apply(*config) }

type config struct {
	identity         csi.IdentityServer
	controller       csi.ControllerServer
	group            csi.GroupControllerServer
	snapshotMetadata csi.SnapshotMetadataServer
	node             csi.NodeServer

	services  []csi.PluginCapability_Service_Type
	expansion []csi.PluginCapability_VolumeExpansion_Type
	ready     func(context.Context) (bool, error)

	capabilityValidation ValidationMode

	interceptorConfig
	logger       *slog.Logger
	limits       map[string]Limit
	meters       metric.MeterProvider
	tracers      trace.TracerProvider
	unary        []grpc.UnaryServerInterceptor
	stream       []grpc.StreamServerInterceptor
	drainTimeout time.Duration

	errs []error
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

func (c *config) refuse(text string) { c.errs = append(c.errs, errors.New(text)) }

// WithController serves the Controller service and reports CONTROLLER_SERVICE.
func WithController(s csi.ControllerServer) Option {
	return option(func(c *config) {
		if c.controller = s; s == nil {
			c.refuse("WithController: the server is nil")
		}
	})
}

// WithGroupController serves the GroupController service and reports
// GROUP_CONTROLLER_SERVICE.
func WithGroupController(s csi.GroupControllerServer) Option {
	return option(func(c *config) {
		if c.group = s; s == nil {
			c.refuse("WithGroupController: the server is nil")
		}
	})
}

// WithSnapshotMetadata serves the SnapshotMetadata service and reports
// SNAPSHOT_METADATA_SERVICE.
func WithSnapshotMetadata(s csi.SnapshotMetadataServer) Option {
	return option(func(c *config) {
		if c.snapshotMetadata = s; s == nil {
			c.refuse("WithSnapshotMetadata: the server is nil")
		}
	})
}

// WithNode serves the Node service.
func WithNode(s csi.NodeServer) Option {
	return option(func(c *config) {
		if c.node = s; s == nil {
			c.refuse("WithNode: the server is nil")
		}
	})
}

// WithIdentity replaces the built-in Identity service. [New] calls it once for
// its information and capabilities, fails if the information differs from [Info], and
// validates the capabilities: see [WithCapabilityValidation]. It excludes WithPluginCapabilities,
// WithVolumeExpansion and WithReady.
func WithIdentity(s csi.IdentityServer) Option {
	return option(func(c *config) {
		if c.identity = s; s == nil {
			c.refuse("WithIdentity: the server is nil")
		}
	})
}

// WithPluginCapabilities adds capabilities which do not follow from the services of
// this process, such as VOLUME_ACCESSIBILITY_CONSTRAINTS. All processes of a
// plugin have to report the same: a node process adds CONTROLLER_SERVICE if the
// plugin has a controller elsewhere.
func WithPluginCapabilities(types ...csi.PluginCapability_Service_Type) Option {
	return option(func(c *config) { c.services = append(c.services, types...) })
}

// WithVolumeExpansion reports how volumes are expanded, ONLINE or OFFLINE.
func WithVolumeExpansion(t csi.PluginCapability_VolumeExpansion_Type) Option {
	return option(func(c *config) { c.expansion = append(c.expansion, t) })
}

// WithCapabilityValidation sets what happens when the specification forbids the
// capabilities that the services report: one requires another that is missing
// ([csispec.CheckCapabilities]), or an RPC that is only the stub of the generated code.
//
//   - [ValidationEnforce], the default, lets [New] fail.
//   - [ValidationWarn] logs each at warn level when [Server.Serve] starts. It is for a
//     driver in production that upgrades: New must not keep it from starting.
//   - [ValidationOff] checks nothing.
//
// What is not forbidden, but of no use to a CO ([csispec.CapabilityWarnings], stubs of
// the SnapshotMetadata service), never lets New fail: unless validation is off, Serve
// logs it in the same way.
func WithCapabilityValidation(mode ValidationMode) Option {
	return option(func(c *config) {
		if c.capabilityValidation = mode; mode < ValidationEnforce || mode > ValidationOff {
			c.refuse("WithCapabilityValidation: the mode is unknown")
		}
	})
}

// WithReady decides what Probe returns: ready, not ready yet, or, by an error
// that says what is missing, unhealthy (FAILED_PRECONDITION), for which the
// plugin may be restarted. ready is called for each Probe, concurrently with other
// calls, and has to return immediately, from memory: a probe that waits for a lock or
// a volume gets the whole plugin killed. By default the plugin is always ready.
func WithReady(ready func(ctx context.Context) (bool, error)) Option {
	return option(func(c *config) {
		if c.ready = ready; ready == nil {
			c.refuse("WithReady: the function is nil")
		}
	})
}

// WithLogger sets the logger for calls and the lifecycle of the server. The
// default discards.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) { c.logger = l })
}

// WithLimits sets the limits of methods: see [Limits]. The default is none.
func WithLimits(limits map[string]Limit) Option {
	return option(func(c *config) { c.limits = limits })
}

// WithMeterProvider sets the MeterProvider for [Metrics]; default no-op. The program
// configures exporters.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return option(func(c *config) { c.meters = mp })
}

// WithTracerProvider sets the TracerProvider for spans; default none. Each call but
// Probe has a span, in the trace of the caller if it sends one (W3C Trace Context).
func WithTracerProvider(tp trace.TracerProvider) Option {
	return option(func(c *config) { c.tracers = tp })
}

// WithInterceptors adds interceptors between the built-in ones and the handlers; the
// first is the outermost, and those of a second WithInterceptors are further in. An
// Interceptor with only Unary or only Stream leaves calls of the other kind as they are.
//
//	csiserver.WithInterceptors(volumelock.Interceptor(&locks))
func WithInterceptors(interceptors ...Interceptor) Option {
	return option(func(c *config) {
		for _, i := range interceptors {
			if i.Unary == nil && i.Stream == nil {
				c.refuse("WithInterceptors: an interceptor has neither Unary nor Stream")
			}
			if i.Unary != nil {
				c.unary = append(c.unary, i.Unary)
			}
			if i.Stream != nil {
				c.stream = append(c.stream, i.Stream)
			}
		}
	})
}

// WithDrainTimeout bounds how long calls in flight may take to end after the context of
// [Server.Serve] has ended; zero aborts them immediately. The default is 20 seconds,
// which leaves time to exit within the 30 seconds that Kubernetes allows.
func WithDrainTimeout(d time.Duration) Option {
	return option(func(c *config) {
		if c.drainTimeout = d; d < 0 {
			c.refuse("WithDrainTimeout: the timeout is negative")
		}
	})
}
