package deploy

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

var objectRules = []rule{
	{"api", "the API server refuses the object", func(c *cluster, report reporter) {
		for _, o := range c.objects {
			if err := validate(o); err != nil {
				report(o, "%v", err)
			}
		}
	}},
	{"scope", "an object lands in the current namespace of the user that applies it", func(c *cluster, report reporter) {
		for _, o := range c.objects {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			m, err := meta.Accessor(o)
			if err != nil {
				report(o, "%v", err)
				continue
			}
			if clusterScoped[kind] != (m.GetNamespace() == "") {
				report(o, "its namespace is %q", m.GetNamespace())
			}
			if !clusterScoped[kind] && !slices.ContainsFunc(c.namespaces, func(n *corev1.Namespace) bool { return n.Name == m.GetNamespace() }) {
				report(o, "no object creates its namespace %q", m.GetNamespace())
			}
		}
	}},
	{"pod-security", "admission refuses the node plugin in a cluster that enforces a pod security standard", func(c *cluster, report reporter) {
		for _, n := range c.namespaces {
			if n.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
				report(n, "no label pod-security.kubernetes.io/enforce: privileged")
			}
		}
	}},
	{"csidriver", "the API server's defaults decide, and some of them cannot be changed later", func(c *cluster, report reporter) {
		if len(c.csiDrivers) != 1 {
			report(c.driver.name, "%d CSIDriver objects, want one", len(c.csiDrivers))
			return
		}
		d := c.csiDrivers[0]
		for field, missing := range map[string]bool{
			"attachRequired":       d.Spec.AttachRequired == nil,
			"podInfoOnMount":       d.Spec.PodInfoOnMount == nil,
			"fsGroupPolicy":        d.Spec.FSGroupPolicy == nil,
			"storageCapacity":      d.Spec.StorageCapacity == nil,
			"volumeLifecycleModes": len(d.Spec.VolumeLifecycleModes) == 0,
		} {
			if missing {
				report(d, "%s is left to its default: set it", field)
			}
		}
	}},
	{"inline", "the author of a pod chooses the server that root of the node talks to", func(c *cluster, report reporter) {
		for _, d := range c.csiDrivers {
			inline := slices.Contains(d.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
			for _, w := range c.workloads {
				if inline && w.isNode() && w.driver.flags["inline-exports"] == "" {
					report(d, "volumeLifecycleModes has Ephemeral, and -inline-exports of %v does not say which shares pods may name", w)
				}
			}
		}
	}},
	{"names", "no driver serves the class, and claims wait for ever", func(c *cluster, report reporter) {
		for _, d := range c.csiDrivers {
			if d.Name != c.driver.csiName {
				report(d, "the driver calls itself %s", c.driver.csiName)
			}
		}
		for _, s := range c.storageClasses {
			if s.Provisioner != c.driver.csiName {
				report(s, "the driver calls itself %s", c.driver.csiName)
			}
		}
		for _, s := range c.snapshotClasses {
			if s.Driver != c.driver.csiName {
				report(s, "the driver calls itself %s", c.driver.csiName)
			}
		}
		for _, s := range c.groupClasses {
			if s.Driver != c.driver.csiName {
				report(s, "the driver calls itself %s", c.driver.csiName)
			}
		}
		for _, s := range c.attributesClasses {
			if s.DriverName != c.driver.csiName {
				report(s, "the driver calls itself %s", c.driver.csiName)
			}
		}
	}},
	{"attach", "pods wait for a VolumeAttachment that no attacher serves, or volumes are used without having been attached", func(c *cluster, report reporter) {
		_, attacher := c.sidecar("csi-attacher")
		if c.attaches() && attacher == nil {
			report(c.csiDrivers[0], "attachRequired without csi-attacher")
		}
		if !c.attaches() && attacher != nil {
			report("csi-attacher", "there is nothing to attach: the CSIDriver says so")
		}
		if c.attaches() != c.driver.caps["PUBLISH_UNPUBLISH_VOLUME"] {
			report(c.csiDrivers[0], "attachRequired is %t, and the driver's PUBLISH_UNPUBLISH_VOLUME %t", c.attaches(), c.driver.caps["PUBLISH_UNPUBLISH_VOLUME"])
		}
	}},
	{"capacity", "with storageCapacity and no CSIStorageCapacity objects, no pod that waits for a volume is ever scheduled", func(c *cluster, report reporter) {
		_, provisioner := c.sidecar("csi-provisioner")
		reported := provisioner != nil && provisioner.is("enable-capacity")
		for _, d := range c.csiDrivers {
			if asked := d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity; asked != reported {
				report(d, "storageCapacity is %t, and csi-provisioner's --enable-capacity %t", asked, reported)
			}
		}
		if reported && !c.driver.caps["GET_CAPACITY"] {
			report("csi-provisioner", "--enable-capacity: the driver has no GET_CAPACITY")
		}
		if reported {
			for _, name := range []string{"NAMESPACE", "POD_NAME"} {
				if !slices.ContainsFunc(provisioner.Env, func(e corev1.EnvVar) bool { return e.Name == name && e.ValueFrom != nil }) {
					report("csi-provisioner", "--enable-capacity without $%s", name)
				}
			}
			// Each create and delete refreshes the capacity of every class and topology; at the
			// default of 1 request per second pods have waited two minutes for it.
			if qps, _ := strconv.ParseFloat(provisioner.flags["kube-api-capacity-qps"], 64); qps < 10 {
				report("csi-provisioner", "--enable-capacity: --kube-api-capacity-qps is %g, want at least 10", qps)
			}
		}
	}},
	{"topology", "for nodes without segments csi-provisioner asks with an empty topology, or creates and deletes CSIStorageCapacity objects for ever, and no pod that waits for a volume is ever scheduled", func(c *cluster, report reporter) {
		_, provisioner := c.sidecar("csi-provisioner")
		if provisioner == nil || !provisioner.is("enable-capacity") {
			return
		}
		if !provisioner.gate("Topology", true) { // GA and on by default since csi-provisioner v5.0.0
			report("csi-provisioner", "--enable-capacity with --feature-gates=Topology=false")
		}
		if !c.driver.caps["VOLUME_ACCESSIBILITY_CONSTRAINTS"] {
			report("csi-provisioner", "--enable-capacity: the driver has no VOLUME_ACCESSIBILITY_CONSTRAINTS")
		}
		var pool, node map[string]string // of the first workload that has them
		for _, w := range c.workloads {
			if w.driver == nil {
				continue
			}
			segments := w.driver.segments("pool")
			if pool == nil {
				pool = segments
			}
			if len(segments) == 0 {
				report(w.of(w.driver), "--enable-capacity: no -pool has topology segments, such as name=/path,key=value")
			} else if !maps.Equal(segments, pool) {
				report(w.of(w.driver), "-pool has the segments %v, and another process of the driver %v", segments, pool)
			}
			if !w.isNode() {
				continue
			}
			if node = w.driver.segments("topology"); len(node) == 0 {
				report(w.of(w.driver), "--enable-capacity: -topology gives the node no segment")
			}
		}
		for key, value := range pool {
			if v, found := node[key]; len(node) > 0 && (!found || v != value) {
				report(c.driver.name, "no node reaches the pool: its segment is %s=%s, the nodes' -topology %v", key, value, node)
			}
		}
	}},
	{"mount-group", "kubelet passes fsGroup to the driver and changes no file itself: what a pod wrote is closed to the next pod with another fsGroup", func(c *cluster, report reporter) {
		if !c.driver.caps["VOLUME_MOUNT_GROUP"] {
			return
		}
		types := map[string]string{} // from where the file system is known
		for _, s := range c.storageClasses {
			types[s.Parameters["csi.storage.k8s.io/fstype"]] = "StorageClass " + s.Name
		}
		for _, image := range []string{"csi-provisioner", "csi-attacher"} {
			if _, n := c.sidecar(image); n != nil {
				types[n.flags["default-fstype"]] = "--default-fstype of " + image
			}
		}
		for fsType, from := range types {
			if slices.Contains(noGroupOption, fsType) {
				report(c.driver.name, "it claims VOLUME_MOUNT_GROUP, and %s (%s) has no mount option for a group: drop the capability, and kubelet applies fsGroup as the CSIDriver's fsGroupPolicy says", fsType, from)
			}
		}
	}},
	{"binding", "a volume is created where its pod cannot run", func(c *cluster, report reporter) {
		for _, s := range c.storageClasses {
			late := s.VolumeBindingMode != nil && *s.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
			_, provisioner := c.sidecar("csi-provisioner")
			placed := provisioner != nil && provisioner.is("enable-capacity")
			if !late && (placed || c.driver.caps["VOLUME_ACCESSIBILITY_CONSTRAINTS"]) {
				report(s, "volumeBindingMode is not WaitForFirstConsumer")
			}
		}
	}},
	{"classes", "claims that ask for it are never served", func(c *cluster, report reporter) {
		sidecar := func(image string) bool { _, s := c.sidecar(image); return s != nil }
		for _, s := range c.storageClasses {
			if !sidecar("csi-provisioner") {
				report(s, "there is no csi-provisioner")
			}
			if grows := s.AllowVolumeExpansion != nil && *s.AllowVolumeExpansion; grows != (sidecar("csi-resizer") && c.driver.caps["EXPAND_VOLUME"]) {
				report(s, "allowVolumeExpansion is %t, csi-resizer there %t, the driver's EXPAND_VOLUME %t", grows, sidecar("csi-resizer"), c.driver.caps["EXPAND_VOLUME"])
			}
		}
		if (len(c.snapshotClasses) > 0) != sidecar("csi-snapshotter") {
			report("csi-snapshotter", "it and a VolumeSnapshotClass go together")
		}
		if len(c.attributesClasses) > 0 && (!sidecar("csi-resizer") || !c.driver.caps["MODIFY_VOLUME"]) {
			report(c.attributesClasses[0], "it needs csi-resizer and MODIFY_VOLUME")
		}
		_, snapshotter := c.sidecar("csi-snapshotter")
		if group := snapshotter != nil && snapshotter.gate(groupGate, false); group != (len(c.groupClasses) > 0) {
			report("csi-snapshotter", "the feature gate %s and a VolumeGroupSnapshotClass go together", groupGate)
		} else if group && !c.driver.caps["CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"] {
			report("csi-snapshotter", "%s: the driver has no group controller", groupGate)
		}
	}},
	{"selector", "a controller of pods owns those of another one", func(c *cluster, report reporter) {
		for i, w := range c.workloads {
			for _, other := range c.workloads[i+1:] {
				if w.selects(other.labels) || other.selects(w.labels) {
					report(w, "it selects the pods of %v, or is selected by its selector", other)
				}
			}
			if len(w.selector()) < 2 {
				report(w, "its selector %v is one that another program's pods may match as well", w.selector())
			}
		}
	}},
}

// noGroupOption are the file systems that have no gid mount option.
var noGroupOption = []string{"ext2", "ext3", "ext4", "xfs", "btrfs"}

var clusterScoped = map[string]bool{
	"Namespace": true, "CSIDriver": true, "StorageClass": true, "VolumeAttributesClass": true, "ClusterRole": true,
	"ClusterRoleBinding": true, "VolumeSnapshotClass": true, "VolumeGroupSnapshotClass": true, "PersistentVolume": true,
	"SnapshotMetadataService": true,
}

func (w *workload) selector() map[string]string {
	switch {
	case w.daemonSet != nil:
		return w.daemonSet.Spec.Selector.MatchLabels
	case w.statefulSet != nil:
		return w.statefulSet.Spec.Selector.MatchLabels
	}
	return w.deployment.Spec.Selector.MatchLabels
}

func (w *workload) selects(labels map[string]string) bool {
	for k, v := range w.selector() {
		if labels[k] != v {
			return false
		}
	}
	return true
}
