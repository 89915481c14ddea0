package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/csikit/csikit/csitest"
	"google.golang.org/grpc/codes"
)

// walk takes volumes through their lifecycle and prints each step.
func (o *options) walk(ctx context.Context, kinds []string, stdout io.Writer) (ok bool, err error) {
	report, err := csitest.Walk(ctx, o.target, o.cfg, kinds, stdout)
	if err != nil {
		return false, err
	}
	return o.finished(report, stdout)
}

// load creates, publishes and deletes many volumes, and prints rates and latencies.
func (o *options) load(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	var l csitest.LoadConfig
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&l.Volumes, "volumes", 100, "`number` of volumes that exist at the same time")
	fs.IntVar(&l.Clients, "clients", 10, "`number` of concurrent clients")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 || l.Volumes < 1 || l.Clients < 1 {
		return false, fmt.Errorf("usage: csicheck -endpoint … load [-volumes 100] [-clients 10]")
	}
	terminal, last := isTerminal(stderr), time.Now()
	l.Progress = func(phase string, done, of int) {
		switch {
		case terminal:
			fmt.Fprintf(stderr, "\r\x1b[K%d of %d volumes %s", done, of, phase)
		case time.Since(last) > 10*time.Second:
			last = time.Now()
			fmt.Fprintf(stderr, "%d of %d volumes %s\n", done, of, phase)
		}
	}
	report, err := csitest.Load(ctx, o.target, o.cfg, l)
	if err != nil {
		return false, err
	}
	if terminal {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	fmt.Fprintf(stdout, "%d volumes with %d clients: up in %.2f s (%.1f/s), down in %.2f s (%.1f/s)\n\n", l.Volumes, l.Clients,
		report.CreateDuration.Seconds(), float64(l.Volumes)/report.CreateDuration.Seconds(), report.DeleteDuration.Seconds(), float64(l.Volumes)/report.DeleteDuration.Seconds())
	fmt.Fprintf(stdout, "%-28s%8s%8s%9s%10s%10s%10s%10s\n", "RPC", "calls", "errors", "per s", "p50 ms", "p90 ms", "p99 ms", "max ms")
	for _, r := range report.RPCs {
		fmt.Fprintf(stdout, "%-28s%8d%8d%9.1f%10.1f%10.1f%10.1f%10.1f\n", r.Method, r.Calls, r.Errors, r.Rate,
			milliseconds(r.P50), milliseconds(r.P90), milliseconds(r.P99), milliseconds(r.Max))
	}
	return o.finished(&report.Report, stdout)
}

// finished says what went wrong in a report of one result, and writes the files.
func (o *options) finished(r *csitest.Report, stdout io.Writer) (ok bool, err error) {
	for _, x := range r.Results {
		switch {
		case len(x.Failures) > 0:
			fmt.Fprintln(stdout, "\nFAILED")
		case x.Outcome != csitest.Passed:
			fmt.Fprintf(stdout, "\n%s: %s\n", upper(string(x.Outcome)), x.Reason)
		}
		for _, f := range x.Failures {
			fmt.Fprintln(stdout, indent(f.String()))
		}
	}
	for _, left := range r.NotCleaned {
		fmt.Fprintln(stdout, "LEFT BEHIND", left)
	}
	return r.OK() && len(r.ResultsWith(csitest.Passed)) == len(r.Results), o.write(r)
}

// torture kills the driver at random moments under load.
func (o *options) torture(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	var t csitest.TortureConfig
	fs := flag.NewFlagSet("torture", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&t.Duration, "duration", 0, "how `long` (default: a minute, or unlimited with -kills)")
	fs.IntVar(&t.Kills, "kills", 0, "`number` of kills after which it ends")
	fs.Uint64Var(&t.Seed, "seed", uint64(time.Now().UnixNano()), "`number` that determines what is done, and when")
	fs.IntVar(&t.Workers, "workers", 4, "`number` of concurrent clients, each with its own volumes")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 || t.Duration < 0 || t.Kills < 0 || t.Workers < 1 {
		return false, fmt.Errorf("usage: csicheck -endpoint … -start '…' torture [-duration 1m] [-kills N] [-seed N] [-workers 4]")
	}
	if t.Duration == 0 && t.Kills == 0 {
		t.Duration = time.Minute
	}
	fmt.Fprintf(stdout, "seed %d\n", t.Seed)
	terminal, shown := isTerminal(stderr), time.Now()
	var last csitest.TortureProgress
	t.Progress = func(p csitest.TortureProgress) {
		last = p
		switch {
		case terminal:
			fmt.Fprintf(stderr, "\r\x1b[K%s", tortureText(p))
		case time.Since(shown) > 10*time.Second:
			shown = time.Now()
			fmt.Fprintln(stderr, tortureText(p))
		}
	}
	report, err := csitest.Torture(ctx, o.target, o.cfg, t)
	if terminal {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	if err != nil {
		return false, err
	}
	tortureTable(stdout, report.Calls)
	ok, err = o.finished(report, stdout)
	result := "passed"
	if !ok {
		result = fmt.Sprintf("FAILED; torture -seed %d repeats it", t.Seed)
	}
	fmt.Fprintf(stdout, "\n%s: %s\n", tortureText(last), result)
	return ok, err
}

func tortureText(p csitest.TortureProgress) string {
	return fmt.Sprintf("%.0f s: killed %d times, %d calls, %d of them without an outcome, %d volumes created and deleted, data compared %d times, lists %d times",
		p.Elapsed.Seconds(), p.Kills, p.Calls, p.Interrupted, p.VolumesCompleted, p.Checks, p.ListComparisons)
}

// tortureTable prints the calls and their results.
func tortureTable(stdout io.Writer, calls []*csitest.Call) {
	type row struct{ calls, ok, unknown, refused int }
	rows := map[string]*row{}
	for _, c := range calls {
		if c.Rule == "" || c.Method == "Probe" {
			continue
		}
		r := rows[c.Method]
		if r == nil {
			r = new(row)
			rows[c.Method] = r
		}
		r.calls++
		switch c.Code() {
		case codes.OK:
			r.ok++
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Unknown:
			r.unknown++
		default:
			r.refused++
		}
	}
	fmt.Fprintf(stdout, "%-28s%8s%8s%8s%8s\n", "RPC", "calls", "OK", "unknown", "refused")
	for _, m := range slices.Sorted(maps.Keys(rows)) {
		r := rows[m]
		fmt.Fprintf(stdout, "%-28s%8d%8d%8d%8d\n", m, r.calls, r.ok, r.unknown, r.refused)
	}
}
