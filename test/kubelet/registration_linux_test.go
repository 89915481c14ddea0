package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/registration"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A table lists for each scenario the time until the driver was registered, and how long
// it was missing from CSINode meanwhile.
type table struct {
	mu   sync.Mutex
	rows []*row
}

type row struct {
	scenario   string
	runs       int
	until, gap time.Duration // the longest
}

func (b *table) add(scenario string, until, gap time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.rows {
		if r.scenario == scenario {
			r.runs++
			r.until, r.gap = max(r.until, until), max(r.gap, gap)
			return
		}
	}
	b.rows = append(b.rows, &row{scenario, 1, until, gap})
}

func (b *table) String() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\truns\tregistered after\twithout registration")
	for _, r := range b.rows {
		fmt.Fprintf(w, "%s\t%d\t%.2f s\t%.2f s\n", r.scenario, r.runs, r.until.Seconds(), r.gap.Seconds())
	}
	w.Flush()
	return s.String()
}

// Up to few runs of a scenario are sequential, to measure durations; more are concurrent,
// to find races.
const few = 3

type scenario struct {
	name string
	runs int // sequential, if not more than few
	run  func(t *testing.T, k *kubelet, driver string) (until, gap time.Duration)
}

// One kubelet, and concurrently the drivers of a group, each in one scenario. The times are the longest of all runs. They grow with the
// number of drivers, whose entries are in one CSINode: kubelet gives up after four
// conflicts, and waits.
func TestRegistration(t *testing.T) {
	root, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	dir := filepath.Join(root, "reg")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	k := newKubelet(t, dir)
	times := &table{}
	runs := 100
	if testing.Short() {
		runs = 5
	}
	for group, scenarios := range [][]scenario{{
		{"first registration, from being ready", few, first},
		{"a driver that is slow to serve", 1, slow},
		{"a driver whose NodeGetInfo is slow", 1, slowInfo},
	}, {
		{"restart", few, restart},
		{"restart, registration kept", few, restartKept},
	}, {
		{"kill -9 and restart", few, killed},
		{"kill -9 while another one stands by", few, killedBeforeStandby},
	}, {
		{"stale socket of the previous instance", few, stale},
		{"deleted socket", few, deleted},
		{"Reregister", few, reregister},
	}, {
		{"rejected, until an administrator has acted", 1, rejected},
		{"rejected, because of another driver of the same name", 1, sameName},
	}, {
		{"rolling update, old before new", runs, oldBeforeNew},
		{"rolling update, new before the old is gone", runs, newBeforeOld},
	}} {
		t.Run(fmt.Sprint("group", group), func(t *testing.T) {
			for number, s := range scenarios {
				times.rows = append(times.rows, &row{scenario: s.name})
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					for n := range s.runs {
						t.Run("", func(t *testing.T) {
							if s.runs > few {
								t.Parallel()
							}
							until, gap := s.run(t, k, fmt.Sprintf("d%d-%d-%d.csikit.dev", group, number, n))
							times.add(s.name, until, gap)
						})
					}
				})
			}
		})
	}
	t.Run("kubelet restarts", func(t *testing.T) {
		until, gap := kubeletRestarts(t, k)
		times.add("kubelet restarts, from its start", until, gap)
	})
	t.Run("directory recreated", func(t *testing.T) {
		until, gap := directoryRecreated(t, k)
		times.add("directory recreated, from kubelet's restart", until, gap)
	})
	t.Logf("\n%v", times)
}

func first(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	i := prepare(t, k, driver, "node")
	i.ready.Store(false)
	i.start(t)
	await(t, "the driver to serve", func() bool {
		s := i.Status()
		return s.State == registration.AwaitingDriver && strings.Contains(s.Err.Error(), "not ready")
	})
	ready := time.Now()
	i.ready.Store(true)
	at := k.await(t, driver, 0, "node")
	i.await(t, registration.Registered)
	return at.Sub(ready), 0
}

func slow(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	i := prepare(t, k, driver, "node")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	defer func() {
		stop()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	}()
	go func() { done <- i.Serve(ctx) }()
	i.await(t, registration.AwaitingDriver)
	ready := time.Now()
	go func() { done <- i.serveCSI(ctx) }()
	at := k.await(t, driver, 0, "node")
	if i.Status().GetInfoCalls != 1 {
		t.Errorf("kubelet called GetInfo %d times", i.Status().GetInfoCalls)
	}
	return at.Sub(ready), 0
}

// slowInfo delays NodeGetInfo, for which kubelet waits up to two minutes. The time is
// measured from the response.
func slowInfo(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	i := prepare(t, k, driver, "node")
	asked, answer := make(chan struct{}), make(chan struct{})
	i.info = func() {
		close(asked)
		<-answer
	}
	i.start(t)
	<-asked
	if s := i.Status(); s.State != registration.AwaitingKubelet {
		t.Errorf("status %+v", s)
	}
	start := time.Now()
	close(answer)
	at := k.await(t, driver, 0, "node")
	i.await(t, registration.Registered)
	if i.Status().GetInfoCalls != 1 {
		t.Errorf("kubelet called GetInfo %d times", i.Status().GetInfoCalls)
	}
	return at.Sub(start), 0
}

func restart(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	return restartWith(t, k, driver, registration.Deregister)
}

func restartKept(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	return restartWith(t, k, driver, registration.KeepRegistered)
}

func restartWith(t *testing.T, k *kubelet, driver string, s registration.Shutdown) (until, gap time.Duration) {
	shutdown := func(c *registration.Config) { c.OnShutdown = s }
	old := serve(t, k, driver, "node", shutdown)
	k.await(t, driver, 0, "node")
	old.await(t, registration.Registered)
	old.end(t)
	seen := len(k.changes(driver))
	start := time.Now()
	i := serve(t, k, driver, "node", shutdown)
	i.await(t, registration.Registered)
	at := k.await(t, driver, seen, "node")
	return at.Sub(start), k.gap(driver, seen)
}

func killed(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	kill := serveProcess(t, k, driver, "node")
	k.await(t, driver, 0, "node")
	kill()
	seen := len(k.changes(driver))
	start := time.Now()
	serveProcess(t, k, driver, "node")
	at := k.await(t, driver, seen, "node")
	return at.Sub(start), k.gap(driver, seen)
}

func killedBeforeStandby(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	kill := serveProcess(t, k, driver, "old")
	k.await(t, driver, 0, "old")
	next := serve(t, k, driver, "new")
	next.await(t, registration.Standby)
	seen := len(k.changes(driver))
	start := time.Now()
	kill()
	at := k.await(t, driver, seen, "new")
	return at.Sub(start), k.gap(driver, seen)
}

// stale is as after a reboot: kubelet finds the stale socket first.
func stale(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	kill := serveProcess(t, k, driver, "node")
	k.await(t, driver, 0, "node")
	kill()
	// kubelet deregisters the driver when the socket is removed, and then finds it again, stale.
	socket := filepath.Join(k.dir, driver+"-reg.sock")
	if err := errors.Join(os.Link(socket, filepath.Join(k.dir, "."+driver)), os.Remove(socket)); err != nil {
		t.Fatal(err)
	}
	k.await(t, driver, 0, "")
	if err := os.Rename(filepath.Join(k.dir, "."+driver), socket); err != nil {
		t.Fatal(err)
	}
	seen := len(k.changes(driver))
	start := time.Now()
	serve(t, k, driver, "node")
	at := k.await(t, driver, seen, "node")
	return at.Sub(start), k.gap(driver, seen)
}

func deleted(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	i := serve(t, k, driver, "node")
	k.await(t, driver, 0, "node")
	i.await(t, registration.Registered)
	seen := len(k.changes(driver))
	start := time.Now()
	if err := os.Remove(filepath.Join(k.dir, driver+"-reg.sock")); err != nil {
		t.Fatal(err)
	}
	k.await(t, driver, seen, "")
	at := k.await(t, driver, seen, "node")
	i.await(t, registration.Registered)
	return at.Sub(start), k.gap(driver, seen)
}

func reregister(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	i := prepare(t, k, driver, "node")
	i.limit.Store(7)
	i.start(t)
	k.await(t, driver, 0, "node")
	seen := len(k.changes(driver))
	start := time.Now()
	i.limit.Store(8)
	i.Reregister()
	await(t, "the new limit", func() bool {
		p := k.changes(driver)
		return p[len(p)-1].limit == 8
	})
	p := k.changes(driver)
	return p[len(p)-1].at.Sub(start), k.gap(driver, seen)
}

// rejected has a label of the node contradict the driver, which kubelet rejects
// until an administrator has deleted the label.
func rejected(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	key := "topology." + driver
	label := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, value)
		if _, err := k.client.CoreV1().Nodes().Patch(t.Context(), nodeName, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(`"elsewhere"`)
	i := prepare(t, k, driver, "node")
	i.topology.Store(&csi.Topology{Segments: map[string]string{key: "here"}})
	i.start(t)
	i.await(t, registration.Rejected)
	if err := i.Check(t.Context()); !strings.Contains(err.Error(), "detected topology value collision") {
		t.Errorf("Check: %v", err)
	}
	label("null")
	start := time.Now()
	at := k.await(t, driver, 0, "node")
	i.await(t, registration.Registered)
	if i.Status().SocketsCreated != 1 {
		t.Errorf("the socket was created %d times", i.Status().SocketsCreated)
	}
	node, err := k.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || node.Labels[key] != "here" {
		t.Errorf("the label is %q (%v)", node.Labels[key], err)
	}
	return at.Sub(start), 0
}

// sameName registers a second driver of the same name with a socket of another name.
func sameName(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	old := serve(t, k, driver, "old")
	k.await(t, driver, 0, "old")
	elsewhere := filepath.Join(filepath.Dir(k.dir), driver+"-d")
	if err := os.Mkdir(elsewhere, 0o750); err != nil {
		t.Fatal(err)
	}
	next := serve(t, k, driver, "new", func(c *registration.Config) { c.Dir = elsewhere })
	next.await(t, registration.AwaitingKubelet)
	other := filepath.Join(k.dir, "other-"+driver+".sock")
	if err := os.Link(next.Status().Socket, other); err != nil {
		t.Fatal(err)
	}
	next.await(t, registration.Rejected)
	if s := next.Status(); !strings.Contains(s.Err.Error(), "same name is already registered") {
		t.Errorf("status %+v", s)
	}
	seen := len(k.changes(driver))
	start := time.Now()
	old.end(t)
	at := k.await(t, driver, seen, "new")
	next.await(t, registration.Registered)
	if err := os.Remove(other); err != nil {
		t.Error(err)
	}
	return at.Sub(start), k.gap(driver, seen)
}

func oldBeforeNew(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	old := serve(t, k, driver, "old")
	k.await(t, driver, 0, "old")
	seen := len(k.changes(driver))
	start := time.Now()
	old.end(t)
	next := serve(t, k, driver, "new")
	at := k.await(t, driver, seen, "new")
	next.await(t, registration.Registered)
	return at.Sub(start), k.gap(driver, seen)
}

func newBeforeOld(t *testing.T, k *kubelet, driver string) (until, gap time.Duration) {
	old := serve(t, k, driver, "old")
	k.await(t, driver, 0, "old")
	next := serve(t, k, driver, "new")
	next.await(t, registration.Standby)
	old.await(t, registration.Registered)
	seen := len(k.changes(driver))
	start := time.Now()
	old.end(t)
	at := k.await(t, driver, seen, "new")
	next.await(t, registration.Registered)
	return at.Sub(start), k.gap(driver, seen)
}

func kubeletRestarts(t *testing.T, k *kubelet) (until, gap time.Duration) {
	const driver = "restart.csikit.dev"
	i := serve(t, k, driver, "node")
	k.await(t, driver, 0, "node")
	i.await(t, registration.Registered)
	seen, asked := len(k.changes(driver)), i.Status().GetInfoCalls
	k.crash(t)
	start := time.Now()
	k.start(t)
	await(t, "a call of GetInfo", func() bool { return i.Status().GetInfoCalls > asked })
	await(t, "the registration", func() bool { s := i.Status(); return s.State == registration.Registered })
	until = i.Status().LastGetInfo.Sub(start)
	if i.Status().SocketsCreated != 1 {
		t.Errorf("the socket was created %d times", i.Status().SocketsCreated)
	}
	return until, k.gap(driver, seen)
}

func directoryRecreated(t *testing.T, k *kubelet) (until, gap time.Duration) {
	const driver = "recreated.csikit.dev"
	i := serve(t, k, driver, "node")
	k.await(t, driver, 0, "node")
	i.await(t, registration.Registered)
	seen := len(k.changes(driver))
	if err := os.RemoveAll(k.dir); err != nil {
		t.Fatal(err)
	}
	k.await(t, driver, seen, "")
	if err := os.Mkdir(k.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	await(t, "a new socket", func() bool { s := i.Status(); return s.State == registration.AwaitingKubelet && s.SocketsCreated > 1 })
	if s := i.Status(); !strings.Contains(s.Err.Error(), "restart kubelet") {
		t.Errorf("status %+v", s)
	}
	k.crash(t)
	start := time.Now()
	k.start(t)
	at := k.await(t, driver, seen, "node")
	i.await(t, registration.Registered)
	return at.Sub(start), k.gap(driver, seen)
}
