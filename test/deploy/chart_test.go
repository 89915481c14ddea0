package deploy

import (
	"encoding/json"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"sigs.k8s.io/yaml"
)

// The chart has for each overlay, and for each component that no overlay has, values with
// which its objects are the same; and with another directory of kubelet they are those of the
// overlay with the path replaced.
func TestChartEqualsOverlays(t *testing.T) {
	const elsewhere = "/var/lib/k0s/kubelet"
	for _, d := range drivers {
		chart, tree := d.chart(t), d.tree(t)
		compare := func(overlay string, components ...string) {
			t.Run(strings.Join(append([]string{d.name, overlay}, components...), "+"), func(t *testing.T) {
				want, err := tree.render(overlay, components)
				if err != nil {
					t.Fatal(err)
				}
				values := chart.valuesOf(t, overlay, components...)
				equal(t, want, chart.release(t, d.name, values).objects)
				values["kubeletDir"] = elsewhere
				equal(t, replaced(t, want, kubeletDir, elsewhere), chart.release(t, d.name, values).objects)
				t.Logf("%d objects are the same", len(want)-1)
			})
		}
		for _, overlay := range d.overlays(t) {
			compare(overlay)
		}
		for component, overlay := range d.optional {
			compare(overlay, component)
		}
	}
}

// equal compares the objects of an overlay and of the chart, but for the Namespace: a release
// is installed into one.
func equal(t *testing.T, want, chart []runtime.Object) {
	t.Helper()
	got := map[string]runtime.Object{}
	for _, o := range chart {
		got[nameOf(o)] = sorted(o)
	}
	for _, o := range withoutNamespace(want) {
		o, name := sorted(o), nameOf(o)
		if g := got[name]; g == nil {
			t.Errorf("the chart has no %s", name)
		} else if !equality.Semantic.DeepEqual(o, g) {
			t.Errorf("%s of the overlay (-) and of the chart (+):\n%s", name, diff.Diff(o, g))
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("the overlay has no %s", name)
	}
}

// sorted returns an object with its containers and volumes by name: their order has no meaning.
func sorted(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	if pod := podOf(o); pod != nil {
		slices.SortFunc(pod.Containers, func(a, b corev1.Container) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(pod.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
	}
	return o
}

func podOf(o runtime.Object) *corev1.PodSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template.Spec
	case *appsv1.StatefulSet:
		return &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return &o.Spec.Template.Spec
	}
	return nil
}

func withoutNamespace(objects []runtime.Object) []runtime.Object {
	return slices.DeleteFunc(slices.Clone(objects), isNamespace)
}

func isNamespace(o runtime.Object) bool {
	_, is := o.(*corev1.Namespace)
	return is
}

func replaced(t *testing.T, objects []runtime.Object, old, new string) (out []runtime.Object) {
	t.Helper()
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := decode([]byte(strings.ReplaceAll(string(text), old, new)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// changes are for each value of the charts, by its path or its last name, another one that the
// schema allows.
var changes = map[string]string{
	"server": "nas2.example.com", "share": "/srv/more",
	"exports": "[nas.example.com:/srv/volumes]", "inlineExports": "[nas.example.com:/srv/shared]",
	"image.registry": "registry.example.com/team", "image.pullPolicy": "Always", "tag": "v9.9.9",
	"imagePullSecrets": "[{name: registry}]",
	"kubeletDir":       "/var/lib/k0s/kubelet",
	"pool.hostPath":    "/mnt/other/pool", "pool.topology": "topology.block.csikit.dev/rack=r1",
	"controller.onNode": "true", "controller.replicas": "3", "controller.maxUnavailable": "2",
	"node.sidecars": "false", "node.lifecycle": "true", "node.startupTaint": "true", "node.maxUnavailable": "20%",
	"priorityClassName": "important", "nodeSelector": "{disk: ssd}", "tolerations": "[{key: maintenance, operator: Exists}]",
	"affinity":       "{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}",
	"podAnnotations": "{example.com/a: b}", "resources": "{requests: {cpu: 20m}}", "dnsPolicy": "ClusterFirst",
	"extraArgs": "[-log-level=debug]", "extraEnv": "[{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://otel:4317'}]",
	"extraVolumes": "[{name: ca, secret: {secretName: ca}}]", "extraVolumeMounts": "[{name: socket-dir, mountPath: /more}]",
	"sidecars.registry": "registry.example.com/mirror", "sidecars.timeout": "120s", "sidecars.seLinuxOptions": "{type: spc_t}",
	"storageClasses":          "[{name: mine, parameters: {a: b}, mountOptions: [noatime], annotations: {storageclass.kubernetes.io/is-default-class: 'true'}, reclaimPolicy: Retain}]",
	"volumeAttributesClasses": "[]",
	"snapshots.enabled":       "false", "snapshots.groups": "true", "snapshots.metadata": "false", "snapshots.metadataCA": "Y2E=", "snapshots.parameters": "{copyInUse: 'true'}",
	"serviceMonitor.enabled": "false", "serviceMonitor.interval": "60s", "serviceMonitor.labels": "{release: prometheus}",
	"networkPolicy.ingress": "[{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}]",
	"test.image":            "registry.example.com/busybox:1.37",
}

// Each value of values.yaml is in the schema, and the other way round; it changes the objects,
// to such as an API server takes; and one of a wrong type or an unknown name is refused.
func TestChartValues(t *testing.T) {
	log.SetOutput(io.Discard) // helm warns of the values of a wrong type
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			chart := d.chart(t)
			base := chart.valuesOf(t, d.overlays(t)[0])
			set(base, "serviceMonitor.enabled", true)
			if d.name == "blockdriver" {
				base = map[string]any{"serviceMonitor": base["serviceMonitor"], "snapshots": map[string]any{"metadata": true}} // the controller on its own
			}
			before := chart.release(t, d.name, base).text(t)
			leaves := chart.leaves(t)
			for _, path := range leaves {
				text, found := changes[path]
				if !found {
					text, found = changes[path[strings.LastIndex(path, ".")+1:]]
				}
				if !found {
					t.Errorf("%s: add another value to changes", path)
					continue
				}
				if path == "storageClasses" && d.name == "blockdriver" {
					text = strings.Replace(text, "name: mine", "name: mine, fsType: xfs", 1)
				}
				var value any
				if err := yaml.Unmarshal([]byte(text), &value); err != nil {
					t.Fatal(err)
				}
				base, before := base, before
				if path == "node.lifecycle" { // only with this
					base = with(base, "node.sidecars", false)
					before = chart.release(t, d.name, base).text(t)
				}
				release := chart.release(t, d.name, with(base, path, value))
				if release.text(t) == before {
					t.Errorf("%s: %s has no effect", path, text)
				}
				for _, o := range slices.Concat(release.objects, release.tests) {
					if err := validate(o); err != nil {
						t.Errorf("%s: %s: %s: %v", path, text, nameOf(o), err)
					}
				}
				if _, err := chart.render(d.name, with(base, path, []any{[]any{1}})); err == nil || !strings.Contains(err.Error(), "schema") {
					t.Errorf("%s: the schema allows [[1]]: %v", path, err)
				}
				parent, _, nested := strings.Cut(path, ".")
				if !nested {
					parent = "unknown"
				} else {
					parent += ".unknown"
				}
				if _, err := chart.render(d.name, with(base, parent, "x")); err == nil {
					t.Errorf("the schema allows %s", parent)
				}
			}
			t.Logf("%d values", len(leaves))
		})
	}
}

// helm lint has nothing to say but that an icon is missing.
func TestChartLint(t *testing.T) {
	for _, d := range drivers {
		for _, overlay := range d.overlays(t) {
			values := d.chart(t).valuesOf(t, overlay)
			for _, m := range lint.RunAll(filepath.Join(d.dir(), "helm"), values, d.name).Messages {
				if m.Severity > support.InfoSev || !strings.Contains(m.Error(), "icon is recommended") {
					t.Errorf("%s: %s: %v", d.name, overlay, m)
				}
			}
		}
	}
}

// nfsdriver's chart without a server is refused, and the error says what to set.
func TestChartRequired(t *testing.T) {
	d := able("nfsdriver")
	if _, err := d.chart(t).render(d.name, nil); err == nil || !strings.Contains(err.Error(), "set server") {
		t.Errorf("without a server: %v", err)
	}
}

func (d *driver) chart(t *testing.T) *chart {
	t.Helper()
	c, err := readChart(filepath.Join(d.dir(), "helm"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chart) valuesOf(t *testing.T, overlay string, components ...string) map[string]any {
	t.Helper()
	v, err := c.values(append([]string{overlay}, components...)...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (c *chart) release(t *testing.T, namespace string, values map[string]any) *release {
	t.Helper()
	r, err := c.render(namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *release) text(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(slices.Concat(r.objects, r.tests))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// leaves are the paths of the values that the schema does not take apart. Each of them, and
// each object that has some, is in values.yaml.
func (c *chart) leaves(t *testing.T) (paths []string) {
	t.Helper()
	type schema struct {
		Type                 any
		AdditionalProperties any
		Properties           map[string]json.RawMessage
	}
	var walk func(prefix string, text []byte, values map[string]any)
	walk = func(prefix string, text []byte, values map[string]any) {
		var s schema
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatalf("%s: %v", prefix, err)
		}
		if s.AdditionalProperties != false {
			t.Errorf("%s: want additionalProperties to be false", prefix)
		}
		for name := range values {
			if _, found := s.Properties[name]; !found {
				t.Errorf("%s%s of values.yaml is not in the schema", prefix, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			value, found := values[name]
			if path := prefix + name; path == "global" { // what a chart that has this one as its part may set
				continue
			} else if !found {
				t.Errorf("%s of the schema is not in values.yaml", path)
			}
			var inner schema
			if err := json.Unmarshal(s.Properties[name], &inner); err != nil {
				t.Fatal(err)
			}
			if inner.Properties == nil {
				paths = append(paths, prefix+name)
				continue
			}
			of, _ := value.(map[string]any)
			walk(prefix+name+".", s.Properties[name], of)
		}
	}
	walk("", c.chart.Schema, c.chart.Values)
	return paths
}

// with returns a copy of values in which the one at the path is another.
func with(values map[string]any, path string, value any) map[string]any {
	out := runtime.DeepCopyJSON(values)
	set(out, path, value)
	return out
}

func set(values map[string]any, path string, value any) {
	name, rest, nested := strings.Cut(path, ".")
	if !nested {
		values[name] = value
		return
	}
	inner, _ := values[name].(map[string]any)
	if inner == nil {
		inner = map[string]any{}
		values[name] = inner
	}
	set(inner, rest, value)
}
