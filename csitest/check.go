package csitest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
)

const (
	readyTimeout = 30 * time.Second // of the driver, after a start; as the sidecars wait
	callTimeout  = 2 * time.Minute  // kubelet's
	graceTimeout = 5 * time.Second  // for a rule to end after its timeout
)

// A run is one Check.
type run struct {
	target           Target
	cfg              Config
	node, controller *grpc.ClientConn // one and the same unless the target has two
	processes        []*process       // empty unless the target is started here
	info             *csi.GetPluginInfoResponse
	has              csispec.Capabilities
	nodeID           string
	place            *csi.Topology // where the node is
	maxVolumes       int64         // that it takes; 0: the CO decides
	dir              string
	logFrom          int64
	stored           []string            // what was on the storage before the rules
	siblings         map[string][]string // what else was in the directories of the sockets
	record           recorder
	validation       []csispec.Option
	report           *Report
	down             error // why the driver could not be started again; nil: it runs

	offering sync.Mutex
	offered  map[bool]bool // by whether it is raw block: what trying showed

	mu       sync.Mutex // for what follows, and report.NotCleaned
	ruleRuns int
	devices  map[device]bool // that volumes were on
}

// Check runs the rules against the driver and returns what it found, which is a
// Report also when rules fail. An error means that the driver could not be checked:
// it does not answer, the configuration is wrong, or the driver has foreign volumes
// ([ForeignVolumesError]).
//
// When ctx ends, the running rule is interrupted, then its volumes are cleaned up, and the
// other rules are reported as not run. Cleanup has its own timeout and continues. After a
// driver that does not start again (see Target.Start) the other rules are not run either.
func Check(ctx context.Context, target Target, cfg Config) (*Report, error) {
	selected := Rules(cfg.Rules...)
	if len(selected) == 0 {
		return nil, fmt.Errorf("csitest: no rule is selected by %s", strings.Join(cfg.Rules, ","))
	}
	return checkRules(ctx, target, cfg, selected)
}

// checkRules is Check with the given rules.
func checkRules(ctx context.Context, target Target, cfg Config, selected []Rule) (*Report, error) {
	r := &run{target: target, cfg: cfg, offered: map[bool]bool{}, report: &Report{Begin: time.Now(), DryRun: cfg.DryRun, Strict: cfg.Strict}}
	if err := r.configure(); err != nil {
		return nil, err
	}
	defer func() { r.report.ExitStates = r.close() }()
	for _, begin := range []func(context.Context) error{r.connect, r.discover, r.refuseForeign} {
		if err := begin(ctx); err != nil {
			r.removeDir() // nothing is in it yet
			return nil, err
		}
	}
	var err error
	if r.stored, err = r.listStorage(ctx); err != nil {
		r.removeDir()
		return nil, err
	}
	for i, rule := range selected {
		r.progress(i, len(selected), rule, nil)
		result := r.result(ctx, rule)
		r.report.Results = append(r.report.Results, result)
		r.progress(i+1, len(selected), rule, &result)
	}
	r.report.NotCleaned = slices.Concat(r.report.NotCleaned, r.removeDir(), r.attachedDevices())
	r.report.Interrupted = ctx.Err() != nil
	r.report.Calls = r.record.all()
	r.report.Took = time.Since(r.report.Begin)
	return r.report, nil
}

// Run checks the driver as subtests, one per rule. A rule of level SHOULD that
// fails is logged and does not fail the test, unless Config.Strict is set; neither does one
// of Config.KnownFailures.
func Run(t *testing.T, target Target, cfg Config) {
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range report.Results {
		t.Run(x.Rule.ID, func(t *testing.T) {
			switch x.Outcome {
			case Broken:
				t.Errorf("csitest is broken: %s", x.Reason)
			case NotRun, DoesNotApply:
				t.Skipf("%s: %s", x.Outcome, x.Reason)
			}
			for _, f := range x.Failures {
				if !x.Known && (x.Rule.Level == Must || cfg.Strict) {
					t.Errorf("%s\n%s", x.Rule.Title, f)
				} else {
					t.Logf("%s: %s\n%s", x.Rule.Level, x.Rule.Title, f)
				}
			}
		})
	}
	for _, left := range report.NotCleaned {
		t.Errorf("left behind: %s", left)
	}
	t.Logf("%d rules, %d calls, %v", len(report.Results), len(report.Calls), report.Took.Round(time.Millisecond))
}

// configure fills in the defaults.
func (r *run) configure() error {
	t := r.target
	switch {
	case t.Endpoint == "":
		return errors.New("csitest: an endpoint is required, such as unix:///run/csi/csi.sock")
	case t.Start != nil && t.Restart != nil:
		return errors.New("csitest: the driver is either started here or restarted by another command, not both")
	case t.StartController != nil && (t.Start == nil || t.ControllerEndpoint == ""):
		return errors.New("csitest: a controller plugin that is started here needs its own endpoint, and the node plugin has to be started here as well")
	}
	r.cfg.Prefix = cmp.Or(r.cfg.Prefix, "csicheck-"+strings.ToLower(rand.Text()[:6]))
	if len(r.cfg.Prefix) > 64 {
		return fmt.Errorf("csitest: the prefix %q has more than 64 bytes", r.cfg.Prefix)
	}
	r.cfg.CleanupTimeout = cmp.Or(r.cfg.CleanupTimeout, time.Minute)
	r.cfg.Size = cmp.Or(r.cfg.Size, 1<<30)
	r.cfg.ReproduceCommand = cmp.Or(r.cfg.ReproduceCommand, "csicheck -endpoint "+r.target.Endpoint)
	dir := r.cfg.Dir
	if dir == "" {
		dir = os.TempDir()
	}
	var err error
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir) // the mount table has no other paths
	}
	if err == nil {
		r.dir, err = os.MkdirTemp(dir, "csicheck-")
	}
	if err != nil {
		return fmt.Errorf("csitest: create a directory for the paths of kubelet: %w", err)
	}
	return nil
}

func (r *run) progress(done, total int, rule Rule, result *Result) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{
			Done: done, Total: total, Rule: rule, Result: result, Calls: r.record.count(), Elapsed: time.Since(r.report.Begin),
		})
	}
}

// result runs the rule if it can be run.
func (r *run) result(ctx context.Context, rule Rule) Result {
	x := Result{Rule: rule, Begin: time.Now()}
	if ctx.Err() != nil {
		x.Outcome, x.Reason = NotRun, "interrupted"
		return x
	}
	if r.down != nil {
		x.Outcome, x.Reason = NotRun, "the driver could not be started again"
		return x
	}
	if r.cfg.FailFast && !r.report.OK() {
		x.Outcome, x.Reason = NotRun, "a rule failed before"
		return x
	}
	for _, n := range rule.Needs {
		switch {
		case r.cfg.DryRun && (n.Text == mountAccess.Text || n.Text == blockAccess.Text): // takes trying
		case n.met(r):
		case n.Facility == "":
			x.Outcome, x.Reason = DoesNotApply, "the driver does not have "+n.Text
			return x
		case x.Outcome == "":
			x.Outcome, x.Reason, x.MissingFacility = NotRun, "needs "+n.Text, n.Facility
		}
	}
	switch {
	case x.Outcome != "":
		return x
	case r.cfg.DryRun:
		x.Outcome, x.Reason = NotRun, "dry run"
		return x
	}
	before := r.record.count()
	r.try(ctx, &x)
	if rule.checkCalls != nil && x.Outcome == Passed && !r.record.any(func(c *Call) bool { return c.Rule != "" }) {
		x.Outcome, x.Reason, x.MissingFacility = NotRun, "it checks the calls of other rules, and none made one", FacilityOtherRules
	}
	x.Known = x.Outcome == Failed && slices.Contains(r.cfg.KnownFailures, rule.ID)
	x.Calls = r.record.count() - before
	x.Took = time.Since(x.Begin)
	return x
}

// try runs the rule within its time, and cleans up after it.
func (r *run) try(ctx context.Context, x *Result) {
	limit := cmp.Or(x.Rule.Timeout, DefaultTimeout)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := r.newRuleRun(limited, x.Rule)
	ended := make(chan struct{})
	var broken, excuse string
	go func() {
		defer close(ended)
		defer func() {
			switch p := recover().(type) {
			case nil:
			case stop:
				excuse = p.excuse
			default:
				broken = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		if x.Rule.checkCalls != nil {
			x.Rule.checkCalls(c, r.record.all())
			return
		}
		x.Rule.check(c)
	}()
	select {
	case <-ended:
	case <-limited.Done():
		select {
		case <-ended:
		case <-time.After(graceTimeout):
			x.Outcome, x.Reason = Broken, fmt.Sprintf("the rule did not end within %v of its timeout of %v", graceTimeout, limit)
			return // what it may still be doing is not ours to undo
		}
	}
	r.restartIfLost(ctx, c)
	r.clean(ctx, c)
	x.Failures = c.failures
	switch {
	case broken != "":
		x.Outcome, x.Reason = Broken, "panic: "+broken
	case ctx.Err() != nil:
		x.Outcome, x.Reason, x.Failures = NotRun, "interrupted", nil
	case len(x.Failures) > 0:
		x.Outcome = Failed
	case excuse != "":
		x.Outcome, x.Reason = DoesNotApply, excuse
	case limited.Err() != nil:
		x.Outcome = Failed
		x.Failures = []Failure{{Want: "the rule to end in time", Got: fmt.Sprintf("the rule timed out after %v", limit), Reproduce: c.reproduce(nil)}}
	default:
		x.Outcome = Passed
	}
}

func (r *run) newRuleRun(ctx context.Context, rule Rule) *ruleRun {
	r.mu.Lock()
	r.ruleRuns++
	c := &ruleRun{rule: rule, run: r, ctx: ctx, ledger: newLedger(), n: r.ruleRuns}
	r.mu.Unlock()
	c.clients(false)
	return c
}

// clean undoes what the rule left, with its own timeout. What a driver that is down has
// left is only listed.
func (r *run) clean(ctx context.Context, c *ruleRun) {
	timeout := r.cfg.CleanupTimeout
	if r.down != nil {
		timeout = 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	left := c.cleanup(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.NotCleaned = append(r.report.NotCleaned, left...)
}

// removeDir removes kubelet's directories as far as they are empty. A volume may still be
// mounted there: nothing is removed through a mount. It lists what is left.
func (r *run) removeDir() (left []string) {
	var dirs []string
	err := filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			left = append(left, err.Error())
		case d.Type()&fs.ModeSymlink == 0 && r.mountBelow(path) != "":
			// What is below is the volume's, empty directories included.
			if left = append(left, r.mountBelow(path)); d.IsDir() {
				return fs.SkipDir
			}
		case d.IsDir():
			dirs = append(dirs, path)
		default:
			left = append(left, path)
		}
		return nil
	})
	if err != nil {
		left = append(left, err.Error())
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && len(left) == 0 {
			left = append(left, err.Error())
		}
	}
	return left
}
