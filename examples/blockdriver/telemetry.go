package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushTimeout is how long the end waits for a collector to take the last spans.
const flushTimeout = 3 * time.Second

// telemetry has the providers of metrics and traces. One that is not configured is nil,
// and costs nothing.
type telemetry struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider

	metrics http.Handler
	spans   *sdktrace.TracerProvider
}

// newTelemetry creates metrics for /metrics if there is -http, and traces if the standard
// variables name a collector: OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. The other variables of OpenTelemetry work too:
// headers and certificates, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_SDK_DISABLED. Spans go by gRPC.
func newTelemetry(ctx context.Context, cfg config, getenv func(string) string, log *slog.Logger) (*telemetry, error) {
	t := &telemetry{}
	if getenv("OTEL_SDK_DISABLED") == "true" {
		return t, nil
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "blockdriver"), attribute.String("service.version", version),
			attribute.String("service.instance.id", cfg.nodeID)),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv()) // wins
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry", "error", err) }))
	if cfg.http != "" {
		if err := t.makeMetrics(about); err != nil {
			return nil, err
		}
	}
	if getenv("OTEL_TRACES_EXPORTER") != "none" &&
		(getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "") {
		spans, err := otlptracegrpc.New(ctx) // connects when it has something to send
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_*: %w", err)
		}
		t.spans = sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(about))
		t.tracers = t.spans
	}
	return t, nil
}

func (t *telemetry) makeMetrics(about *resource.Resource) error {
	registry := prometheus.NewRegistry()
	reader, err := promexporter.New(promexporter.WithRegisterer(registry))
	if err == nil {
		err = errors.Join(registry.Register(collectors.NewGoCollector()), registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
	}
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))
	t.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})
	return nil
}

// with adds /metrics to what h serves.
func (t *telemetry) with(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	if t.metrics != nil {
		mux.Handle("GET /metrics", t.metrics)
	}
	return mux
}

// stop sends the spans that are left. It waits no longer than flushTimeout: a collector
// that is down must not keep the driver from ending.
func (t *telemetry) stop() error {
	if t.spans == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return t.spans.Shutdown(ctx)
}
