package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// drivers are the examples that have manifests.
var drivers = []*driver{
	{
		name:     "blockdriver",
		optional: map[string]string{"group-snapshots": "single-node"},
	},
	{
		name:         "nfsdriver",
		optional:     map[string]string{"inline-volumes": "cluster"},
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
			for _, overlay := range d.overlays(t) {
				t.Run(overlay, func(t *testing.T) { d.check(t, tree, overlay) })
			}
			for component, overlay := range d.optional {
				t.Run(overlay+"+"+component, func(t *testing.T) { d.check(t, tree, overlay, component) })
			}
		})
	}
}

func (d *driver) check(t *testing.T, tree tree, overlay string, components ...string) {
	start := time.Now()
	objects, err := tree.render(overlay, components)
	if err != nil {
		t.Fatal(err)
	}
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
	t.Logf("%s: %d objects, %d containers, %d processes, %d rules: %v", overlay, len(objects), containers, len(h.processes), len(rules), time.Since(start).Round(time.Millisecond))
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
			if len(samples) == 0 {
				t.Error("no samples")
			}
			t.Logf("%d samples", len(samples))
		})
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
