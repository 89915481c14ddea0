package nodeops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/csikit/csikit/csierr"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// recorder is a provider of tracers and meters that records everything.
type recorder struct {
	metricnoop.MeterProvider

	mu    sync.Mutex
	spans []string // "parent > name (error)", as they end
	said  []string // "instrument attributes"
	watch metric.Callback
}

type (
	recordTracers struct {
		tracenoop.TracerProvider
		r *recorder
	}
	recordTracer struct {
		tracenoop.Tracer
		r *recorder
	}
	recordSpan struct {
		tracenoop.Span
		r      *recorder
		name   string
		parent string
		failed string
	}
	recordMeter struct {
		metricnoop.Meter
		r *recorder
	}
	recordInstrument struct {
		metricnoop.Int64Counter
		name string
		r    *recorder
	}
	recordHistogram struct {
		metricnoop.Float64Histogram
		name string
		r    *recorder
	}
	recordObserver struct {
		metricnoop.Observer
		ints   []int64
		floats []float64
	}
)

func (p recordTracers) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return recordTracer{r: p.r}
}

func (t recordTracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	s := &recordSpan{r: t.r, name: name}
	if p, ok := trace.SpanFromContext(ctx).(*recordSpan); ok {
		s.parent = p.name + " > "
	}
	return trace.ContextWithSpan(ctx, s), s
}

func (s *recordSpan) SetStatus(code otelcodes.Code, text string) {
	if code == otelcodes.Error {
		s.failed = " (error)"
	}
}

func (s *recordSpan) End(...trace.SpanEndOption) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.spans = append(s.r.spans, s.parent+s.name+s.failed)
}

func (r *recorder) Meter(string, ...metric.MeterOption) metric.Meter { return recordMeter{r: r} }

func (m recordMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return recordInstrument{name: name, r: m.r}, nil
}

func (m recordMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return recordHistogram{name: name, r: m.r}, nil
}

func (m recordMeter) RegisterCallback(f metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	m.r.watch = f
	return metricnoop.Registration{}, nil
}

func (r *recorder) say(name string, set attribute.Set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := []string{name}
	for _, a := range set.ToSlice() {
		words = append(words, fmt.Sprintf("%s=%v", a.Key, a.Value.AsInterface()))
	}
	r.said = append(r.said, strings.Join(words, " "))
}

func (c recordInstrument) Add(_ context.Context, n int64, opts ...metric.AddOption) {
	for range n {
		c.r.say(c.name, metric.NewAddConfig(opts).Attributes())
	}
}

func (h recordHistogram) Record(_ context.Context, _ float64, opts ...metric.RecordOption) {
	h.r.say(h.name, metric.NewRecordConfig(opts).Attributes())
}

func (o *recordObserver) ObserveInt64(_ metric.Int64Observable, v int64, _ ...metric.ObserveOption) {
	o.ints = append(o.ints, v)
}

func (o *recordObserver) ObserveFloat64(_ metric.Float64Observable, v float64, _ ...metric.ObserveOption) {
	o.floats = append(o.floats, v)
}

func TestTelemetry(t *testing.T) {
	f := newFixture(t, 64*mib)
	r := new(recorder)
	f.with(Config{TracerProvider: recordTracers{r: r}, MeterProvider: r})
	f.mustStage("ext4")
	ok(t, f.publish("p", nil))
	wantKind(t, f.node.Unstage(t.Context(), UnstageRequest{VolumeID: "v", StagingTargetPath: f.staging}), csierr.Precondition)
	ok(t, f.unpublish("p"))

	for _, want := range []string{
		"nodeops.stage > nodeops.device",
		"nodeops.stage > nodeops.probe",
		"nodeops.probe > nodeops.blkid",
		"nodeops.stage > nodeops.mke2fs",
		"nodeops.stage > nodeops.mount",
		"nodeops.stage",
		"nodeops.publish > nodeops.bind",
		"nodeops.publish",
		"nodeops.unstage (error)",
		"nodeops.unpublish > nodeops.unmount",
		"nodeops.unpublish",
	} {
		if !slices.Contains(r.spans, want) {
			t.Errorf("no span %q in %q", want, r.spans)
		}
	}
	want := []string{
		"csikit.nodeops.formats after_interruption=false fs_type=ext4",
		"csikit.nodeops.operation.duration code=OK op=stage",
		"csikit.nodeops.operation.duration code=OK op=publish",
		"csikit.nodeops.operation.duration code=FailedPrecondition op=unstage",
		"csikit.nodeops.operation.duration code=OK op=unpublish",
	}
	if !slices.Equal(r.said, want) {
		t.Errorf("measured\n%q, want\n%q", r.said, want)
	}
}

func TestTelemetryOfParkedWork(t *testing.T) {
	r := new(recorder)
	n, err := New(Config{MeterProvider: r})
	ok(t, err)
	observe := func() (count int64, age float64) {
		var o recordObserver
		ok(t, r.watch(t.Context(), &o))
		return o.ints[0], o.floats[0]
	}
	if count, age := observe(); count != 0 || age != 0 {
		t.Errorf("%d parked, the oldest for %v s, want none", count, age)
	}
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	err = n.run(ctx, "publish", "v", "/p", func(context.Context, resolvedPath) error { cancel(); <-release; return nil })
	if !isPending(err) {
		t.Fatalf("error is %v, want one that is pending", err)
	}
	if count, age := observe(); count != 1 || age <= 0 {
		t.Errorf("%d parked, the oldest for %v s, want one", count, age)
	}
	close(release)
	waitIdle(t, n)
}
