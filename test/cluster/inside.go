//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// A scenario is a line of the table.
type scenario struct {
	name string
	run  func(s *space) error
	// alone: it ends processes that others need, and runs when they have ended.
	alone bool
	// long: only with -long, or if -run matches it.
	long bool
	// suite: only with -suite or -long, and alone.
	suite bool
	// previous: it needs the driver of an earlier commit.
	previous bool
}

// A selection says which scenarios are run.
type selection struct {
	Long, Suite, NFS bool
	Run              string // a regular expression; with Suite, it is for the tests of the suite
}

func (s selection) has(p part, x scenario) bool {
	switch {
	case s.NFS && !p.guests, p.guests && !s.NFS && (!s.Long || s.Suite):
		return false
	case s.Suite:
		return x.suite
	case s.Run != "":
		return !x.suite && regexp.MustCompile(s.Run).MatchString(x.name)
	}
	return s.Long || !x.long && !x.suite
}

// any: a chosen scenario has a property.
func (s selection) any(has func(scenario) bool) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return slices.ContainsFunc(s.scenarios(p), has) })
}

// withSuite: one of the chosen scenarios is Kubernetes' suite.
func (s selection) withSuite() bool { return s.any(func(x scenario) bool { return x.suite }) }

// withPrevious: one of them needs the driver of an earlier commit.
func (s selection) withPrevious() bool { return s.any(func(x scenario) bool { return x.previous }) }

// withGuests: one of the chosen parts has virtual machines as its nodes.
func (s selection) withGuests() bool {
	return slices.ContainsFunc(parts, func(p part) bool { return p.guests && len(s.scenarios(p)) > 0 })
}

// withHelm: the chart is one of the chosen parts.
func (s selection) withHelm() bool {
	return slices.ContainsFunc(parts, func(p part) bool {
		return path.Base(p.overlay) == "helm" && len(s.scenarios(p)) > 0
	})
}

// scenarios returns those of a part.
func (s selection) scenarios(p part) (chosen []scenario) {
	for _, x := range p.scenarios {
		if s.has(p, x) {
			chosen = append(chosen, x)
		}
	}
	return chosen
}

// A part is an overlay with its scenarios.
type part struct {
	overlay    string // below examples
	readme     string // section of the driver's README.md whose first command deploys it
	namespace  string // of the driver
	components []string
	arguments  []string // of the node plugin, which no overlay has
	nodes      []string
	guests     bool     // the nodes are virtual machines, and there is no other node
	ready      []string // what has to be rolled out
	scenarios  []scenario
}

type result struct {
	part, name, outcome, note string
	took                      time.Duration
}

const (
	together   = 3 // scenarios at a time
	outcomeOK  = "ok"
	notTested  = "not tested"
	failedText = "FAILED"
)

// errNotTested is what a scenario returns for what this machine cannot test.
type errNotTested string

func (e errNotTested) Error() string { return string(e) }

func list() {
	for _, p := range parts {
		for _, s := range p.scenarios {
			long := ""
			switch {
			case s.suite && p.guests:
				long = " (-nfs -suite, -long)"
			case p.guests:
				long = " (-nfs, -long)"
			case s.suite:
				long = " (-suite, -long)"
			case s.long:
				long = " (-long)"
			}
			fmt.Printf("%-48s %s%s\n", p.overlay, s.name, long)
		}
	}
}

// runInside runs the cluster and the scenarios.
func runInside(argument string) error {
	var c insideConfig
	if err := json.Unmarshal([]byte(argument), &c); err != nil {
		return err
	}
	started = c.Started
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	say("starting the control plane")
	r, err := startRig(ctx, cancel, c)
	if err != nil {
		return err
	}
	if err := r.installSnapshots(ctx); err != nil {
		return err
	}
	if c.Shell {
		p := parts[slices.IndexFunc(parts, func(p part) bool { return p.guests == c.NFS })]
		if err := r.deploy(ctx, p); err != nil {
			return err
		}
		return r.shell()
	}
	var results []result
	var failed error
	for _, p := range parts {
		chosen := c.scenarios(p)
		if len(chosen) == 0 {
			continue
		}
		rs, err := r.runPart(ctx, p, chosen)
		results = append(results, rs...)
		if err != nil {
			failed = err
			break
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\noverlay\tscenario\tresult\tseconds\t")
	count := map[string]int{}
	for _, x := range results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%s\n", x.part, x.name, x.outcome, x.took.Seconds(), x.note)
		count[x.outcome]++
	}
	w.Flush()
	fmt.Printf("\n%d passed, %d failed, %d not tested on this machine, in %.0f s\n", count[outcomeOK], count[failedText], count[notTested], time.Since(started).Seconds())
	fmt.Println("csi-node-driver-registrar, livenessprobe and pause were stand-ins (test/cluster/standin): the Go module proxy has none of them.")
	if failed == nil && (count[failedText] > 0 || count[outcomeOK] == 0) {
		failed = errors.New("scenarios failed")
	}
	return failed
}

// installSnapshots installs what a cluster with snapshots has beside the drivers.
func (r *rig) installSnapshots(ctx context.Context) error {
	if _, err := r.kubectl(ctx, "apply", "-k", filepath.Join(r.dir, "crd")); err != nil {
		return err
	}
	return r.start("snapshot-controller", "--kubeconfig="+r.ca.kubeconfig("admin"), "--feature-gates=CSIVolumeGroupSnapshot=true", "--leader-election=false")
}

// kustomization returns the directory of a part's overlay, or of one beside it with more
// components, as README.md of blockdriver explains it.
func (r *rig) kustomization(p part) (string, error) {
	overlay := filepath.Join(r.source, "examples", p.overlay)
	if p.components == nil && p.arguments == nil {
		return overlay, nil
	}
	dir := filepath.Join(r.dir, "overlay")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	relative, err := filepath.Rel(dir, overlay)
	if err != nil {
		return "", err
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + relative + "]\ncomponents:\n"
	for _, component := range p.components {
		text += "  - " + filepath.Join(relative, "../../components", component) + "\n"
	}
	if len(p.arguments) > 0 {
		// By name: which place the driver has among the containers depends on the components.
		text += "patches:\n  - target: {kind: DaemonSet}\n    patch: |-\n" +
			"      {apiVersion: apps/v1, kind: DaemonSet, metadata: {name: any}, spec: {template: {spec: {containers: [{name: driver, env: ["
		for _, a := range p.arguments {
			flag, value, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
			text += fmt.Sprintf("{name: CSIKIT_%s, value: %q}, ", strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), value)
		}
		text += "]}]}}}}\n"
	}
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644)
}

func (r *rig) deploy(ctx context.Context, p part) error {
	if err := r.provideNodes(ctx, p); err != nil {
		return err
	}
	if err := r.writeReadmeOverlay(p); err != nil {
		return err
	}
	start := time.Now()
	if err := r.apply(ctx, p); err != nil {
		return err
	}
	for _, what := range p.ready {
		if _, err := r.kubectl(ctx, "-n", p.namespace, "rollout", "status", "--timeout=10m", what); err != nil {
			return errors.Join(err, r.state(p.namespace, p))
		}
	}
	if n := len(r.removed); n > 0 {
		r.removed[n-1].to = time.Now()
	}
	say("%s: ready after %.0f s", p.overlay, time.Since(start).Seconds())
	return nil
}

// provideNodes starts the nodes of a part that are not there, at once. A part with virtual machines
// has no others, which could not run the pods.
func (r *rig) provideNodes(ctx context.Context, p part) error {
	for name := range r.nodes {
		if p.guests && !slices.Contains(p.nodes, name) {
			if err := r.removeNode(ctx, name); err != nil {
				return err
			}
		}
	}
	var added []string
	for _, name := range p.nodes {
		if r.nodes[name] == nil {
			if err := r.addNode(name, p.guests); err != nil {
				return err
			}
			added = append(added, name)
		}
	}
	start := time.Now()
	errs := make([]error, len(added))
	var wg sync.WaitGroup
	for i, name := range added {
		wg.Go(func() { errs[i] = r.boot(ctx, name) })
	}
	wg.Wait()
	if len(added) > 0 {
		say("%s: ready after %.0f s", strings.Join(added, ", "), time.Since(start).Seconds())
	}
	return errors.Join(errs...)
}

func (r *rig) apply(ctx context.Context, p part) error {
	if p.readme != "" {
		commands, err := r.readmeOf(p)
		if err != nil {
			return err
		}
		return r.enter(ctx, commands[0])
	}
	dir, err := r.kustomization(p)
	if err != nil {
		return err
	}
	manifests, err := r.kubectl(ctx, "kustomize", dir)
	if err != nil {
		return err
	}
	if err := checkImages(manifests, r.named); err != nil {
		return err
	}
	_, err = r.kubectl(ctx, "apply", "-k", dir)
	return err
}

// runPart deploys an overlay, runs its scenarios, and removes it.
func (r *rig) runPart(ctx context.Context, p part, chosen []scenario) (results []result, err error) {
	if err := r.deploy(ctx, p); err != nil {
		return nil, fmt.Errorf("%s: %w", p.overlay, err)
	}
	var mu sync.Mutex
	one := func(s scenario) {
		start := time.Now()
		sp := &space{rig: r, ctx: ctx, part: p, name: strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(s.name), "-"), "-")}
		x := result{part: p.overlay, name: s.name, outcome: outcomeOK}
		_, err := r.kubectl(ctx, "create", "namespace", sp.name)
		if err == nil {
			// Pods are refused until it is there.
			err = r.poll(ctx, time.Minute, "service account", func() error {
				_, err := sp.kubectl("get", "serviceaccount", "default")
				return err
			})
		}
		if err == nil {
			err = s.run(sp)
		}
		x.note = sp.note
		var why errNotTested
		switch {
		case errors.As(err, &why):
			x.outcome, x.note = notTested, string(why)
		case err != nil:
			x.outcome = failedText
			fmt.Printf("%v\n%v\n", err, r.state(sp.name, p))
		}
		if err := sp.end(); err != nil && x.outcome == outcomeOK {
			x.outcome = failedText
			fmt.Printf("removing %s: %v\n%v\n", s.name, err, r.state(sp.name, p))
		}
		x.took = time.Since(start)
		say("%-10s %s (%.1f s) %s", x.outcome, s.name, x.took.Seconds(), x.note)
		mu.Lock()
		results = append(results, x)
		mu.Unlock()
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	for _, s := range chosen {
		if s.alone {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() { one(s); <-slots })
	}
	wg.Wait()
	for _, s := range chosen {
		if s.alone && ctx.Err() == nil {
			one(s)
		}
	}
	if ctx.Err() != nil {
		return results, context.Cause(ctx)
	}
	// What holds for all of them.
	for _, s := range []scenario{
		{name: "no request of an account was forbidden", run: func(*space) error { return r.forbidden() }},
		{name: "root file systems are read-only", run: readOnlyRoots},
		{name: "it is removed again", run: func(s *space) error { return r.removeOverlay(s.ctx, p) }},
	} {
		one(s)
	}
	return results, nil
}

// end deletes the namespace of a scenario and waits until its volumes are gone.
func (s *space) end() error {
	if _, err := s.rig.kubectl(s.ctx, "delete", "namespace", s.name, "--timeout=2m"); err != nil {
		return err
	}
	return s.poll(s.ctx, 2*time.Minute, "volumes are left", func() error {
		out, err := s.rig.kubectl(s.ctx, "get", "pv", "-o", `jsonpath={range .items[?(@.spec.claimRef.namespace=="`+s.name+`")]}{.metadata.name} {end}`)
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	})
}

// state is what a person wants to see after a failure.
func (r *rig) state(namespace string, p part) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var b strings.Builder
	show := func(title string, lines int, args ...string) {
		out, err := r.kubectl(ctx, args...)
		if err != nil {
			out += err.Error()
		}
		all := strings.Split(strings.TrimSpace(out), "\n")
		fmt.Fprintf(&b, "-- %s\n%s\n", title, strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	show("objects in "+namespace, 30, "-n", namespace, "get", "pods,pvc,volumesnapshots", "-o", "wide")
	show("events in "+namespace, 30, "-n", namespace, "get", "events", "--sort-by=.lastTimestamp", "-o", `jsonpath={range .items[*]}{.involvedObject.name} {.reason}: {.message}{"\n"}{end}`)
	show("pods of the driver", 20, "-n", p.namespace, "get", "pods", "-o", "wide")
	pods, _ := r.kubectl(ctx, "-n", p.namespace, "get", "pods", "-o", "name")
	for _, pod := range strings.Fields(pods) {
		show("log of "+pod, 40, "-n", p.namespace, "logs", pod, "--all-containers", "--prefix", "--tail=10")
	}
	for name := range r.nodes {
		fmt.Fprintf(&b, "-- kubelet of %s\n%s\n", name, tail(filepath.Join(r.dir, name, "kubelet.log"), 10))
	}
	return errors.New(b.String())
}

// forbidden looks into the audit log for what a service account was refused.
func (r *rig) forbidden() error {
	f, err := os.Open(r.auditLog())
	if err != nil {
		return err
	}
	defer f.Close()
	var all error
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		var e struct {
			Verb, RequestURI string
			StageTimestamp   time.Time
			User             struct{ Username string }
			ResponseStatus   struct {
				Code    int
				Message string
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		n++
		what := e.User.Username + " " + e.Verb + " " + e.RequestURI
		without := func(p period) bool {
			return e.StageTimestamp.After(p.from) && (p.to.IsZero() || e.StageTimestamp.Before(p.to))
		}
		// In a namespace that is being deleted nothing can be created, whatever the rights.
		if strings.Contains(e.ResponseStatus.Message, "because it is being terminated") || slices.ContainsFunc(r.removed, without) {
			continue
		}
		if e.ResponseStatus.Code == 403 && !strings.HasPrefix(e.User.Username, "system:serviceaccount:kube-system:") && !seen[what] {
			seen[what] = true
			all = errors.Join(all, errors.New(what))
		}
	}
	if n == 0 {
		return errors.New("the audit log is empty")
	}
	return errors.Join(all, lines.Err())
}

// readOnlyRoots looks at the root of each process of the driver's pods.
func readOnlyRoots(s *space) error {
	const script = `for p in /proc/[0-9]*; do
	case $(readlink $p/exe) in
	*/blockdriver | */nfsdriver | */csi-* | */livenessprobe) read -r _ _ _ _ path options _ <$p/mountinfo; echo "$(readlink $p/exe) $path $options" ;;
	esac
done`
	n := 0
	for name := range s.nodes {
		pod, err := s.podOfHost(name)
		if err != nil {
			return err
		}
		out, err := s.sh(pod, script)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) != 3 || f[1] != "/" || !strings.HasPrefix(f[2], "ro") {
				return fmt.Errorf("%s: the root of a process is mounted %s", name, line)
			}
			n++
		}
	}
	if n == 0 {
		return errors.New("no process was found")
	}
	s.note = fmt.Sprintf("%d containers", n)
	return nil
}

// podOfHost starts a pod that sees all processes of a node.
func (s *space) podOfHost(node string) (string, error) {
	name := "on-" + node
	return name, errors.Join(s.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  hostPID: true
  terminationGracePeriodSeconds: 0
  containers:
    - {name: c, image: %q, command: [sleep, infinity], securityContext: {privileged: true}}
`, name, node, busyboxImage)), s.ready(name))
}

// removeOverlay deletes what deploy created.
func (r *rig) removeOverlay(ctx context.Context, p part) error {
	if p.readme != "" {
		commands, err := r.readmeOf(p)
		if err != nil {
			return err
		}
		r.removed = append(r.removed, period{from: time.Now()})
		return r.undo(ctx, commands[0])
	}
	dir, err := r.kustomization(p)
	if err != nil {
		return err
	}
	r.removed = append(r.removed, period{from: time.Now()})
	_, err = r.kubectl(ctx, "delete", "-k", dir, "--timeout=2m")
	return err
}

// shell starts one for a person.
func (r *rig) shell() error {
	fmt.Printf("kubectl works; logs are in %s; the cluster ends with this shell.\n", r.dir)
	cmd := exec.Command("bash")
	cmd.Dir = r.source
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.ca.kubeconfig("admin"))
	cmd.Run()
	return nil
}
