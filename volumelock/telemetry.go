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

// Instrument makes the table tell what it does, for as long as the provider
// lives: the gauges csikit.volumelock.held (keys), .waiting (calls) and .oldest
// (seconds since the oldest key was taken), and the counter .refusals, by rpc. A
// nil provider changes nothing. Call it once.
func (t *Table) Instrument(meters metric.MeterProvider) error {
	if meters == nil {
		return nil
	}
	meter := meters.Meter("github.com/csikit/csikit/volumelock")
	var errs [5]error
	refusals, err := meter.Int64Counter("csikit.volumelock.refusals", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that were refused because a key was taken, by rpc."))
	errs[0] = err
	held, err := meter.Int64ObservableGauge("csikit.volumelock.held", metric.WithUnit("{key}"),
		metric.WithDescription("Keys that are held, each once for every call that holds it."))
	errs[1] = err
	waiting, err := meter.Int64ObservableGauge("csikit.volumelock.waiting", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that wait for keys."))
	errs[2] = err
	oldest, err := meter.Float64ObservableGauge("csikit.volumelock.oldest", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest key that is held; 0 without any. Minutes mean that a call hangs."))
	errs[3] = err
	_, errs[4] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		keys, age := t.load()
		o.ObserveInt64(held, keys)
		o.ObserveInt64(waiting, t.line.length.Load())
		o.ObserveFloat64(oldest, age.Seconds())
		return nil
	}, held, waiting, oldest)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("volumelock: make instruments: %w", err)
	}
	t.metrics.Store(&instruments{refusals})
	return nil
}

// load counts what is held. It locks one shard after the other: a sum that is
// right a moment sooner or later will do.
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
