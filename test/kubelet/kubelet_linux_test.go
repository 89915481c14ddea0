package kubelet

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/volume/csi"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
)

const nodeName = "node"

// A kubelet is the part of kubelet that registers CSI
// drivers. There is one at a time: it keeps its drivers in global variables.
type kubelet struct {
	dir    string // plugins_registry
	client *fake.Clientset

	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	past  map[string][]change // by driver
	quiet bool                // updates of CSINode are not by kubelet
}

// A change is the addition of a driver to CSINode, or its removal.
type change struct {
	at     time.Time
	nodeID string // "" if it was removed
	limit  int32
}

func newKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	quiet(t)
	k := &kubelet{dir: dir, past: map[string][]change{}}
	k.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "1"}})
	k.client.PrependReactor("*", "csinodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if w, ok := a.(clienttesting.UpdateAction); ok { // creating has the same method
			if n, ok := w.GetObject().(*storagev1.CSINode); ok {
				k.written(n)
			}
		}
		return false, nil, nil
	})
	k.start(t)
	t.Cleanup(k.end)
	return k
}

// quiet keeps kubelet's log out of the test's, unless CSIKIT_TEST_KUBELET_LOG is set.
func quiet(t *testing.T) {
	t.Helper()
	if os.Getenv("CSIKIT_TEST_KUBELET_LOG") != "" {
		return
	}
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		t.Fatal(err)
	}
	klog.SetOutput(io.Discard)
}

func (k *kubelet) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(k.client, time.Minute)
	lister := factory.Storage().V1().CSIDrivers().Lister()
	factory.Start(ctx.Done())
	volumetest.NewFakeKubeletVolumeHostWithCSINodeName(t, t.TempDir(), k.client, csi.ProbeVolumePlugins(), nodeName, lister, nil)
	manager := pluginmanager.NewPluginManager(k.dir, &record.FakeRecorder{})
	manager.AddHandler(registerapi.CSIPlugin, csi.PluginHandler)
	k.stop, k.done = stop, make(chan struct{})
	go func() {
		defer close(k.done)
		manager.Run(ctx, config.NewSourcesReady(func(sets.Set[string]) bool { return true }), ctx.Done())
		factory.Shutdown()
	}()
}

func (k *kubelet) end() {
	k.stop()
	<-k.done
}

// crash ends kubelet, as SIGKILL does: its memory is lost, and the
// API server keeps CSINode.
func (k *kubelet) crash(t *testing.T) {
	t.Helper()
	k.end()
	k.mu.Lock()
	k.quiet = true
	k.mu.Unlock()
	ctx := context.Background()
	node, err := k.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csiNode, err := k.client.StorageV1().CSINodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The memory is global variables, which are reset only by this.
	for _, d := range csiNode.Spec.Drivers {
		csi.PluginHandler.DeRegisterPlugin(d.Name, "")
	}
	if _, err := k.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.client.StorageV1().CSINodes().Update(ctx, csiNode, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.quiet = false
	k.mu.Unlock()
}

// written records the changes of CSINode.
func (k *kubelet) written(n *storagev1.CSINode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.quiet {
		return
	}
	now := time.Now()
	there := map[string]bool{}
	for _, d := range n.Spec.Drivers {
		there[d.Name] = true
		c := change{at: now, nodeID: d.NodeID}
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			c.limit = *d.Allocatable.Count
		}
		if last := k.last(d.Name); last.nodeID != c.nodeID || last.limit != c.limit {
			k.past[d.Name] = append(k.past[d.Name], c)
		}
	}
	for name := range k.past {
		if !there[name] && k.last(name).nodeID != "" {
			k.past[name] = append(k.past[name], change{at: now})
		}
	}
}

func (k *kubelet) last(driver string) change {
	if p := k.past[driver]; len(p) > 0 {
		return p[len(p)-1]
	}
	return change{}
}

// changes returns the changes of driver so far.
func (k *kubelet) changes(driver string) []change {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.past[driver])
}

// await waits until driver is in CSINode as nodeID ("" for not at all), by a
// change after the first seen ones, and returns the time of the change.
func (k *kubelet) await(t *testing.T, driver string, seen int, nodeID string) time.Time {
	t.Helper()
	var at time.Time
	await(t, fmt.Sprintf("%s to be %q in CSINode", driver, nodeID), func() bool {
		p := k.changes(driver)
		if len(p) <= seen || p[len(p)-1].nodeID != nodeID {
			return false
		}
		at = p[len(p)-1].at
		return true
	})
	return at
}

// gap is how long driver was not in CSINode, after the first seen changes.
func (k *kubelet) gap(driver string, seen int) (gap time.Duration) {
	p := k.changes(driver)
	for i := max(seen, 1); i < len(p); i++ {
		if p[i-1].nodeID == "" {
			gap += p[i].at.Sub(p[i-1].at)
		}
	}
	return gap
}

// await waits until ok, with a timeout far beyond kubelet.s longest
// backoff in these tests.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}
