package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/embedded"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	traceembedded "go.opentelemetry.io/otel/trace/embedded"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type (
	noopMeter  = metricnoop.Meter
	noopTracer = tracenoop.Tracer
)

// ledger is a meter that adds up what is recorded, by instrument and attributes. A
// histogram counts its records.
type ledger struct {
	embedded.MeterProvider
	noopMeter
	mu     sync.Mutex
	sums   map[string]int64
	bounds []float64
	refuse error
}

func (l *ledger) Meter(string, ...metric.MeterOption) metric.Meter { return l }

func (l *ledger) add(name string, attrs attribute.Set, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sums == nil {
		l.sums = map[string]int64{}
	}
	l.sums[name+"{"+attrs.Encoded(attribute.DefaultEncoder())+"}"] += n
}

func (l *ledger) all() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.sums)
}

type addOnly struct {
	metricnoop.Int64Counter
	l    *ledger
	name string
}

func (a addOnly) Add(_ context.Context, n int64, o ...metric.AddOption) {
	a.l.add(a.name, metric.NewAddConfig(o).Attributes(), n)
}

type addAndSubtract struct {
	metricnoop.Int64UpDownCounter
	l    *ledger
	name string
}

func (a addAndSubtract) Add(_ context.Context, n int64, o ...metric.AddOption) {
	a.l.add(a.name, metric.NewAddConfig(o).Attributes(), n)
}

type recorder struct {
	metricnoop.Float64Histogram
	l    *ledger
	name string
}

func (r recorder) Record(_ context.Context, _ float64, o ...metric.RecordOption) {
	r.l.add(r.name, metric.NewRecordConfig(o).Attributes(), 1)
}

func (l *ledger) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return addOnly{l: l, name: name}, l.refuse
}
func (l *ledger) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return addAndSubtract{l: l, name: name}, nil
}
func (l *ledger) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	l.bounds = metric.NewFloat64HistogramConfig(o...).ExplicitBucketBoundaries()
	return recorder{l: l, name: name}, nil
}

func TestMetrics(t *testing.T) {
	l := &ledger{}
	inside := make(chan map[string]int64, 1)
	p := serve(t, csiserver.WithMeterProvider(l),
		csiserver.WithNode(&node{
			unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
				inside <- l.all()
				return nil
			},
			publish: func(context.Context, *csi.NodePublishVolumeRequest) error { panic("boom") },
			stats:   func(context.Context, *csi.NodeGetVolumeStatsRequest) error { return errors.New("no disk") },
		}),
		csiserver.WithSnapshotMetadata(&metadata{allocated: func(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
			return status.Error(codes.NotFound, "no snapshot")
		}}))
	p.node().NodeUnpublishVolume(t.Context(), unpublishRequest)
	p.node().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v"})
	p.node().NodePublishVolume(t.Context(), publishRequest())
	p.node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p"})
	p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s"})
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}

	if n := (<-inside)["csikit.csiserver.rpc.in_flight{method=/csi.v1.Node/NodeUnpublishVolume}"]; n != 1 {
		t.Errorf("%d calls in flight during the first", n)
	}
	want := map[string]int64{
		"csikit.csiserver.rpc.duration{code=OK,method=/csi.v1.Node/NodeUnpublishVolume}":                     1,
		"csikit.csiserver.rpc.duration{code=InvalidArgument,method=/csi.v1.Node/NodeUnpublishVolume}":        1,
		"csikit.csiserver.rpc.duration{code=Unavailable,method=/csi.v1.Node/NodePublishVolume}":              1,
		"csikit.csiserver.rpc.duration{code=Internal,method=/csi.v1.Node/NodeGetVolumeStats}":                1,
		"csikit.csiserver.rpc.duration{code=NotFound,method=/csi.v1.SnapshotMetadata/GetMetadataAllocated}":  1,
		"csikit.csiserver.rpc.in_flight{method=/csi.v1.Node/NodeUnpublishVolume}":                            0,
		"csikit.csiserver.rpc.in_flight{method=/csi.v1.Node/NodePublishVolume}":                              0,
		"csikit.csiserver.rpc.in_flight{method=/csi.v1.Node/NodeGetVolumeStats}":                             0,
		"csikit.csiserver.rpc.in_flight{method=/csi.v1.SnapshotMetadata/GetMetadataAllocated}":               0,
		"csikit.csiserver.panics{method=/csi.v1.Node/NodePublishVolume}":                                     1,
		"csikit.csiserver.violations{message=request,method=/csi.v1.Node/NodeUnpublishVolume,rule=required}": 1,
	}
	if got := l.all(); !maps.Equal(got, want) {
		t.Errorf("counted\n%v, want\n%v", got, want)
	}
	// What csi-lib-utils has, for its dashboards.
	for _, b := range []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600} {
		if !slices.Contains(l.bounds, b) {
			t.Errorf("no bucket ends at %v", b)
		}
	}
}

// A server with a handler for unknown services lets clients choose the names of
// methods: they must not make series without end.
func TestMetricsOfUnknownMethods(t *testing.T) {
	l := &ledger{}
	metrics, err := csiserver.Metrics(l)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		err := metrics.Stream(nil, serverStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: fmt.Sprint("/nonsense/", i)},
			func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "no") })
		if status.Code(err) != codes.Unimplemented {
			t.Fatal(err)
		}
	}
	_, _ = metrics.Unary(t.Context(), unpublishRequest, unpublishInfo, func(context.Context, any) (any, error) { return nil, nil })
	all := l.all()
	if n := all["csikit.csiserver.rpc.duration{code=OK,method=/csi.v1.Node/NodeUnpublishVolume}"]; len(all) > 2*200 || n != 1 {
		t.Errorf("%d series, NodeUnpublishVolume counted %d times", len(all), n)
	}
}

func TestMetricsRefused(t *testing.T) {
	_, err := csiserver.New(info, csiserver.WithMeterProvider(&ledger{refuse: errors.New("no more instruments")}))
	if err == nil || !strings.Contains(err.Error(), "create instruments: no more instruments") {
		t.Error(err)
	}
}

// Without a provider calls are served all the same.
func TestMetricsNoop(t *testing.T) {
	m, err := csiserver.Metrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &csi.NodeUnpublishVolumeResponse{}
	resp, err := m.Unary(t.Context(), unpublishRequest, unpublishInfo, func(context.Context, any) (any, error) { return want, nil })
	if resp != want || err != nil {
		t.Errorf("got %v, %v", resp, err)
	}
}

// Recovery further out leaves no call in flight, and no success that was none.
func TestMetricsInsideRecovery(t *testing.T) {
	l := &ledger{}
	m, err := csiserver.Metrics(l)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := csiserver.Recovery(nil).Unary(t.Context(), unpublishRequest, unpublishInfo, func(ctx context.Context, req any) (any, error) {
		return m.Unary(ctx, req, unpublishInfo, func(context.Context, any) (any, error) { panic("boom") })
	})
	if resp != nil || err == nil {
		t.Errorf("got %v, %v", resp, err)
	}
	if got, want := l.all(), map[string]int64{
		"csikit.csiserver.rpc.duration{code=Internal,method=/csi.v1.Node/NodeUnpublishVolume}": 1,
		"csikit.csiserver.rpc.in_flight{method=/csi.v1.Node/NodeUnpublishVolume}":              0,
		"csikit.csiserver.panics{method=/csi.v1.Node/NodeUnpublishVolume}":                     1,
	}; !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// diary is a tracer that remembers what was started, and in which trace.
type diary struct {
	traceembedded.TracerProvider
	noopTracer
	mu     sync.Mutex
	spans  []string
	traces []string
}

func (d *diary) Tracer(string, ...trace.TracerOption) trace.Tracer { return d }

func (d *diary) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spans = append(d.spans, name)
	d.traces = append(d.traces, trace.SpanContextFromContext(ctx).TraceID().String())
	return d.noopTracer.Start(ctx, name)
}

func TestTraces(t *testing.T) {
	d := &diary{}
	p := serve(t, csiserver.WithTracerProvider(d),
		csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error { return nil }}))
	const id = "0af7651916cd43dd8448eb211c80319c"
	ctx := grpcmetadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+id+"-b7ad6b7169203331-01")
	if _, err := p.node().NodeUnpublishVolume(ctx, unpublishRequest); err != nil {
		t.Error(err)
	}
	p.probe()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(d.spans, []string{"csi.v1.Node/NodeUnpublishVolume"}) || !slices.Equal(d.traces, []string{id}) {
		t.Errorf("spans %q of traces %q", d.spans, d.traces)
	}
}

// spy is a tracer whose spans record everything.
type spy struct {
	traceembedded.TracerProvider
	noopTracer
	recorded chan string
}

type spySpan struct {
	tracenoop.Span
	recorded chan string
}

func (s spy) Tracer(string, ...trace.TracerOption) trace.Tracer { return s }

func (s spy) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(o...)
	s.recorded <- fmt.Sprint(name, c.Attributes())
	span := spySpan{recorded: s.recorded}
	return trace.ContextWithSpan(ctx, span), span
}

func (s spySpan) IsRecording() bool { return true }
func (s spySpan) SetStatus(c otelcodes.Code, text string) {
	s.recorded <- fmt.Sprint("status ", c, text)
}
func (s spySpan) SetAttributes(a ...attribute.KeyValue)         { s.recorded <- fmt.Sprint(a) }
func (s spySpan) RecordError(err error, _ ...trace.EventOption) { s.recorded <- fmt.Sprint(err) }
func (s spySpan) AddEvent(name string, o ...trace.EventOption) {
	c := trace.NewEventConfig(o...)
	s.recorded <- fmt.Sprint(name, c.Attributes())
}

// A span has the text of the error, less what is secret.
func TestTracesHaveNoSecrets(t *testing.T) {
	s := spy{recorded: make(chan string, 100)}
	p := serve(t, csiserver.WithTracerProvider(s), csiserver.WithRedactedKeys("mine"),
		csiserver.WithNode(&node{publish: func(_ context.Context, r *csi.NodePublishVolumeRequest) error {
			return fmt.Errorf("no share for %v, %v, %v", r.GetSecrets(), r.GetVolumeContext(), r.GetVolumeCapability().GetMount().GetMountFlags())
		}}))
	if _, err := p.node().NodePublishVolume(t.Context(), publishRequest()); err == nil {
		t.Error("published")
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	close(s.recorded)
	var all []string
	for text := range s.recorded {
		all = append(all, text)
	}
	text := strings.Join(all, "\n")
	for _, secret := range planted {
		if strings.Contains(text, secret) {
			t.Errorf("%s leaks: %s", secret, text)
		}
	}
	if !strings.Contains(text, "no share for map[password:***stripped***]") {
		t.Errorf("the spans say %s", text)
	}
}
