package nodeops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// telemetry has a span for each operation and each of its steps, and the instruments
// below.
type telemetry struct {
	tracer   trace.Tracer
	duration metric.Float64Histogram
	formats  metric.Int64Counter
}

const scope = "github.com/csikit/csikit/nodeops"

func newTelemetry(tracers trace.TracerProvider, meters metric.MeterProvider, n *Node) (t telemetry, err error) {
	if tracers == nil {
		tracers = tracenoop.NewTracerProvider()
	}
	if meters == nil {
		meters = metricnoop.NewMeterProvider()
	}
	t.tracer = tracers.Tracer(scope)
	meter := meters.Meter(scope)
	var errs [5]error
	t.duration, errs[0] = meter.Float64Histogram("csikit.nodeops.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of operations on volumes, as seen by the caller, by operation (op) and gRPC code (code)."))
	t.formats, errs[1] = meter.Int64Counter("csikit.nodeops.formats", metric.WithUnit("{mkfs}"),
		metric.WithDescription("Runs of mkfs, counted before they start, by file system (fs_type); after_interruption: an earlier one was interrupted."))
	parked, err := meter.Int64ObservableGauge("csikit.nodeops.parked", metric.WithUnit("{call}"),
		metric.WithDescription("Calls in flight whose callers have timed out."))
	errs[2] = err
	oldest, err := meter.Float64ObservableGauge("csikit.nodeops.parked.oldest", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest parked call; 0 without any. Minutes mean that a device or a server hangs."))
	errs[3] = err
	_, errs[4] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		var count int64
		var age time.Duration
		for _, call := range n.blocking.Snapshot() {
			if call.Waiters == 0 {
				count++
				age = max(age, time.Since(call.Since))
			}
		}
		o.ObserveInt64(parked, count)
		o.ObserveFloat64(oldest, age.Seconds())
		return nil
	}, parked, oldest)
	if err := errors.Join(errs[:]...); err != nil {
		return t, fmt.Errorf("nodeops: create instruments: %w", err)
	}
	return t, nil
}

// operation starts the span of an operation; done ends it and records the duration.
func (t telemetry) operation(ctx context.Context, op, volumeID, path string) (_ context.Context, done func(error)) {
	start := time.Now()
	ctx, span := t.tracer.Start(ctx, "nodeops."+op, trace.WithAttributes(
		attribute.String("volume_id", volumeID), attribute.String("path", path)))
	return ctx, func(err error) {
		code := codes.OK
		if err != nil {
			code = status.Code(err)
		}
		t.duration.Record(context.WithoutCancel(ctx), time.Since(start).Seconds(),
			metric.WithAttributes(attribute.String("op", op), attribute.String("code", code.String())))
		end(span, err)
	}
}

// step starts the span of a part of an operation.
func (t telemetry) step(ctx context.Context, name string, attrs ...attribute.KeyValue) (_ context.Context, done func(error)) {
	ctx, span := t.tracer.Start(ctx, "nodeops."+name, trace.WithAttributes(attrs...))
	return ctx, func(err error) { end(span, err) }
}

func end(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}
