package volumelock_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/csikit/csikit/volumelock"
)

// provider returns meters that record what a table reports.
type provider struct {
	noop.MeterProvider
	m *meters
}

func (p provider) Meter(string, ...metric.MeterOption) metric.Meter { return p.m }

type meters struct {
	noop.Meter
	noop.Observer
	counted  map[string]int64   // by rpc
	values   map[string]float64 // by name of the gauge
	callback metric.Callback
	fail     error
}

type (
	intGauge struct {
		noop.Int64ObservableGauge
		name string
	}
	floatGauge struct {
		noop.Float64ObservableGauge
		name string
	}
	counter struct {
		noop.Int64Counter
		m *meters
	}
)

func (m *meters) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return counter{m: m}, m.fail
}

func (m *meters) Int64ObservableGauge(name string, _ ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	return intGauge{name: name}, nil
}

func (m *meters) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return floatGauge{name: name}, nil
}

func (m *meters) RegisterCallback(f metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	m.callback = f
	return noop.Registration{}, nil
}

func (c counter) Add(_ context.Context, n int64, opts ...metric.AddOption) {
	attrs := metric.NewAddConfig(opts).Attributes()
	rpc, _ := attrs.Value("rpc")
	c.m.counted[rpc.AsString()] += n
}

func (m *meters) ObserveInt64(o metric.Int64Observable, v int64, _ ...metric.ObserveOption) {
	m.values[o.(intGauge).name] = float64(v)
}

func (m *meters) ObserveFloat64(o metric.Float64Observable, v float64, _ ...metric.ObserveOption) {
	m.values[o.(floatGauge).name] = v
}

func TestInstrument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &meters{counted: map[string]int64{}, values: map[string]float64{}}
		var table volumelock.Table
		if err := table.Instrument(provider{m: m}); err != nil {
			t.Fatal(err)
		}
		observe := func(held, waiting, oldest float64) {
			t.Helper()
			if err := m.callback(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			want := map[string]float64{"csikit.volumelock.held": held, "csikit.volumelock.waiting": waiting, "csikit.volumelock.oldest": oldest}
			if !maps.Equal(m.values, want) {
				t.Errorf("gauges %v, want %v", m.values, want)
			}
		}
		observe(0, 0, 0)
		volume := ex(volumelock.KindVolumeOnNode, "v")
		h := mustAcquire(t, &table, stage, volume)
		time.Sleep(30 * time.Second)
		mustAcquire(t, &table, publish, sh(volumelock.KindVolumeOnNode, "w"), ex(volumelock.KindTarget, "/t"))
		var calls sync.WaitGroup
		calls.Go(func() {
			_, _ = table.AcquireWait(t.Context(), time.Minute, unstage, volume)
		})
		time.Sleep(10 * time.Second)
		mustBeBusy(t, &table, publish, volume)
		mustBeBusy(t, &table, publish, volume)
		observe(3, 1, 40)
		time.Sleep(time.Minute)
		calls.Wait()
		h.Release()
		observe(2, 0, 70)
		if want := map[string]int64{"NodePublishVolume": 2, "NodeUnstageVolume": 1}; !maps.Equal(m.counted, want) {
			t.Errorf("refusals %v, want %v", m.counted, want)
		}

		if err := table.Instrument(nil); err != nil {
			t.Errorf("a nil provider: %v", err)
		}
		m.fail = errors.New("no more instruments")
		if err := new(volumelock.Table).Instrument(provider{m: m}); !errors.Is(err, m.fail) {
			t.Errorf("err = %v, want the meter's", err)
		}
	})
}
