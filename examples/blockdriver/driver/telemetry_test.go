package driver

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// spans is a collector that passes on the names of the spans that it gets.
type spans struct {
	collector.UnimplementedTraceServiceServer
	names chan string
}

func (s spans) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, r := range req.GetResourceSpans() {
		for _, scope := range r.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.names <- span.GetName()
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// A call is counted in /metrics, beside locks, the node's operations and the process,
// and its span has reached the collector when the driver has ended.
func TestTelemetry(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, got := grpc.NewServer(), spans{names: make(chan string, 100)}
	collector.RegisterTraceServiceServer(server, got)
	go server.Serve(lis)
	defer server.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())

	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(t.Context())
	done, log := make(chan error, 1), &logText{}
	go func() {
		args := []string{"-endpoint", "unix://" + dir + "/csi.sock", "-node-id", "node", "-http", "127.0.0.1:0"}
		done <- Run(ctx, memory.New(), args, os.Getenv, io.Discard, log)
	}()
	conn, err := grpc.NewClient("unix://"+dir+"/csi.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := csi.NewNodeClient(conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	serving := regexp.MustCompile(`"serving health" http=(\S+)`)
	for !serving.MatchString(log.String()) && len(done) == 0 {
		runtime.Gosched()
	}
	resp, err := http.Get("http://" + serving.FindStringSubmatch(log.String())[1] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^csikit_csiserver_rpc_duration_seconds_count\{.*method="/csi.v1.Node/NodeGetInfo".*\} 1$`,
		`(?m)^csikit_volumelock_held\{`, `(?m)^csikit_nodeops_parked\{`, `(?m)^go_goroutines `, `(?m)^target_info\{.*service_name="` + program + `"`,
	} {
		if !regexp.MustCompile(want).Match(page) {
			t.Errorf("/metrics has no %s:\n%s", want, page)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	var names []string
	for len(got.names) > 0 {
		names = append(names, <-got.names)
	}
	if all := strings.Join(names, " "); !strings.Contains(all, "NodeGetInfo") {
		t.Errorf("spans: %q", all)
	}
}

// Without a collector there are no spans, and without -http no metrics.
func TestTelemetryIsOptional(t *testing.T) {
	for name, tt := range map[string]struct {
		http            bool
		env             map[string]string
		metrics, traces bool
	}{
		"nothing":  {},
		"http":     {http: true, metrics: true},
		"endpoint": {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, traces: true},
		"none":     {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}},
		"disabled": {http: true, env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
	} {
		telemetry, err := exportTelemetry(t.Context(), service{name: "x"}, tt.http, func(k string) string { return tt.env[k] }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if metrics, traces := telemetry.meters != nil, telemetry.tracers != nil; metrics != tt.metrics || traces != tt.traces {
			t.Errorf("%s: metrics %t, traces %t", name, metrics, traces)
		}
		telemetry.stop()
	}
}
