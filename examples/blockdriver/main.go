// Command blockdriver is a CSI driver for block storage, assembled from csikit's
// packages: sparse image files in a pool directory, attached as loop devices. It
// is an example to run, to read and to copy; README.md says what to change for
// storage of your own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/registration"
	"github.com/csikit/csikit/volumelock"
)

// version is reported as vendor_version; releases set it with -ldflags.
var version = "dev"

func main() {
	// The first signal drains, the second one kills: after the first the default
	// action is back.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if errors.Is(err, errProblems) {
		os.Exit(1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "blockdriver:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	if ok, err := runCommand(args, getenv, stdout); ok {
		return err
	}
	return runLocked(ctx, args, getenv, stdout, stderr, lockVolumes)
}

// locking is lockVolumes, or what a test uses instead.
type locking = func(*volumelock.Table, ...volumelock.Option) csiserver.Interceptor

func lockVolumes(t *volumelock.Table, opts ...volumelock.Option) csiserver.Interceptor {
	return volumelock.Interceptor(t, opts...)
}

func runLocked(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, lock locking) error {
	cfg, err := parseConfig(args, getenv, stdout)
	if err != nil {
		return err
	}
	log := newLogger(cfg, stderr)
	work := new(blocking.Group) // what the kernel may block: all of it is on /debug
	telemetry, err := newTelemetry(ctx, cfg, getenv, log)
	if err != nil {
		return err
	}
	defer telemetry.stop()

	locks := new(volumelock.Table)
	if err := locks.Instrument(telemetry.meters); err != nil {
		return err
	}
	sections := []csiserver.HealthSection{csiserver.DebugTable("locks", locks.Snapshot)}
	opts := []csiserver.Option{
		csiserver.WithLogger(log),
		csiserver.WithDrainTimeout(cfg.drainTimeout),
		csiserver.WithMeterProvider(telemetry.meters),
		csiserver.WithTracerProvider(telemetry.tracers),
		csiserver.WithInterceptors(lock(locks, volumelock.WithRequestID(csiserver.RequestID))),
		csiserver.WithValidationOptions(csispec.WithCSISanity()),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
	}
	var backend *filePools
	if cfg.mode != "node" {
		if backend, err = openPools(ctx, cfg.pools.list, policy{cfg.overcommit, cfg.reserve}, work, log); err != nil {
			return err
		}
		defer backend.Close()
		opts = append(opts,
			csiserver.WithInterceptors(csiserver.Interceptor{Unary: backend.UnaryServerInterceptor, Stream: backend.StreamServerInterceptor}),
			csiserver.WithController(newController(backend, cfg.hasTopology())),
			csiserver.WithGroupController(newGroupController(backend)), csiserver.WithSnapshotMetadata(newSnapshotMetadata(backend)))
	} else { // every process of a plugin reports the same
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_CONTROLLER_SERVICE,
			csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE))
	}
	if cfg.mode != "controller" {
		ops, err := nodeops.New(nodeops.Config{Logger: log, Blocking: work, MeterProvider: telemetry.meters, TracerProvider: telemetry.tracers})
		if err != nil {
			return err
		}
		pools := newNodePools(cfg, work, log)
		node := newNode(cfg, pools, ops, work)
		if err := pools.openAll(ctx, cfg, node.thawLeftovers); err != nil {
			return err
		}
		defer pools.Close()
		if backend != nil {
			backend.freezer = node
		}
		opts = append(opts, csiserver.WithNode(node))
		sections = append(sections, csiserver.DebugTable("in the kernel", ops.InFlight))
	}
	if cfg.hasTopology() {
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	server, err := csiserver.New(csiserver.Info{Name: cfg.driverName, VendorVersion: version}, opts...)
	if err != nil {
		return err
	}
	var beside []csiserver.ServeOption
	if cfg.register != "" {
		r, err := registration.New(registration.Config{
			DriverName: cfg.driverName, Endpoint: cfg.endpoint, KubeletEndpoint: cfg.register, Dir: cfg.registry, Logger: log,
		})
		if err != nil {
			return err
		}
		beside = append(beside, csiserver.WithBackground("registration", r.Serve))
		sections = append(sections, csiserver.ReadyCheck("registration", r.Check),
			csiserver.DebugTable("registration", func() []registration.Status { return []registration.Status{r.Status()} }))
	}
	beside = append(beside, csiserver.WithHealth(cfg.http, telemetry.with(server.Health(sections...))))
	lis, err := csiserver.Listen(cfg.endpoint)
	if err != nil {
		return err
	}
	log.Info("starting", "endpoint", cfg.endpoint, "mode", cfg.mode, "pool", cfg.pools.String(), "node_id", cfg.nodeID, "version", version)
	return server.Serve(ctx, lis, beside...)
}

func newLogger(cfg config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
