package deploy

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed flags
var flagFiles embed.FS

// A sidecar is what is known about one version of a sidecar of kubernetes-csi.
type sidecar struct {
	version    string
	controller bool     // talks to the API server, and elects a leader
	needs      []string // a capability of the driver, one of which it needs
	deprecated map[string]string
	rights     func(c *cluster, n *container) []right
}

// A right is what an API server must allow: verbs on resources, in the whole cluster or
// in the pod's namespace.
type right struct {
	namespaced bool
	group      string
	resources  []string
	verbs      []string
	why        string
}

var (
	read       = []string{"get", "list", "watch"}
	eventVerbs = []string{"list", "watch", "create", "update", "patch"}

	elects = right{true, "coordination.k8s.io", []string{"leases"}, []string{"get", "watch", "list", "delete", "update", "create"}, "--leader-election"}
	events = right{false, "", []string{"events"}, eventVerbs, "events"}
)

func plus(verbs ...string) []string { return append(slices.Clone(read), verbs...) }

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	groupGroup    = "groupsnapshot.storage.k8s.io"
	groupGate     = "CSIVolumeGroupSnapshot"
	metadataGroup = "cbt.storage.k8s.io"
)

// sidecars by the name of their image. The rights are those of each one's
// deploy/kubernetes/rbac.yaml, and of what its code asks for by the flags it is given.
var sidecars = map[string]sidecar{
	"csi-provisioner": {
		version: "v6.3.0", controller: true, needs: []string{"CREATE_DELETE_VOLUME"},
		rights: func(c *cluster, n *container) []right {
			rs := []right{
				{false, "", []string{"persistentvolumes"}, plus("create", "patch", "delete"), "provisioning"},
				{false, "", []string{"persistentvolumeclaims"}, plus("update"), "provisioning"},
				{false, "", []string{"nodes"}, read, "topology"},
				{false, "storage.k8s.io", []string{"storageclasses", "csinodes"}, read, "provisioning and topology"},
				events,
			}
			if c.attaches() {
				rs = append(rs, right{false, "storage.k8s.io", []string{"volumeattachments"}, read, "nothing is deleted while it is attached"})
			}
			if n.gate("VolumeAttributesClass", true) && len(c.attributesClasses) > 0 {
				rs = append(rs, right{false, "storage.k8s.io", []string{"volumeattributesclasses"}, []string{"get"}, "a claim may name a VolumeAttributesClass"})
			}
			if len(c.snapshotClasses) > 0 {
				rs = append(rs,
					right{false, snapshotGroup, []string{"volumesnapshots"}, plus("update"), "restoring, with a finalizer on the source"},
					right{false, snapshotGroup, []string{"volumesnapshotcontents"}, []string{"get", "list"}, "restoring"})
			}
			if n.is("enable-capacity") {
				rs = append(rs,
					right{true, "storage.k8s.io", []string{"csistoragecapacities"}, plus("create", "update", "patch", "delete"), "--enable-capacity"},
					right{true, "", []string{"pods"}, []string{"get"}, "--enable-capacity"})
				if n.flags["capacity-ownerref-level"] == "2" {
					rs = append(rs, right{true, "apps", []string{"replicasets"}, []string{"get"}, "--capacity-ownerref-level=2"})
				}
			}
			return append(rs, c.secrets("provisioner-secret", "get", "list")...)
		},
	},
	"csi-attacher": {
		version: "v4.12.0", controller: true, needs: []string{"PUBLISH_UNPUBLISH_VOLUME"},
		rights: func(c *cluster, n *container) []right {
			return append([]right{
				{false, "", []string{"persistentvolumes"}, plus("patch"), "attaching"},
				{false, "storage.k8s.io", []string{"csinodes"}, read, "attaching"},
				{false, "storage.k8s.io", []string{"volumeattachments"}, plus("patch"), "attaching"},
				{false, "storage.k8s.io", []string{"volumeattachments/status"}, []string{"patch"}, "attaching"},
			}, c.secrets("controller-publish-secret", "get", "list")...)
		},
	},
	"csi-resizer": {
		version: "v2.2.0", controller: true, needs: []string{"EXPAND_VOLUME", "MODIFY_VOLUME"},
		rights: func(c *cluster, n *container) []right {
			rs := []right{
				{false, "", []string{"persistentvolumes"}, plus("patch"), "resizing"},
				{false, "", []string{"persistentvolumeclaims"}, read, "resizing"},
				{false, "", []string{"persistentvolumeclaims/status"}, []string{"patch"}, "resizing"},
				events,
			}
			if n.flags["handle-volume-inuse-error"] != "false" {
				rs = append(rs, right{false, "", []string{"pods"}, read, "--handle-volume-inuse-error, which is the default"})
			}
			if n.gate("VolumeAttributesClass", true) {
				rs = append(rs, right{false, "storage.k8s.io", []string{"volumeattributesclasses"}, read, "VolumeAttributesClass, which is on by default"})
			}
			return append(rs, c.secrets("controller-expand-secret", read...)...)
		},
	},
	"csi-snapshotter": {
		version: "v8.6.0", controller: true, needs: []string{"CREATE_DELETE_SNAPSHOT"},
		rights: func(c *cluster, n *container) []right {
			rs := []right{
				events,
				{false, snapshotGroup, []string{"volumesnapshotclasses"}, read, "snapshots"},
				{false, snapshotGroup, []string{"volumesnapshotcontents"}, plus("update", "patch"), "snapshots"},
				{false, snapshotGroup, []string{"volumesnapshotcontents/status"}, []string{"update", "patch"}, "snapshots"},
			}
			if n.gate(groupGate, false) {
				rs = append(rs,
					right{false, groupGroup, []string{"volumegroupsnapshotclasses"}, read, groupGate},
					right{false, groupGroup, []string{"volumegroupsnapshotcontents"}, plus("update", "patch"), groupGate},
					right{false, groupGroup, []string{"volumegroupsnapshotcontents/status"}, []string{"update", "patch"}, groupGate})
			}
			return append(rs, c.secrets("snapshotter-secret", "get", "list")...)
		},
	},
	"csi-snapshot-metadata": {
		version: "v1.1.0", needs: []string{"SNAPSHOT_METADATA_SERVICE"},
		rights: func(c *cluster, n *container) []right {
			return append([]right{
				{false, "authentication.k8s.io", []string{"tokenreviews"}, []string{"create"}, "who asks"},
				{false, "authorization.k8s.io", []string{"subjectaccessreviews"}, []string{"create"}, "whether that one may"},
				{false, metadataGroup, []string{"snapshotmetadataservices"}, []string{"get"}, "the audience of tokens"},
				{false, snapshotGroup, []string{"volumesnapshots", "volumesnapshotcontents"}, []string{"get"}, "the snapshot's handle"},
				{false, snapshotGroup, []string{"volumesnapshotclasses"}, []string{"get", "list"}, "the snapshot's secrets"},
			}, c.secrets("snapshotter-secret", "get")...)
		},
	},
	"csi-node-driver-registrar": {
		version: "v2.17.0",
		deprecated: map[string]string{
			"mode":               "the registration probe does nothing and always succeeds",
			"health-port":        "use --http-endpoint",
			"connection-timeout": "it has no effect",
		},
	},
	"livenessprobe": {
		version:    "v2.19.0",
		deprecated: map[string]string{"health-port": "use --http-endpoint", "metrics-address": "use --http-endpoint"},
	},
}

// flagsOf returns the flags that a version of a sidecar has.
func flagsOf(image, version string) (map[string]bool, error) {
	text, err := flagFiles.ReadFile("flags/" + image + "_" + version + ".txt")
	if err != nil {
		return nil, fmt.Errorf("the flags of %s %s are not known: write them to test/deploy/flags", image, version)
	}
	flags := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			flags[line] = true
		}
	}
	return flags, nil
}

// secrets is the right to read them if some class says that they are used.
func (c *cluster) secrets(kind string, verbs ...string) []right {
	key := "csi.storage.k8s.io/" + kind + "-name"
	for _, parameters := range c.parameters() {
		if _, used := parameters[key]; used {
			return []right{{false, "", []string{"secrets"}, verbs, key}}
		}
	}
	return nil
}

// parameters of all classes.
func (c *cluster) parameters() (all []map[string]string) {
	for _, s := range c.storageClasses {
		all = append(all, s.Parameters)
	}
	for _, s := range c.snapshotClasses {
		all = append(all, s.Parameters)
	}
	return all
}

// attaches: the driver is one whose volumes are attached by the controller.
func (c *cluster) attaches() bool {
	return len(c.csiDrivers) == 1 && (c.csiDrivers[0].Spec.AttachRequired == nil || *c.csiDrivers[0].Spec.AttachRequired)
}
