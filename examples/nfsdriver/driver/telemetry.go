package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

func init() { newTelemetry = exportTelemetry }

// flushTimeout is how long the end waits for a collector to take the last spans: one that
// is down must not keep the driver from ending.
const flushTimeout = 3 * time.Second

// exportTelemetry creates metrics for /metrics if the driver serves it, and traces if the
// standard variables name a collector: OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. The other variables of OpenTelemetry work too:
// headers and certificates, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_SDK_DISABLED. Spans go by gRPC.
func exportTelemetry(ctx context.Context, of service, withMetrics bool, getenv func(string) string, log *slog.Logger) (*telemetry, error) {
	t := &telemetry{stop: func() {}}
	if getenv("OTEL_SDK_DISABLED") == "true" {
		return t, nil
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", of.name), attribute.String("service.version", of.version),
			attribute.String("service.instance.id", of.instance)),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv()) // wins
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if withMetrics {
		registry := prometheus.NewRegistry()
		reader, err := promexporter.New(promexporter.WithRegisterer(registry))
		if err == nil {
			err = errors.Join(registry.Register(collectors.NewGoCollector()), registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
		}
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))
		t.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})
	}
	if getenv("OTEL_TRACES_EXPORTER") != "none" &&
		(getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "") {
		exporter, err := otlptracegrpc.New(ctx) // connects when it has something to send
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_*: %w", err)
		}
		spans := sdktrace.NewTracerProvider(sdktrace.WithBatcher(logged{exporter, log}), sdktrace.WithResource(about))
		t.tracers = spans
		t.stop = func() {
			ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
			defer cancel()
			if err := spans.Shutdown(ctx); err != nil {
				log.Warn("telemetry", "error", err)
			}
		}
	}
	return t, nil
}

// logged logs what is not sent: otherwise the SDK reports it to the handler for the whole
// process, which the program may use for something else.
type logged struct {
	sdktrace.SpanExporter
	log *slog.Logger
}

func (l logged) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.log.Warn("telemetry", "error", err)
	}
	return nil
}
