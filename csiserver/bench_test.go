package csiserver_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/volumelock"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// typicalPublish is a NodePublishVolume of kubelet's, 600 bytes on the wire.
func typicalPublish() *csi.NodePublishVolumeRequest {
	const pv = "pvc-4d9e1c52-7f0b-4c1e-9f0e-2f7c5f3a9b11"
	return &csi.NodePublishVolumeRequest{
		VolumeId:          pv,
		StagingTargetPath: "/var/lib/kubelet/plugins/kubernetes.io/csi/block.csikit.dev/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08/globalmount",
		TargetPath:        "/var/lib/kubelet/pods/1f6e3f1c-9f0e-4c1e-8f3a-2f7c5f3a9b11/volumes/kubernetes.io~csi/" + pv + "/mount",
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime"}}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		Secrets: map[string]string{"username": "backup", "password": "f1eld-s3cret"},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/pod.name": "web-0", "csi.storage.k8s.io/pod.namespace": "shop",
			"csi.storage.k8s.io/ephemeral": "false", "csi.storage.k8s.io/pod.uid": "1f6e3f1c-9f0e-4c1e-8f3a-2f7c5f3a9b11", "pool": "fast", "replicas": "3",
		},
	}
}

var publishInfo = &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodePublishVolume"}

// BenchmarkInterceptors measures the cost of the interceptors without transport,
// in proportion to a proto.Marshal of the request (vs-marshal).
func BenchmarkInterceptors(b *testing.B) {
	req := typicalPublish()
	resp := &csi.NodePublishVolumeResponse{}
	handler := func(context.Context, any) (any, error) { return resp, nil }
	discard := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelInfo}))
	quiet := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError}))
	metrics, err := csiserver.Metrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	var lock csiserver.Interceptor = volumelock.Interceptor(new(volumelock.Table))
	off := []csiserver.InterceptorOption{csiserver.WithRequestValidation(csiserver.ValidationOff), csiserver.WithResponseValidation(csiserver.ValidationOff)}
	for _, bb := range []struct {
		name  string
		stack []csiserver.Interceptor
	}{
		{"ids", []csiserver.Interceptor{csiserver.RequestIDs()}},
		{"log-off", []csiserver.Interceptor{csiserver.Logging(quiet)}},
		{"log-json", []csiserver.Interceptor{csiserver.Logging(discard)}},
		{"metrics-noop", []csiserver.Interceptor{metrics}},
		{"reporter", []csiserver.Interceptor{{Unary: interceptors.UnaryServerInterceptor(reportable{})}}}, // what Metrics would be built on
		{"status", []csiserver.Interceptor{csiserver.StatusNormalization()}},
		{"recovery", []csiserver.Interceptor{csiserver.Recovery(quiet)}},
		{"validation", []csiserver.Interceptor{csiserver.Validation(quiet)}},
		{"all-but-validation", server(quiet, csiserver.Validation(quiet, off...))},
		{"all", server(quiet, csiserver.Validation(quiet))},
		{"all+metrics-noop", append(server(quiet, csiserver.Validation(quiet)), metrics)},
		{"all+lock", append(server(quiet, csiserver.Validation(quiet)), lock)},
		{"all+lock-but-validation", append(server(quiet, csiserver.Validation(quiet, off...)), lock)},
		{"all+log-json-but-validation", server(discard, csiserver.Validation(quiet, off...))},
		{"all+log-json", server(discard, csiserver.Validation(quiet))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			call := csiserver.Chain(bb.stack)
			ctx := b.Context()
			// By turns, as other work on the machine comes and goes.
			const batch = 64
			var ours, marshal time.Duration
			for i := 0; i < b.N; i += batch {
				start := time.Now()
				for range batch {
					if _, err := call(ctx, req, publishInfo, handler); err != nil {
						b.Fatal(err)
					}
				}
				between := time.Now()
				b.StopTimer()
				for range batch {
					if _, err := proto.Marshal(req); err != nil {
						b.Fatal(err)
					}
				}
				ours += between.Sub(start)
				marshal += time.Since(between)
				b.StartTimer()
			}
			b.ReportMetric(float64(ours)/float64(marshal), "vs-marshal")
			b.ReportMetric(testing.AllocsPerRun(100, func() { _, _ = call(ctx, req, publishInfo, handler) }), "own-allocs/op")
		})
	}
}

// BenchmarkChain compares the chain of a Server with one of nested closures, as
// grpc.ChainUnaryInterceptor has it: one allocation for each interceptor and call, and
// another for what ours share.
func BenchmarkChain(b *testing.B) {
	req := typicalPublish()
	resp := &csi.NodePublishVolumeResponse{}
	handler := func(context.Context, any) (any, error) { return resp, nil }
	quiet := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError}))
	metrics, err := csiserver.Metrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	stack := append(server(quiet, csiserver.Validation(quiet)), metrics)
	ours := csiserver.Chain(stack)
	for _, bb := range []struct {
		name string
		call func(context.Context) (any, error)
	}{
		{"ours", func(ctx context.Context) (any, error) { return ours(ctx, req, publishInfo, handler) }},
		{"nested", func(ctx context.Context) (any, error) { return nested(stack, publishInfo, handler)(ctx, req) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bb.call(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func nested(stack []csiserver.Interceptor, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) grpc.UnaryHandler {
	if len(stack) == 0 {
		return handler
	}
	return func(ctx context.Context, req any) (any, error) {
		return stack[0].Unary(ctx, req, info, nested(stack[1:], info, handler))
	}
}

// reportable and reporter are the least that go-grpc-middleware's reporter needs to do
// what Metrics does: where a call goes, and its method to count it by.
type reportable struct{}

type reporter struct {
	interceptors.NoopReporter
	method string
}

func (reportable) ServerReporter(ctx context.Context, c interceptors.CallMeta) (interceptors.Reporter, context.Context) {
	return &reporter{method: c.Method}, ctx
}

// server is the order that Server uses.
func server(l *slog.Logger, validation csiserver.Interceptor) []csiserver.Interceptor {
	return []csiserver.Interceptor{csiserver.RequestIDs(), csiserver.Logging(l), csiserver.StatusNormalization(), csiserver.Recovery(l), validation}
}
