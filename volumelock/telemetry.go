package volumelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

type instruments struct{ refusals metric.Int64Counter }

// Instrument registers OpenTelemetry instruments for the table: the gauges
// csikit.volumelock.held (keys), .waiting (calls) and .oldest
// (seconds since the oldest key was taken), and the counter .refusals, by rpc. They are
// observed for the lifetime of the provider. A nil provider is a no-op. Call it once.
func (t *Table) Instrument(meters metric.MeterProvider) error {
	if meters == nil {
		return nil
	}
	meter := meters.Meter("github.com/csikit/csikit/volumelock")
	var errs [5]error
	refusals, err := meter.Int64Counter("csikit.volumelock.refusals", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that were refused because a key was held, by rpc."))
	errs[0] = err
	held, err := meter.Int64ObservableGauge("csikit.volumelock.held", metric.WithUnit("{key}"),
		metric.WithDescription("Keys that are held, each once for every call that holds it."))
	errs[1] = err
	waiting, err := meter.Int64ObservableGauge("csikit.volumelock.waiting", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that are waiting for keys."))
	errs[2] = err
	oldest, err := meter.Float64ObservableGauge("csikit.volumelock.oldest", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest key that is held; 0 without any. Minutes mean that a call hangs."))
	errs[3] = err
	_, errs[4] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		keys, age := t.load()
		o.ObserveInt64(held, keys)
		o.ObserveInt64(waiting, t.queue.length.Load())
		o.ObserveFloat64(oldest, age.Seconds())
		return nil
	}, held, waiting, oldest)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("volumelock: register instruments: %w", err)
	}
	t.metrics.Store(&instruments{refusals})
	return nil
}

// load counts the keys held. It locks one shard after the other: the sum need not be of
// one point in time.
func (t *Table) load() (keys int64, oldest time.Duration) {
	for i := range t.shards {
		set := shardSet(1) << i
		t.lock(set)
		now := clock()
		t.shards[i].each(func(s *slot) {
			keys++
			oldest = max(oldest, now-s.hold.since)
		})
		t.unlock(set)
	}
	return keys, oldest
}

func (t *Table) refused(busy *BusyError) {
	if m := t.metrics.Load(); m != nil {
		m.refusals.Add(context.Background(), 1, metric.WithAttributes(attribute.String("rpc", busy.RPC)))
	}
}
