package csiserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
)

// What contradicts itself is found at start-up, with the way out.
func ExampleNew() {
	info := csiserver.Info{Name: "csi.example.com", VendorVersion: "v1.2.3"}
	_, err := csiserver.New(info,
		csiserver.WithNode(&shareNode{}),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_OFFLINE))
	fmt.Println(err)

	// The controller of this plugin runs in another process. Both have to report
	// the same plugin capabilities.
	_, err = csiserver.New(info,
		csiserver.WithNode(&shareNode{}),
		csiserver.WithPluginCapabilities(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_OFFLINE))
	fmt.Println(err)
	// Output:
	// new plugin "csi.example.com": invalid capabilities: volume_expansion.OFFLINE needs controller.EXPAND_VOLUME: add that, or drop this
	// <nil>
}

// A process that has died leaves its socket behind, and the next one takes its
// place. Anything else in the way is left alone.
func ExampleListen() {
	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "csi.sock")

	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		panic(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()

	lis, err := csiserver.Listen("unix://" + path)
	if err != nil {
		panic(err)
	}
	defer lis.Close()
	file, err := os.Stat(path)
	if err != nil {
		panic(err)
	}
	fmt.Println(file.Mode())
	// Output:
	// Srw-------
}

// Each layer works in a gRPC server of your own, too.
func ExampleInterceptor() {
	ids, calls, statuses := csiserver.RequestIDs(), csiserver.Logging(slog.Default()), csiserver.StatusNormalization()
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(ids.Unary, calls.Unary, statuses.Unary),
		grpc.ChainStreamInterceptor(ids.Stream, calls.Stream, statuses.Stream),
	)
	csi.RegisterNodeServer(server, &shareNode{})
	fmt.Println(len(server.GetServiceInfo()))
	// Output:
	// 1
}

func ExampleRequestID() {
	ids := csiserver.RequestIDs()
	_, err := ids.Unary(context.Background(), nil, nil, func(ctx context.Context, _ any) (any, error) {
		fmt.Println(csiserver.RequestID(ctx) != "")
		return nil, nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
