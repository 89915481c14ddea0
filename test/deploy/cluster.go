package deploy

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A cluster is the objects of one overlay, by what the rules ask for.
type cluster struct {
	driver  *driver
	objects []runtime.Object

	workloads           []*workload
	csiDrivers          []*storagev1.CSIDriver
	storageClasses      []*storagev1.StorageClass
	attributesClasses   []*storagev1.VolumeAttributesClass
	snapshotClasses     []*snapshotv1.VolumeSnapshotClass
	groupClasses        []*groupsnapshotv1.VolumeGroupSnapshotClass
	accounts            []*corev1.ServiceAccount
	namespaces          []*corev1.Namespace
	budgets             []*policyv1.PodDisruptionBudget
	roles               []*rbacv1.Role
	clusterRoles        []*rbacv1.ClusterRole
	roleBindings        []*rbacv1.RoleBinding
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
}

// A workload is a Deployment, a StatefulSet or a DaemonSet.
type workload struct {
	name, namespace string
	deployment      *appsv1.Deployment // or
	statefulSet     *appsv1.StatefulSet
	daemonSet       *appsv1.DaemonSet
	labels          map[string]string // of its pods
	pod             corev1.PodSpec
	replicas        int32 // 0 for a DaemonSet

	driver   *container // the container that is the driver
	sidecars []*container
	init     []*container
	all      []*container // but those that end
}

// A container with its arguments taken apart.
type container struct {
	corev1.Container
	image, tag string            // registry.k8s.io/sig-storage/csi-attacher:v4.12.0 is csi-attacher, v4.12.0
	flags      map[string]string // by name, without dashes; a switch is "true"
	positional []string
}

func newCluster(d *driver, objects []runtime.Object) *cluster {
	c := &cluster{driver: d, objects: objects}
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			w := c.add(o.ObjectMeta, o.Spec.Template)
			w.deployment, w.replicas = o, replicas(o.Spec.Replicas)
		case *appsv1.StatefulSet:
			w := c.add(o.ObjectMeta, o.Spec.Template)
			w.statefulSet, w.replicas = o, replicas(o.Spec.Replicas)
		case *appsv1.DaemonSet:
			c.add(o.ObjectMeta, o.Spec.Template).daemonSet = o
		case *storagev1.CSIDriver:
			c.csiDrivers = append(c.csiDrivers, o)
		case *storagev1.StorageClass:
			c.storageClasses = append(c.storageClasses, o)
		case *storagev1.VolumeAttributesClass:
			c.attributesClasses = append(c.attributesClasses, o)
		case *snapshotv1.VolumeSnapshotClass:
			c.snapshotClasses = append(c.snapshotClasses, o)
		case *groupsnapshotv1.VolumeGroupSnapshotClass:
			c.groupClasses = append(c.groupClasses, o)
		case *corev1.ServiceAccount:
			c.accounts = append(c.accounts, o)
		case *corev1.Namespace:
			c.namespaces = append(c.namespaces, o)
		case *policyv1.PodDisruptionBudget:
			c.budgets = append(c.budgets, o)
		case *rbacv1.Role:
			c.roles = append(c.roles, o)
		case *rbacv1.ClusterRole:
			c.clusterRoles = append(c.clusterRoles, o)
		case *rbacv1.RoleBinding:
			c.roleBindings = append(c.roleBindings, o)
		case *rbacv1.ClusterRoleBinding:
			c.clusterRoleBindings = append(c.clusterRoleBindings, o)
		}
	}
	return c
}

func replicas(said *int32) int32 {
	if said == nil {
		return 1
	}
	return *said
}

func (c *cluster) add(meta metav1.ObjectMeta, template corev1.PodTemplateSpec) *workload {
	w := &workload{name: meta.Name, namespace: meta.Namespace, labels: template.Labels, pod: template.Spec}
	for _, k := range template.Spec.Containers {
		n := newContainer(k)
		w.all = append(w.all, n)
		if strings.HasPrefix(n.image, c.driver.name) {
			w.driver = n
		} else {
			w.sidecars = append(w.sidecars, n)
		}
	}
	for _, k := range template.Spec.InitContainers {
		w.init = append(w.init, newContainer(k))
	}
	c.workloads = append(c.workloads, w)
	return w
}

func newContainer(k corev1.Container) *container {
	n := &container{Container: k, flags: map[string]string{}}
	n.image, n.tag, _ = strings.Cut(path.Base(k.Image), ":")
	for _, a := range k.Args {
		name, isFlag := strings.CutPrefix(strings.TrimPrefix(a, "-"), "-")
		if !isFlag {
			name, isFlag = strings.CutPrefix(a, "-")
		}
		if !isFlag {
			n.positional = append(n.positional, a)
			continue
		}
		name, value, given := strings.Cut(name, "=")
		if !given {
			value = "true"
		}
		n.flags[name] = value
	}
	return n
}

// is says whether a switch is on.
func (n *container) is(flag string) bool { return n.flags[flag] == "true" }

// gate says whether a feature gate is switched on, or is not switched off if it is on by default.
func (n *container) gate(name string, byDefault bool) bool {
	for g := range strings.SplitSeq(n.flags["feature-gates"], ",") {
		if key, value, ok := strings.Cut(g, "="); ok && key == name {
			return value == "true"
		}
	}
	return byDefault
}

// segments are the topology segments among the values of a flag, which is
// "key=value,..." or, where a path is named, "name=/path,key=value,...".
func (n *container) segments(flag string) map[string]string {
	s := map[string]string{}
	for part := range strings.SplitSeq(n.flags[flag], ",") {
		if key, value, ok := strings.Cut(part, "="); ok && !strings.HasPrefix(value, "/") {
			s[key] = value
		}
	}
	return s
}

func (n *container) duration(flag string) (time.Duration, bool) {
	d, err := time.ParseDuration(n.flags[flag])
	return d, err == nil
}

// port is the number of an address such as :9808, 0 if the flag is not there.
func (n *container) port(flag string) int {
	_, p, _ := strings.Cut(n.flags[flag], ":")
	number, _ := strconv.Atoi(p)
	return number
}

func (n *container) privileged() bool {
	return n.SecurityContext != nil && n.SecurityContext.Privileged != nil && *n.SecurityContext.Privileged
}

// mountOf returns the mount and the volume under which a path of the container is.
func (w *workload) mountOf(n *container, file string) (*corev1.VolumeMount, *corev1.Volume) {
	var best *corev1.VolumeMount
	for i, m := range n.VolumeMounts {
		if within(file, m.MountPath) && (best == nil || len(m.MountPath) > len(best.MountPath)) {
			best = &n.VolumeMounts[i]
		}
	}
	if best == nil {
		return nil, nil
	}
	return best, w.volume(best.Name)
}

func (w *workload) volume(name string) *corev1.Volume {
	for i := range w.pod.Volumes {
		if w.pod.Volumes[i].Name == name {
			return &w.pod.Volumes[i]
		}
	}
	return nil
}

// hostPath is the host's name of a path of the container, "" if it is not the host's.
func (w *workload) hostPath(n *container, file string) string {
	m, v := w.mountOf(n, file)
	if v == nil || v.HostPath == nil {
		return ""
	}
	return path.Join(v.HostPath.Path, m.SubPath, strings.TrimPrefix(file, m.MountPath))
}

// within says whether file is dir or lies in it.
func within(file, dir string) bool {
	file, dir = path.Clean(file), path.Clean(dir)
	return file == dir || dir == "/" || strings.HasPrefix(file, dir+"/")
}

func (w *workload) sidecar(image string) *container {
	for _, s := range w.sidecars {
		if s.image == image {
			return s
		}
	}
	return nil
}

// sidecar returns the first container of that image, and where it runs.
func (c *cluster) sidecar(image string) (*workload, *container) {
	for _, w := range c.workloads {
		if s := w.sidecar(image); s != nil {
			return w, s
		}
	}
	return nil, nil
}

func (w *workload) String() string {
	switch {
	case w.daemonSet != nil:
		return "DaemonSet " + w.name
	case w.statefulSet != nil:
		return "StatefulSet " + w.name
	}
	return "Deployment " + w.name
}

func (w *workload) of(n *container) string { return fmt.Sprintf("%v, container %s", w, n.Name) }

// every container, those that end included.
func (w *workload) every() []*container { return slices.Concat(w.init, w.all) }

// isNode: its pods serve kubelet.
func (w *workload) isNode() bool { return w.daemonSet != nil && w.driver != nil }
