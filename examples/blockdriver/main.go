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
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/registration"
	"github.com/csikit/csikit/volumelock"
	"google.golang.org/grpc"
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
	return runLocked(ctx, args, getenv, stdout, stderr, volumelock.UnaryServerInterceptor)
}

// locking is volumelock.UnaryServerInterceptor, or what a test puts in its place.
type locking = func(*volumelock.Table, ...volumelock.Option) grpc.UnaryServerInterceptor

func runLocked(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, lock locking) error {
	cfg, err := parseConfig(args, getenv, stdout)
	if err != nil {
		return err
	}
	log := newLogger(cfg, stderr)
	work := new(blocking.Group) // what the kernel may block: all of it is on /debug
	tell, err := newTelemetry(ctx, cfg, getenv, log)
	if err != nil {
		return err
	}
	defer tell.stop()

	locks := new(volumelock.Table)
	if err := locks.Instrument(tell.meters); err != nil {
		return err
	}
	sections := []csiserver.Section{csiserver.Rows("locks", locks.Snapshot)}
	opts := []csiserver.Option{
		csiserver.WithLogger(log),
		csiserver.WithDrainTimeout(cfg.drainTimeout),
		csiserver.WithMeterProvider(tell.meters),
		csiserver.WithTracerProvider(tell.tracers),
		csiserver.WithUnaryInterceptors(lock(locks, volumelock.WithRequestID(csiserver.RequestID))),
		csiserver.WithValidation(csispec.CSISanity()),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
	}
	var backend *filePools
	if cfg.mode != "node" {
		if backend, err = openPools(ctx, cfg.pools.list, policy{cfg.overcommit, cfg.reserve}, work, log); err != nil {
			return err
		}
		defer backend.Close()
		opts = append(opts,
			csiserver.WithUnaryInterceptors(backend.UnaryServerInterceptor), csiserver.WithStreamInterceptors(backend.StreamServerInterceptor))
		opts = append(opts, csiserver.WithController(newController(backend, cfg.hasTopology())),
			csiserver.WithGroupController(newGroupController(backend)), csiserver.WithSnapshotMetadata(newSnapshotMetadata(backend)))
	} else { // every process of a plugin reports the same
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_CONTROLLER_SERVICE,
			csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE))
	}
	if cfg.mode != "controller" {
		ops, err := nodeops.New(nodeops.Config{Logger: log, Blocking: work, MeterProvider: tell.meters, TracerProvider: tell.tracers})
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
		sections = append(sections, csiserver.Rows("in the kernel", ops.Inspect))
	}
	if cfg.hasTopology() {
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	server, err := csiserver.New(csiserver.Info{Name: cfg.driverName, VendorVersion: version}, opts...)
	if err != nil {
		return err
	}
	register := func(context.Context) error { return nil }
	if cfg.register != "" {
		r, err := registration.New(registration.Config{
			DriverName: cfg.driverName, Endpoint: cfg.endpoint, KubeletEndpoint: cfg.register, Dir: cfg.registry, Logger: log,
		})
		if err != nil {
			return err
		}
		register = r.Serve
		sections = append(sections, csiserver.ReadyCheck("registration", r.Check),
			csiserver.Rows("registration", func() []registration.Status { return []registration.Status{r.Status()} }))
	}
	lis, err := csiserver.Listen(cfg.endpoint)
	if err != nil {
		return err
	}
	if cfg.http != "" {
		stop, err := serveHTTP(cfg.http, tell.with(server.Health(sections...)), log)
		if err != nil {
			return errors.Join(err, lis.Close())
		}
		defer stop()
	}
	log.Info("serving", "endpoint", cfg.endpoint, "mode", cfg.mode, "pool", cfg.pools.String(), "node_id", cfg.nodeID, "version", version)
	return serve(ctx, register, func(ctx context.Context) error { return server.Serve(ctx, lis) })
}

// serve runs the server until ctx ends or it fails, and meanwhile the registration,
// which ends only with its context.
func serve(ctx context.Context, register, server func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	registered := make(chan error, 1)
	go func() { registered <- register(ctx) }()
	err := server(ctx)
	stop()
	return errors.Join(err, <-registered)
}

// serveHTTP serves /healthz, /readyz, /debug and /metrics beside CSI, which goes on
// without them.
func serveHTTP(address string, h http.Handler, log *slog.Logger) (stop func(), err error) {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-http: %w", err)
	}
	log.Info("serving health", "http", lis.Addr().String())
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health is no longer served", "error", err)
		}
	}()
	return func() { srv.Close() }, nil
}

func newLogger(cfg config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
