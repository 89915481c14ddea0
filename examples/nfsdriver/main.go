// Command nfsdriver is a CSI driver for network shares, assembled from csikit's
// packages: a directory on an NFS export for each volume, mounted into pods without
// staging. It is an example to run, read and copy; README.md describes what to
// change for storage of your own.
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
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/registration"
	"github.com/csikit/csikit/volumelock"
	"go.opentelemetry.io/otel"
)

// version is reported as vendor_version; releases set it with -ldflags.
var version = "dev"

func main() {
	// The first signal drains, the second one kills, because after the first the default
	// action is restored.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nfsdriver:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	cfg, err := parseConfig(args, getenv, stdout)
	if err != nil {
		return err
	}
	return drive(ctx, cfg, newLogger(cfg, stderr))
}

func drive(ctx context.Context, cfg config, log *slog.Logger) error {
	meters := otel.GetMeterProvider() // a no-op until the program sets one
	servers := newServers(cfg.serverTimeout)
	if cfg.fsType != "nfs" {
		servers.dial = nil
	}
	if err := servers.Instrument(meters); err != nil {
		return err
	}
	locks := new(volumelock.Table)
	sections := []csiserver.HealthSection{
		csiserver.DebugTable("servers", servers.Snapshot), csiserver.DebugTable("work", servers.Jobs), csiserver.DebugTable("locks", locks.Snapshot),
	}
	opts := []csiserver.Option{
		csiserver.WithLogger(log),
		csiserver.WithMeterProvider(meters),
		csiserver.WithDrainTimeout(cfg.drainTimeout),
		csiserver.WithInterceptors(volumelock.Interceptor(locks,
			volumelock.WithPolicy(lockPolicy), volumelock.WithRequestID(csiserver.RequestID))),
		csiserver.WithValidationOptions(csispec.WithCSISanity()),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
	}
	ops := func(unmount nodeops.UnmountPolicy) (*nodeops.Node, error) {
		return nodeops.New(nodeops.Config{
			Logger: log, MeterProvider: meters, Unmount: unmount,
			HelperTimeout:  cfg.serverTimeout * 2 / 3, // the helper is killed before the call to the server times out
			UnmountTimeout: cfg.serverTimeout / 3,
			// A blocked call occupies a thread. A node may have more volumes of one server than
			// the default limit, and calls for other servers must not exceed it.
			Blocking: &blocking.Group{Limit: 1000},
		})
	}
	if cfg.mode != "node" {
		// Never by force: that aborts requests of pods that have the same export mounted.
		node, err := ops(nodeops.UnmountWait)
		if err != nil {
			return err
		}
		var mounts mounter = localDirs(cfg.local)
		if cfg.local == "" {
			nfs, err := newNFSMounts(ctx, cfg.mountDir, cfg.fsType, cfg.serverTimeout, node, log)
			if err != nil {
				return err
			}
			defer nfs.Close()
			mounts = nfs
		}
		exports := newExports(mounts, time.Minute, log)
		exports.lockTimeout = cfg.serverTimeout * 2 / 3 // before the call times out, because the server does respond
		defer exports.Close()
		backend := newDirBackend(servers, exports, cfg.exports, log)
		defer backend.Close()
		backend.Recover()
		opts = append(opts, csiserver.WithController(newController(backend, cfg.exports != nil)))
		sections = append(sections, csiserver.DebugTable("exports", exports.Snapshot))
	} else { // every process of a plugin has to report the same
		opts = append(opts, csiserver.WithPluginCapabilities(csi.PluginCapability_Service_CONTROLLER_SERVICE))
	}
	if cfg.mode != "controller" {
		// An unresponsive server must not block the termination of its pods.
		node, err := ops(nodeops.UnmountLazy)
		if err != nil {
			return err
		}
		opts = append(opts, csiserver.WithNode(newNode(cfg, servers, node)))
		sections = append(sections, csiserver.DebugTable("in the kernel", node.InFlight))
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
	beside = append(beside, csiserver.WithHealth(cfg.http, server.Health(sections...)))
	lis, err := csiserver.Listen(cfg.endpoint)
	if err != nil {
		return err
	}
	log.Info("starting", "endpoint", cfg.endpoint, "mode", cfg.mode, "node_id", cfg.nodeID, "version", version)
	return server.Serve(ctx, lis, beside...)
}

// lockPolicy makes CreateVolume and DeleteVolume of one directory exclude each other, and
// likewise those of snapshots with one name, because a request to create has no ID yet.
func lockPolicy(method string, req any) []volumelock.Request {
	keys := volumelock.DefaultPolicy(method, req)
	add := func(kind volumelock.Kind, place string) {
		keys = append(keys, volumelock.Request{Key: volumelock.Key{Kind: kind, ID: place}})
	}
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		if spec, err := volumeSpec(r); err == nil {
			add(volumelock.KindVolume, spec.Ref.place())
		}
	case *csi.DeleteVolumeRequest:
		if ref, err := parseVolumeID(r.GetVolumeId()); err == nil {
			add(volumelock.KindVolume, ref.place())
		}
	case *csi.CreateSnapshotRequest:
		if ref, err := parseVolumeID(r.GetSourceVolumeId()); err == nil {
			add(volumelock.KindSnapshot, snapshotRef{export: ref.export, Key: digest(r.GetName())}.place())
		}
	case *csi.DeleteSnapshotRequest:
		if ref, err := parseSnapshotID(r.GetSnapshotId()); err == nil {
			add(volumelock.KindSnapshot, ref.place())
		}
	}
	return keys
}

func newLogger(cfg config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
