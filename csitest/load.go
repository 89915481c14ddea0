package csitest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// A LoadConfig configures a load run.
type LoadConfig struct {
	Volumes int // that exist at the same time
	Clients int // that call concurrently
	// Progress is called at most once a second, from one goroutine at a time, with
	// the number of volumes that are up or down.
	Progress func(phase string, done, of int)
}

// A LoadReport holds the measured durations.
type LoadReport struct {
	Report
	CreateDuration, DeleteDuration time.Duration // for all volumes together
	RPCs                           []RPCTimes    // in lifecycle order
}

// RPCTimes are the latencies of one RPC. A call that was retried counts every time.
type RPCTimes struct {
	Method             string
	Calls, Errors      int
	Rate               float64 // of calls with OK, per second of its phase
	P50, P90, P99, Max time.Duration
}

// Load creates volumes with many concurrent clients, and attaches, stages and publishes each
// to a pod as far as the driver has the capabilities. Then it undoes this and deletes them. Calls that a CO would retry are retried; any other error
// ends the run.
func Load(ctx context.Context, target Target, cfg Config, load LoadConfig) (*LoadReport, error) {
	l := &LoadReport{}
	report, err := checkRules(ctx, target, cfg, []Rule{{
		ID: "load", Level: Must, Spec: "RPC Interactions",
		Title:   "many volumes are created, published and deleted concurrently",
		Why:     "That is what a cluster does when a node is drained.",
		Needs:   needs(createVolume),
		Timeout: 24 * time.Hour,
		check:   func(c *ruleRun) { l.run(c, load) },
	}})
	if err != nil {
		return nil, err
	}
	l.Report = *report
	l.count()
	return l, nil
}

func (l *LoadReport) run(c *ruleRun, load LoadConfig) {
	volumes := make([]*volume, max(load.Volumes, 1))
	l.CreateDuration = c.spread("up", len(volumes), load, func(i int) {
		v := c.volume()
		volumes[i] = v
		if c.has(nodeService) {
			v.up("a")
		}
	})
	l.DeleteDuration = c.spread("down", len(volumes), load, func(i int) {
		v := volumes[i]
		if c.has(nodeService) {
			v.unpublish("a").unstage().detach()
		}
		v.delete()
	})
}

// spread does n things with the clients, and reports progress.
func (c *ruleRun) spread(phase string, n int, load LoadConfig, do func(i int)) time.Duration {
	begin := time.Now()
	var next, done atomic.Int64
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for load.Progress != nil {
			select {
			case <-ended:
				return
			case <-tick.C:
				load.Progress(phase, int(done.Load()), n)
			}
		}
	})
	defer wg.Wait()
	defer close(ended)
	c.parallel(max(load.Clients, 1), func(int) {
		for {
			i := int(next.Add(1)) - 1
			if i >= n || c.ctx.Err() != nil {
				return
			}
			do(i)
			done.Add(1)
		}
	})
	return time.Since(begin)
}

// count makes the table of the calls.
func (l *LoadReport) count() {
	took := map[string][]time.Duration{}
	at := map[string]int{}
	for _, call := range l.Calls {
		if call.Rule != "load" || call.Cleanup {
			continue
		}
		i, known := at[call.Method]
		if !known {
			i = len(l.RPCs)
			at[call.Method] = i
			l.RPCs = append(l.RPCs, RPCTimes{Method: call.Method})
		}
		l.RPCs[i].Calls++
		if call.Code() != codes.OK {
			l.RPCs[i].Errors++
		}
		took[call.Method] = append(took[call.Method], call.Took)
	}
	for i := range l.RPCs {
		r := &l.RPCs[i]
		all := took[r.Method]
		slices.Sort(all)
		percentile := func(p int) time.Duration { return all[min(len(all)*p/100, len(all)-1)] }
		r.P50, r.P90, r.P99, r.Max = percentile(50), percentile(90), percentile(99), all[len(all)-1]
		phase := l.CreateDuration
		if slices.Contains(life[4:], r.Method) {
			phase = l.DeleteDuration
		}
		if phase > 0 {
			r.Rate = float64(r.Calls-r.Errors) / phase.Seconds()
		}
	}
	slices.SortStableFunc(l.RPCs, func(a, b RPCTimes) int { return slices.Index(life, a.Method) - slices.Index(life, b.Method) })
}

// life is what happens to a volume, in order.
var life = []string{
	"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
	"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume",
}
