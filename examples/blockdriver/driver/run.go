// Package driver is a CSI driver for block storage: it translates the RPCs of CSI into
// calls of package storage, and leaves what happens on a node to package nodeops.
//
// These files are optional: delete one, with its test, and the driver does not have what
// is in it: capacity.go (free space), encryption.go (LUKS), group.go (group snapshots), health.go (of volumes and
// storage), lifecycle.go (start-up taint, preStop hook), list.go (lists of volumes), modify.go
// (VolumeAttributesClass), register.go (with kubelet), snapshots.go (snapshots and clones),
// snapshotmetadata.go (changed blocks), telemetry.go (metrics and traces).
package driver

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/volumelock"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Version is reported as vendor_version; releases set it with -ldflags.
var Version = "dev"

// Run serves the storage of p until ctx ends, or runs one of its commands. The settings are
// in args and the environment. flag.ErrHelp means that -h was answered on stdout,
// [storage.ErrReported] that a command has printed what is wrong.
func Run(ctx context.Context, p storage.Provider, args []string, getenv func(string) string, stdout, stderr io.Writer) (err error) {
	if c, ok := p.(storage.Commander); ok {
		if ok, err := c.Command(args, getenv, stdout); ok {
			return err
		}
	}
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](ctx, args[1:], getenv)
	}
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

	work, locks := new(blocking.Group), new(volumelock.Table)
	if err := locks.Instrument(telemetry.meters); err != nil {
		return err
	}
	sections := []csiserver.HealthSection{
		csiserver.DebugTable("locks", locks.Snapshot), csiserver.DebugTable("in the kernel", work.Snapshot),
	}
	opts := []csiserver.Option{
		csiserver.WithLogger(log),
		csiserver.WithDrainTimeout(cfg.drainTimeout),
		csiserver.WithMeterProvider(telemetry.meters),
		csiserver.WithTracerProvider(telemetry.tracers),
		csiserver.WithInterceptors(volumelock.Interceptor(locks, volumelock.WithRequestID(csiserver.RequestID))),
		csiserver.WithValidationOptions(csispec.WithCSISanity()),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
	}
	if len(cfg.topology) > 0 || p.HasTopology() {
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	env := storage.Env{Logger: log, Work: work, Parameters: parameters}
	defer func() { err = cmp.Or(err, p.Close()) }()
	if cfg.mode != "node" {
		backend, err := p.OpenBackend(ctx, env)
		if err != nil {
			return err
		}
		services, _ := servicesOf(backend)
		opts = append(append(opts, csiserver.WithController(newController(backend))), services...)
	} else {
		_, capabilities := servicesOf(p.Type())
		opts = append(opts, csiserver.WithPluginCapabilities(capabilities...))
	}
	var n *node
	if cfg.mode != "controller" {
		for _, dir := range cfg.sharedDirs {
			if err := nodeops.CheckPropagation(dir); err != nil {
				return err
			}
		}
		ops, err := nodeops.New(nodeops.Config{Logger: log, Blocking: work, MeterProvider: telemetry.meters, TracerProvider: telemetry.tracers})
		if err != nil {
			return err
		}
		devices, err := p.OpenDevices(ctx, storage.NodeEnv{
			Env: env, NodeID: cfg.nodeID, MaxVolumes: cfg.maxVolumes, Topology: cfg.topology, Ops: ops,
		})
		if err != nil {
			return err
		}
		n = &node{cfg: cfg, storage: devices, devices: devices, ops: ops}
		opts = append(opts, csiserver.WithNode(n))
	}
	return serve(ctx, cfg, log, telemetry, n, sections, opts)
}

func serve(ctx context.Context, cfg config, log *slog.Logger, t *telemetry, n *node, sections []csiserver.HealthSection, opts []csiserver.Option) error {
	server, err := csiserver.New(csiserver.Info{Name: cfg.driverName, VendorVersion: Version}, opts...)
	if err != nil {
		return err
	}
	b := &background{cfg, log, n, nil, sections, func(context.Context) error { return nil }}
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

// commands are those of the optional files, by the first argument.
var commands = map[string]func(_ context.Context, args []string, getenv func(string) string) error{}

// background is what runs beside the server. The optional files add to it, if their flags are set.
type background struct {
	cfg        config
	log        *slog.Logger
	node       *node // nil: -mode controller
	options    []csiserver.ServeOption
	sections   []csiserver.HealthSection
	registered func(context.Context) error // an error until kubelet has registered the driver; set by register.go
}

var besideServer []func(*background) error

// parameters are those of StorageClasses that the optional files implement.
var parameters = storage.Parameters{}

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
