package csiserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/volumelock"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc"
)

// Capabilities that contradict each other are found at start-up, with the way out and
// the sentence of the specification.
func ExampleNew() {
	info := csiserver.Info{Name: "csi.example.com", VendorVersion: "v1.2.3"}
	_, err := csiserver.New(info,
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_OFFLINE))
	fmt.Println(strings.ReplaceAll(err.Error(), ": ", ":\n  "))

	// The controller of this plugin runs in another process. Both have to report
	// the same plugin capabilities.
	_, err = csiserver.New(info,
		csiserver.WithPluginCapabilities(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_OFFLINE))
	fmt.Println(err)
	// Output:
	// new plugin "csi.example.com":
	//   invalid capabilities:
	//   volume_expansion.OFFLINE needs controller.EXPAND_VOLUME:
	//   add that, or drop this (csi.proto:
	//   "When a plugin supports OFFLINE volume expansion it MUST implement either the EXPAND_VOLUME controller capability or both the EXPAND_VOLUME controller capability and the EXPAND_VOLUME node capability.")
	// <nil>
}

// A process that has died leaves its socket file behind, and the next Listen replaces
// it. Listen removes no other file.
func ExampleListen() {
	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "csi.sock")

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		panic(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()

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

// Each interceptor works in a gRPC server of your own, too.
func ExampleInterceptor() {
	ids, calls, statuses := csiserver.RequestIDs(), csiserver.Logging(slog.Default()), csiserver.StatusNormalization()
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(ids.Unary, calls.Unary, statuses.Unary),
		grpc.ChainStreamInterceptor(ids.Stream, calls.Stream, statuses.Stream),
	)
	csi.RegisterNodeServer(server, csi.UnimplementedNodeServer{}) // yours
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

// Every caller in Kubernetes retries a call that exceeds InFlight. Other methods, such as
// Probe, are not affected.
func ExampleLimits() {
	limits, err := csiserver.Limits(map[string]csiserver.Limit{
		"NodeStageVolume":    {Timeout: 110 * time.Second, InFlight: 16},
		"NodeGetVolumeStats": {Timeout: 10 * time.Second},
	})
	if err != nil {
		panic(err)
	}
	stage := &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodeStageVolume"}
	_, err = limits.Unary(context.Background(), nil, stage, func(ctx context.Context, _ any) (any, error) {
		_, bounded := ctx.Deadline()
		fmt.Println("bounded:", bounded)
		return nil, nil
	})
	fmt.Println(err)

	_, err = csiserver.Limits(map[string]csiserver.Limit{"NodeStage": {InFlight: 16}})
	fmt.Println(err)
	// Output:
	// bounded: true
	// <nil>
	// limit of NodeStage: CSI has no such method
}

// The debug page takes the Snapshot methods of locks and of calls that hang in the
// kernel without an adapter.
func ExampleServer_Health() {
	server, err := csiserver.New(csiserver.Info{Name: "csi.example.com", VendorVersion: "v1.2.3"})
	if err != nil {
		panic(err)
	}
	locks := new(volumelock.Table)
	held, err := locks.Acquire(volumelock.Op{RPC: "NodeStageVolume"}, volumelock.Request{Key: volumelock.Key{Kind: volumelock.KindVolume, ID: "share-1"}})
	if err != nil {
		panic(err)
	}
	defer held.Release()
	health := server.Health(csiserver.DebugTable("locks", locks.Snapshot)) // server.Serve(ctx, lis, csiserver.WithHealth("127.0.0.1:9808", health))

	w := httptest.NewRecorder()
	health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug", nil))
	for _, line := range strings.Split(w.Body.String(), "\n")[1:] {
		fmt.Println(strings.TrimRight(line[:min(len(line), 46)], " ")) // age and more are further right
	}
	// Output:
	// calls: 0
	//
	// locks: 1
	//   KEY               MODE       RPC
	//   volume "share-1"  exclusive  NodeStageVolume
}

// Metrics and traces go to whatever providers a program sets up: the SDK of
// OpenTelemetry with an exporter for Prometheus, or the global ones, as here.
func ExampleWithMeterProvider() {
	var locks volumelock.Table
	if err := locks.Instrument(otel.GetMeterProvider()); err != nil {
		panic(err)
	}
	_, err := csiserver.New(
		csiserver.Info{Name: "csi.example.com", VendorVersion: "v1.2.3"},
		csiserver.WithMeterProvider(otel.GetMeterProvider()),
		csiserver.WithTracerProvider(otel.GetTracerProvider()),
		csiserver.WithInterceptors(volumelock.Interceptor(&locks, volumelock.WithRequestID(csiserver.RequestID))))
	fmt.Println(err)
	// Output:
	// <nil>
}

// Health pages and a registration with kubelet run beside the server. A page of a metrics
// library fits into the same mux.
func ExampleWithHealth() {
	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	server, err := csiserver.New(csiserver.Info{Name: "csi.example.com", VendorVersion: "v1.2.3"})
	if err != nil {
		panic(err)
	}
	lis, err := csiserver.Listen("unix://" + filepath.Join(dir, "csi.sock"))
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", server.Health())
	mux.Handle("/metrics", http.NotFoundHandler()) // promhttp.Handler()
	ctx, stop := context.WithCancel(context.Background())
	err = server.Serve(ctx, lis,
		csiserver.WithHealth("127.0.0.1:0", mux), // usually ":9808"
		csiserver.WithBackground("registration", func(ctx context.Context) error { // registrar.Serve
			stop() // a driver serves until SIGTERM
			<-ctx.Done()
			return nil
		}))
	fmt.Println(err)
	// Output:
	// <nil>
}
