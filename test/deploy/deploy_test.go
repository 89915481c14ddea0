package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/storage"
	storagevalidation "k8s.io/kubernetes/pkg/apis/storage/validation"
)

// drivers are the examples that have manifests.
var drivers = []*driver{
	{
		name:     "blockdriver",
		optional: map[string]string{"encryption": "shared-pool", "group-snapshots": "single-node", "node-lifecycle": "sidecar-free-node", "snapshot-metadata": "shared-pool"},
	},
	{
		name:         "nfsdriver",
		optional:     map[string]string{"inline-volumes": "cluster", "startup-taint": "sidecar-free-node"},
		network:      true,
		single:       true,
		capabilities: []corev1.Capability{"SYS_ADMIN", "FOWNER", "MKNOD"},
	},
}

// Every overlay of every driver: it renders, each object is one that an API server
// takes, the driver starts with the arguments of its containers, offers what the
// objects promise, takes the parameters of its classes, and no rule finds a mistake.
func TestManifests(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			start := time.Now()
			if err := d.build(t.Context(), shortDir(t)); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: built in %v: %d flags", d.name, time.Since(start).Round(time.Millisecond), len(d.flags))
			tree := d.tree(t)
			rendered := func(overlay string, components ...string) []runtime.Object {
				objects, err := tree.render(overlay, components)
				if err != nil {
					t.Fatal(err)
				}
				return objects
			}
			for _, overlay := range d.overlays(t) {
				t.Run(overlay, func(t *testing.T) { d.check(t, rendered(overlay)) })
			}
			for component, overlay := range d.optional {
				t.Run(overlay+"+"+component, func(t *testing.T) { d.check(t, rendered(overlay, component)) })
			}
			// What only the chart has. With the values of overlays its objects are theirs.
			chart := d.chart(t)
			for _, overlay := range d.overlays(t) {
				t.Run("chart/"+overlay, func(t *testing.T) {
					values := chart.valuesOf(t, overlay)
					set(values, "serviceMonitor.enabled", true)
					set(values, "snapshots.enabled", false)
					namespace := slices.DeleteFunc(rendered(overlay), func(o runtime.Object) bool { return !isNamespace(o) })
					d.check(t, append(namespace, chart.release(t, d.name, values).objects...))
				})
			}
		})
	}
}

func (d *driver) check(t *testing.T, objects []runtime.Object) {
	start := time.Now()
	c := newCluster(d, objects)
	if len(c.workloads) == 0 {
		t.Fatal("nothing runs")
	}
	for _, w := range c.workloads {
		if w.driver == nil {
			t.Fatalf("%v: no container has an image whose name begins with %s", w, d.name)
		}
	}
	h := &host{dir: shortDir(t)}
	t.Cleanup(h.stop)
	if err := h.start(t.Context(), d, c); err != nil {
		t.Fatal(err)
	}
	if err := h.provision(t.Context(), d, c); err != nil {
		t.Error(err)
	}
	for _, f := range c.lint() {
		t.Error(f)
	}
	containers := 0
	for _, w := range c.workloads {
		containers += len(w.all)
	}
	t.Logf("%d objects, %d containers, %d processes, %d rules: %v", len(objects), containers, len(h.processes), len(rules), time.Since(start).Round(time.Millisecond))
}

// The samples are taken by an API server, and name classes that the overlays have.
func TestSamples(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			tree := d.tree(t)
			samples, err := tree.build("/deploy/samples")
			if err != nil {
				t.Fatal(err)
			}
			if d.name == "blockdriver" { // to be applied when a pod of the others has ended
				copies, err := tree.build("/deploy/samples/copies")
				if err != nil {
					t.Fatal(err)
				}
				samples = append(samples, copies...)
			}
			objects, err := tree.render(d.overlays(t)[0], nil)
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]bool{}
			for _, o := range objects {
				have[nameOf(o)] = true
			}
			for _, o := range samples {
				m, err := meta.Accessor(o)
				if err != nil || m.GetNamespace() != "" {
					t.Errorf("%s: want no namespace, so that one can choose: %v", nameOf(o), err)
				}
				if !clusterScoped[o.GetObjectKind().GroupVersionKind().Kind] {
					m.SetNamespace("default")
				}
				if err := validate(o); err != nil {
					t.Errorf("%s: %v", nameOf(o), err)
				}
				for _, name := range namesIn(o) {
					if !have[name] {
						t.Errorf("%s: there is no %s", nameOf(o), name)
					}
				}
			}
			for _, f := range unserved(objects, samples) {
				t.Error(f)
			}
			if len(samples) == 0 {
				t.Error("no samples")
			}
			t.Logf("%d samples", len(samples))
		})
	}
}

// unserved are the claims among samples that are never bound because no pod uses them, and the
// sources of snapshots and clones that stay attached: a pool without atomic copies refuses
// to copy those.
func unserved(objects, samples []runtime.Object) (findings []string) {
	late, attached := map[string]bool{}, false
	for _, o := range objects {
		switch o := o.(type) {
		case *storagev1.StorageClass:
			late[o.Name] = o.VolumeBindingMode != nil && *o.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
		case *storagev1.CSIDriver:
			attached = o.Spec.AttachRequired == nil || *o.Spec.AttachRequired
		}
	}
	used, inUse := map[string]bool{}, map[string]bool{} // by a pod, by one that does not end
	for _, o := range samples {
		pod, ends := podOf(o), false
		if p, is := o.(*corev1.Pod); is {
			pod, ends = &p.Spec, p.Spec.RestartPolicy == corev1.RestartPolicyNever || p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
		}
		if pod == nil {
			continue
		}
		for _, v := range pod.Volumes {
			if c := v.PersistentVolumeClaim; c != nil {
				used[c.ClaimName] = true
				inUse[c.ClaimName] = inUse[c.ClaimName] || !ends
			}
		}
	}
	source := func(o runtime.Object, claim string) {
		if attached && inUse[claim] {
			findings = append(findings, fmt.Sprintf("%s: its source %s is in use by a pod that does not end", nameOf(o), claim))
		}
	}
	for _, o := range samples {
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			if s := o.Spec.StorageClassName; s != nil && late[*s] && !used[o.Name] {
				findings = append(findings, nameOf(o)+": no pod uses it, and its class is WaitForFirstConsumer")
			}
			if s := o.Spec.DataSource; s != nil && s.Kind == "PersistentVolumeClaim" {
				source(o, s.Name)
			}
		case *snapshotv1.VolumeSnapshot:
			if s := o.Spec.Source.PersistentVolumeClaimName; s != nil {
				source(o, *s)
			}
		}
	}
	return findings
}

// The API server refuses to make an existing CSIDriver one of inline volumes: nfsdriver's README
// says to delete it first.
func TestInlineNeedsNewCSIDriver(t *testing.T) {
	d := able("nfsdriver")
	tree := d.tree(t)
	var versions []*storage.CSIDriver
	for _, components := range [][]string{nil, {"inline-volumes"}} {
		objects, err := tree.render("cluster", components)
		if err != nil {
			t.Fatal(err)
		}
		o := newCluster(d, objects).csiDrivers[0]
		o.ResourceVersion = "1"
		legacyscheme.Scheme.Default(o)
		internal := &storage.CSIDriver{}
		if err := legacyscheme.Scheme.Convert(o, internal, nil); err != nil {
			t.Fatal(err)
		}
		versions = append(versions, internal)
	}
	text, err := os.ReadFile(filepath.Join(d.dir(), "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	refused := storagevalidation.ValidateCSIDriverUpdate(versions[1], versions[0])
	if documented := strings.Contains(string(text), "kubectl delete csidriver "+versions[0].Name); len(refused) == 0 || !documented {
		t.Errorf("the update is refused: %v; the README says to delete it: %t", refused, documented)
	}
}

func TestDecodeIsStrict(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field":   "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {volums: []}\n",
		"field twice":     "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nmetadata: {name: b}\n",
		"unknown kind":    "apiVersion: v1\nkind: Pood\nmetadata: {name: a}\n",
		"unknown version": "apiVersion: storage.k8s.io/v9\nkind: CSIDriver\nmetadata: {name: a}\n",
		"CRD's field":     "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {name: a}\ndriver: a\ndeletionPolicy: Delete\nparams: {}\n",
	} {
		if o, err := decode([]byte(text)); err == nil {
			t.Errorf("%s: decoded as %T", name, o)
		}
	}
}

// namesIn are the objects of the driver that a sample counts on.
func namesIn(o any) (names []string) {
	add := func(kind string, name *string) {
		if name != nil && *name != "" {
			names = append(names, kind+" "+*name)
		}
	}
	claim := func(s corev1.PersistentVolumeClaimSpec) {
		add("StorageClass", s.StorageClassName)
		add("VolumeAttributesClass", s.VolumeAttributesClassName)
	}
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		claim(o.Spec)
	case *corev1.PersistentVolume:
		add("CSIDriver", &o.Spec.CSI.Driver)
	default:
		for _, c := range templatesOf(o) {
			claim(c.Spec)
		}
		add("VolumeSnapshotClass", snapshotClassOf(o))
	}
	return names
}

func (d *driver) tree(t *testing.T) tree {
	t.Helper()
	tree, err := readTree(d.dir())
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func (d *driver) dir() string { return filepath.Join("..", "..", "examples", d.name, "deploy") }

func (d *driver) overlays(t *testing.T) (names []string) {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join(d.dir(), "overlays"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range dirs {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// shortDir is a temporary directory with a name that leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "d")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for a driver that is another user
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func templatesOf(o any) []corev1.PersistentVolumeClaim {
	if s, ok := o.(*appsv1.StatefulSet); ok {
		return s.Spec.VolumeClaimTemplates
	}
	return nil
}

func snapshotClassOf(o any) *string {
	if s, ok := o.(*snapshotv1.VolumeSnapshot); ok {
		return s.Spec.VolumeSnapshotClassName
	}
	return nil
}
