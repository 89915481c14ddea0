// Command minimal is a small and complete CSI driver for block storage, to be read from
// beginning to end: sparse image files in one directory, attached as loop devices of the
// only node. main.go starts it, controller.go and node.go are the CSI services, and
// store.go keeps the volumes so that kill -9 and power failures do no harm.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/volumelock"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "minimal:", err)
		os.Exit(1)
	}
}

func run() error {
	hostname, _ := os.Hostname()
	endpoint := flag.String("endpoint", os.Getenv("CSI_ENDPOINT"), "socket to serve on, such as unix:///run/csi/csi.sock")
	dir := flag.String("dir", "/var/lib/csi-minimal", "existing directory for the volumes")
	nodeID := flag.String("node-id", hostname, "ID of this node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal kills

	lis, err := csiserver.Listen(*endpoint) // first, because it fails if another process serves there
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	store, err := openStore(*dir)
	if err != nil {
		return err
	}
	ops, err := nodeops.New(nodeops.Config{Logger: log})
	if err != nil {
		return err
	}
	server, err := csiserver.New(
		csiserver.Info{Name: "minimal.csikit.dev", VendorVersion: "1.0"},
		csiserver.WithController(&controller{store: store, nodeID: *nodeID}),
		csiserver.WithNode(&node{store: store, id: *nodeID, ops: ops}),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
		csiserver.WithInterceptors(volumelock.Interceptor(new(volumelock.Table))),
		csiserver.WithValidationOptions(csispec.WithCSISanity()),
		csiserver.WithLogger(log),
	)
	if err != nil {
		return err
	}
	return server.Serve(ctx, lis)
}
