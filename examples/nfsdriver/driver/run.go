// Package driver is a CSI driver for network shares: it translates the RPCs of CSI into
// calls of package storage, and leaves what happens on a node to package nodeops.
//
// These files are optional: delete one, with its tests, and the driver does not have what
// is in it. lifecycle.go (the start-up taint), list.go (the list of volumes), register.go (with
// kubelet), snapshots.go (snapshots and clones) and telemetry.go (metrics and traces).
package driver

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/volumelock"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Version is reported as vendor_version; releases set it with -ldflags.
var Version = "dev"

// Run serves the storage of p until ctx ends. The settings are in args and the environment.
// flag.ErrHelp means that -h was answered on stdout.
func Run(ctx context.Context, p storage.Provider, args []string, getenv func(string) string, stdout, stderr io.Writer) (err error) {
	cfg, err := parseConfig(p, args, getenv, stdout)
	if err != nil {
		return err
	}
	log := newLogger(cfg, stderr)
	telemetry := &telemetry{stop: func() {}}
	if newTelemetry != nil {
		if telemetry, err = newTelemetry(ctx, service{program, Version, cfg.nodeID}, cfg.http != "", getenv, log); err != nil {
			return err
		}
	}
	defer telemetry.stop()

	servers, locks := &breaker.Group{Timeout: cfg.serverTimeout}, new(volumelock.Table)
	if err := servers.Instrument(telemetry.meters); err != nil {
		return err
	}
	if err := locks.Instrument(telemetry.meters); err != nil {
		return err
	}
	policy := volumelock.DefaultPolicy
	if l, ok := p.(storage.Locker); ok {
		policy = l.LockPolicy
	}
	sections := []csiserver.HealthSection{
		csiserver.DebugTable("servers", servers.Snapshot), csiserver.DebugTable("work", servers.Jobs), csiserver.DebugTable("locks", locks.Snapshot),
	}
	opts := []csiserver.Option{
		csiserver.WithLogger(log),
		csiserver.WithDrainTimeout(cfg.drainTimeout),
		csiserver.WithMeterProvider(telemetry.meters),
		csiserver.WithTracerProvider(telemetry.tracers),
		csiserver.WithInterceptors(volumelock.Interceptor(locks, volumelock.WithPolicy(policy), volumelock.WithRequestID(csiserver.RequestID))),
		csiserver.WithValidationOptions(csispec.WithCSISanity()),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
	}
	env := storage.Env{Logger: log, Meters: telemetry.meters, Servers: servers, ServerTimeout: cfg.serverTimeout}
	defer func() { err = cmp.Or(err, p.Close()) }()
	if cfg.mode != "node" {
		backend, err := p.OpenBackend(ctx, env)
		if err != nil {
			return err
		}
		opts = append(opts, csiserver.WithController(NewController(backend)))
	} else { // every process of a plugin has to report the same
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_CONTROLLER_SERVICE))
	}
	if cfg.mode != "controller" {
		for _, dir := range cfg.sharedDirs {
			if err := nodeops.CheckPropagation(dir); err != nil {
				return err
			}
		}
		ops, err := nodeops.New(nodeops.Config{
			Logger: log, MeterProvider: telemetry.meters, TracerProvider: telemetry.tracers,
			Unmount:        nodeops.UnmountLazy,       // an unresponsive server must not block the termination of its pods
			HelperTimeout:  cfg.serverTimeout * 2 / 3, // the helper is killed before the call to the server times out
			UnmountTimeout: cfg.serverTimeout / 3,
			// A blocked call occupies a thread. A node may have more volumes of one server than
			// the default limit, and calls for other servers must not exceed it.
			Blocking: &blocking.Group{Limit: 1000},
		})
		if err != nil {
			return err
		}
		mounts, err := p.OpenMounts(ctx, env)
		if err != nil {
			return err
		}
		opts = append(opts, csiserver.WithNode(newNode(cfg, mounts, servers, ops)))
		sections = append(sections, csiserver.DebugTable("in the kernel", ops.InFlight))
	}
	if d, ok := p.(storage.Debugger); ok {
		sections = append(sections, d.DebugSections()...)
	}
	return serve(ctx, cfg, log, telemetry, sections, opts)
}

func serve(ctx context.Context, cfg config, log *slog.Logger, t *telemetry, sections []csiserver.HealthSection, opts []csiserver.Option) error {
	server, err := csiserver.New(csiserver.Info{Name: cfg.driverName, VendorVersion: Version}, opts...)
	if err != nil {
		return err
	}
	b := &background{cfg, log, nil, sections, func(context.Context) error { return nil }}
	for _, add := range besideServer {
		if err := add(b); err != nil {
			return err
		}
	}
	pages := http.NewServeMux()
	pages.Handle("/", server.Health(b.sections...))
	if t.metrics != nil {
		pages.Handle("GET /metrics", t.metrics)
	}
	lis, err := csiserver.Listen(cfg.endpoint)
	if err != nil {
		return err
	}
	log.Info("starting", "endpoint", cfg.endpoint, "mode", cfg.mode, "node_id", cfg.nodeID, "version", Version)
	return server.Serve(ctx, lis, append(b.options, csiserver.WithHealth(cfg.http, pages))...)
}

// background is what runs beside the server. The optional files add to it, if their flags are set.
type background struct {
	cfg        config
	log        *slog.Logger
	options    []csiserver.ServeOption
	sections   []csiserver.HealthSection
	registered func(context.Context) error // an error until kubelet has registered the driver; set by register.go
}

var besideServer []func(*background) error

// telemetry is where metrics and traces go. What is nil costs nothing.
type telemetry struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	metrics http.Handler // of /metrics
	stop    func()       // sends what is left
}

// service is what metrics and traces say of their origin.
type service struct{ name, version, instance string }

// newTelemetry is set by telemetry.go.
var newTelemetry func(_ context.Context, of service, withMetrics bool, getenv func(string) string, log *slog.Logger) (*telemetry, error)

func newLogger(cfg config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
