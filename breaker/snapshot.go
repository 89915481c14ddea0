package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// State is that of a circuit breaker.
type State int

const (
	Closed   State = iota // calls are let through
	HalfOpen              // one call is let through, or in flight, as a trial
	Open                  // calls are refused
)

func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return fmt.Sprintf("state %d", int(s))
}

// ServerStatus describes a server.
type ServerStatus struct {
	Server   string
	State    State
	Since    time.Time // of the first failure since it has responded; zero if closed
	Failures int       // since then
	Parked   int       // calls of Do in flight without a caller
	Error    string    // the last failure
}

// Snapshot lists the servers that were used in the last hour, by name.
func (g *Group) Snapshot() []ServerStatus {
	var list []ServerStatus
	for _, s := range g.all() {
		r := ServerStatus{Server: s.name}
		for _, c := range s.calls.Snapshot() {
			if c.Waiters == 0 {
				r.Parked++
			}
		}
		s.mu.Lock()
		if s.failures > 0 {
			r.State, r.Since, r.Failures, r.Error = Open, s.since, s.failures, s.last
			if s.trial != nil || !time.Now().Before(s.retryAt) {
				r.State = HalfOpen
			}
		}
		s.mu.Unlock()
		list = append(list, r)
	}
	return list
}

// JobStatus describes work of [Group.Do] in flight.
type JobStatus struct {
	Server   string
	Key      string
	Start    time.Time
	Progress time.Time // the latest; the start if there was none
	Items    int64     // in all, as the work reported them
	Bytes    int64
	Waiting  int // callers
}

// Jobs lists the work in flight, the oldest first.
func (g *Group) Jobs() []JobStatus {
	var list []JobStatus
	for _, s := range g.all() {
		s.mu.Lock()
		for _, j := range s.jobs {
			j.mu.Lock()
			list = append(list, JobStatus{s.name, j.key, j.start, j.progress, j.items, j.bytes, j.waiting})
			j.mu.Unlock()
		}
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b JobStatus) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Key, b.Key)) })
	return list
}

// Instrument registers observable OpenTelemetry instruments for the servers; see the package
// documentation for their names. They are observed for the lifetime of the provider. A nil
// provider is a no-op. Call it once.
func (g *Group) Instrument(meters metric.MeterProvider) error {
	if meters == nil {
		return nil
	}
	meter := meters.Meter("github.com/csikit/csikit/breaker")
	state, err1 := meter.Int64ObservableGauge("csikit.breaker.state", metric.WithUnit("1"),
		metric.WithDescription("Circuit breaker of a server: 0 closed, 1 half-open, 2 open."))
	parked, err2 := meter.Int64ObservableGauge("csikit.breaker.parked", metric.WithUnit("{call}"),
		metric.WithDescription("Calls for a server in flight whose callers have returned: blocked ones, and copies."))
	_, err3 := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, r := range g.Snapshot() {
			of := metric.WithAttributes(attribute.String("server", r.Server))
			o.ObserveInt64(state, int64(r.State), of)
			o.ObserveInt64(parked, int64(r.Parked), of)
		}
		return nil
	}, state, parked)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("breaker: register instruments: %w", err)
	}
	return nil
}
