package deploy

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/resid"
)

// broken has for each rule manifests that it must refuse: blockdriver's overlay
// shared-pool or nfsdriver's cluster with a patch. A patch that begins with "- " is one of
// operations (RFC 6902).
var broken = []struct{ rule, kind, name, patch string }{
	{"api", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, securityContext: {privileged: false}}]}}}}`}, // Bidirectional needs it
	{"api", "StorageClass", "blockdriver-xfs", `- {op: replace, path: /reclaimPolicy, value: Recycle}`},
	{"scope", "VolumeSnapshotClass", "blockdriver", `- {op: add, path: /metadata/namespace, value: blockdriver}`},
	{"scope", "ServiceAccount", "blockdriver-node", `- {op: remove, path: /metadata/namespace}`},
	{"pod-security", "Namespace", "blockdriver", `- {op: remove, path: /metadata/labels}`},
	{"csidriver", "CSIDriver", "block.csikit.dev", `{spec: {fsGroupPolicy: null}}`},
	{"names", "StorageClass", "blockdriver-xfs", `{provisioner: blok.csikit.dev}`},
	{"names", "VolumeSnapshotClass", "blockdriver", `{driver: blok.csikit.dev}`},
	{"names", "VolumeAttributesClass", "blockdriver-fast", `{driverName: blok.csikit.dev}`},
	{"attach", "CSIDriver", "block.csikit.dev", `{spec: {attachRequired: false}}`},
	{"attach", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-attacher, $patch: delete}]}}}}`},
	{"capacity", "CSIDriver", "block.csikit.dev", `{spec: {storageCapacity: false}}`},
	{"capacity", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-provisioner, env: [{name: POD_NAME, $patch: delete}]}]}}}}`},
	{"capacity", "Deployment", "blockdriver-controller", `- {op: replace, path: /spec/template/spec/containers/0/args/8, value: --kube-api-capacity-qps=1}`},
	// As the overlays were before: no segments, of the nodes or of the pool.
	{"topology", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, args: [-mode=node, "-endpoint=unix:///csi/csi.sock", -pool=/var/lib/blockdriver, "-node-id=$(NODE_NAME)", "-shared-dirs=/var/lib/kubelet/pods,/var/lib/kubelet/plugins/kubernetes.io/csi", -drain-timeout=20s]}]}}}}`},
	{"topology", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: driver, args: [-mode=controller, "-endpoint=unix:///csi/csi.sock", -pool=/var/lib/blockdriver, -drain-timeout=20s]}]}}}}`},
	{"topology", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/args/3, value: -topology=topology.block.csikit.dev/pool=other}`},
	{"topology", "Deployment", "blockdriver-controller", `- {op: replace, path: /spec/template/spec/containers/4/args/2, value: "-pool=default=/var/lib/blockdriver,topology.block.csikit.dev/pool=other"}`},
	{"topology", "Deployment", "blockdriver-controller", `- {op: add, path: /spec/template/spec/containers/0/args/-, value: "--feature-gates=Topology=false"}`},
	{"mount-group", "", "blockdriver", ``}, // a driver that claims VOLUME_MOUNT_GROUP
	{"binding", "StorageClass", "blockdriver-ext4", `{volumeBindingMode: Immediate}`},
	{"classes", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-resizer, $patch: delete}]}}}}`},
	{"classes", "VolumeSnapshotClass", "blockdriver", `$patch: delete`},
	{"selector", "DaemonSet", "blockdriver-node", `- {op: remove, path: /spec/selector/matchLabels/app.kubernetes.io~1component}`},
	{"privileged", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: liveness-probe, securityContext: {privileged: true}}]}}}}`},
	{"privileged", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {initContainers: [{name: init, image: "blockdriver-node:dev", securityContext: {privileged: true}}]}}}}`},
	{"hardening", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: driver, securityContext: {readOnlyRootFilesystem: false}}]}}}}`},
	{"hardening", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-attacher, securityContext: {capabilities: {add: [SYS_ADMIN]}}}]}}}}`},
	{"hardening", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {securityContext: {runAsNonRoot: null}}}}}`},
	{"hardening", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {securityContext: {seccompProfile: null}}}}}`},
	{"socket-user", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-attacher, securityContext: {runAsUser: 1000}}]}}}}`},
	{"writable-tmp", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{mountPath: /tmp, $patch: delete}]}]}}}}`},
	{"host-namespaces", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {hostPID: true}}}}`},
	{"priority", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {priorityClassName: system-cluster-critical}}}}`},
	{"tolerations", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {tolerations: [{operator: Exists, effect: NoSchedule}]}}}}`},
	{"os", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {nodeSelector: null}}}}`},
	{"update", "DaemonSet", "blockdriver-node", `{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}}`},
	{"update", "DaemonSet", "blockdriver-node", `{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: "10%", maxSurge: 1}}}}`},
	{"replicas", "Deployment", "blockdriver-controller", `- {op: remove, path: /spec/template/spec/containers/1/args/4}`}, // --leader-election
	{"replicas", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {affinity: null}}}}`},
	{"replicas", "PodDisruptionBudget", "blockdriver-controller", `{spec: {selector: {matchLabels: {app.kubernetes.io/component: node}}}}`},
	{"grace", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {terminationGracePeriodSeconds: 20}}}}`},
	{"resources", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, resources: {limits: {memory: 128Mi}}}]}}}}`},
	{"resources", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: liveness-probe, resources: null}]}}}}`},
	{"images", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, image: blockdriver-node}]}}}}`},
	{"probes", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, livenessProbe: {timeoutSeconds: null}}]}}}}`},
	{"probes", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, livenessProbe: {failureThreshold: 2}}]}}}}`},
	{"probes", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, startupProbe: null}]}}}}`},
	{"probes", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: liveness-probe, $patch: delete}]}}}}`},
	{"probes", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: node-driver-registrar, livenessProbe: {httpGet: null, exec: {command: [/csi-node-driver-registrar, --mode=kubelet-registration-probe]}}}]}}}}`},
	{"ports", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/1/args/4, value: "--http-endpoint=:9808"}`},
	{"node-id", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]}}}}`},
	{"driver-flags", "DaemonSet", "blockdriver-node", `- {op: add, path: /spec/template/spec/containers/0/args/-, value: -nodeid=a}`},
	{"bidirectional-overlap", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}]}], volumes: [{name: kubelet, hostPath: {path: /var/lib/kubelet, type: Directory}}]}}}}`},
	{"bidirectional", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{name: kubelet-pods, mountPath: /var/lib/kubelet/pods, mountPropagation: HostToContainer}]}]}}}}`},
	{"bidirectional", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{name: kubelet-csi, mountPath: /staging, mountPropagation: Bidirectional}]}]}}}}`},
	{"bidirectional", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{name: pool, mountPath: /var/lib/blockdriver, mountPropagation: Bidirectional}]}]}}}}`},
	{"hostpath-type", "DaemonSet", "blockdriver-node", `- {op: remove, path: /spec/template/spec/volumes/0/hostPath/type}`},
	{"hostpath", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{name: host, mountPath: /host}]}], volumes: [{name: host, hostPath: {path: /, type: Directory}}]}}}}`},
	{"volumes", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {volumes: [{name: more, emptyDir: {}}]}}}}`},
	{"socket", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/2/args/0, value: --csi-address=/csi/sock}`},
	{"socket", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {volumes: [{name: socket-dir, emptyDir: null, hostPath: {path: /run/blockdriver, type: DirectoryOrCreate}}]}}}}`},
	{"registration", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: node-driver-registrar, $patch: delete}]}}}}`},
	{"registration", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/1/args/1, value: --kubelet-registration-path=/csi/csi.sock}`},
	{"registration", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {volumes: [{name: registration-dir, hostPath: {path: /var/lib/kubelet/registration}}]}}}}`},
	{"sun-path", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {volumes: [{name: registration-dir, hostPath: {path: /var/snap/a-kubernetes-of-its-own/common/and/a/long/way/down/var/lib/kubelet/plugins_registry}}]}}}}`},
	{"driver", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: more, image: "example.com/more:v1"}]}}}}`},
	{"sidecar-version", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-attacher, image: "registry.k8s.io/sig-storage/csi-attacher:v4.6.1"}]}}}}`},
	{"sidecar-flags", "Deployment", "blockdriver-controller", `- {op: add, path: /spec/template/spec/containers/1/args/-, value: --csiaddress=/csi/csi.sock}`},
	{"sidecar-flags", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/2/args/1, value: --health-port=9808}`},
	{"sidecar-timeout", "Deployment", "blockdriver-controller", `- {op: remove, path: /spec/template/spec/containers/1/args/1}`},
	{"sidecar-capability", "Deployment", "blockdriver-controller", ``}, // a driver without snapshots
	{"fs-type", "Deployment", "blockdriver-controller", `- {op: remove, path: /spec/template/spec/containers/1/args/3}`},
	{"account", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {serviceAccountName: default}}}}`},
	{"account", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {automountServiceAccountToken: true}}}}`},
	{"rbac-missing", "Role", "blockdriver-leases", `- {op: remove, path: /rules/0/verbs/5}`},
	{"rbac-missing", "Role", "blockdriver-capacity", `- {op: remove, path: /rules/1}`},
	{"rbac-missing", "ClusterRole", "blockdriver-provisioner", `- {op: remove, path: /rules/3}`}, // nodes
	{"rbac-missing", "Deployment", "blockdriver-controller", `- {op: remove, path: /spec/template/spec/containers/2/args/3}`},
	{"rbac-missing", "StorageClass", "blockdriver-ext4", `{parameters: {csi.storage.k8s.io/provisioner-secret-name: a, csi.storage.k8s.io/provisioner-secret-namespace: b}}`},
	{"rbac-missing", "ClusterRoleBinding", "blockdriver-attacher", `$patch: delete`},
	{"rbac-excess", "ClusterRole", "blockdriver-attacher", `- {op: add, path: /rules/-, value: {apiGroups: [""], resources: [secrets], verbs: [get, list]}}`},
	{"bindings", "RoleBinding", "blockdriver-leases", `- {op: replace, path: /subjects/0/namespace, value: default}`},
	{"bindings", "ClusterRole", "blockdriver-attacher", `$patch: delete`},

	{"inline", "CSIDriver", "nfs.csikit.dev", `{spec: {volumeLifecycleModes: [Persistent, Ephemeral]}}`},
	{"mount-network", "DaemonSet", "nfsdriver-node", `{spec: {template: {spec: {hostNetwork: false}}}}`},
	{"host-namespaces", "StatefulSet", "nfsdriver-controller", `{spec: {template: {spec: {hostNetwork: true}}}}`},
	{"host-ports", "DaemonSet", "nfsdriver-node", `- {op: replace, path: /spec/template/spec/containers/1/args/4, value: "--http-endpoint=:29909"}`},
	{"host-ports", "DaemonSet", "nfsdriver-node", `- {op: replace, path: /spec/template/spec/containers/1/args/4, value: "--http-endpoint=127.0.0.1:9809"}`},
	{"host-ports", "DaemonSet", "nfsdriver-node", `- {op: remove, path: /spec/template/spec/containers/1/ports}`},
	{"probes", "DaemonSet", "nfsdriver-node", `- {op: remove, path: /spec/template/spec/containers/0/livenessProbe/httpGet/host}`},
	{"privileged", "StatefulSet", "nfsdriver-controller", `{spec: {template: {spec: {containers: [{name: driver, securityContext: {privileged: true, allowPrivilegeEscalation: true}}]}}}}`},
	{"hardening", "StatefulSet", "nfsdriver-controller", `{spec: {template: {spec: {containers: [{name: driver, securityContext: {appArmorProfile: null}}]}}}}`},
	{"hardening", "StatefulSet", "nfsdriver-controller", `{spec: {template: {spec: {containers: [{name: driver, securityContext: {capabilities: {add: [SYS_ADMIN, SYS_PTRACE]}}}]}}}}`},
	{"hardening", "StatefulSet", "nfsdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-resizer, securityContext: {capabilities: {add: [SYS_ADMIN]}}}]}}}}`},
	{"replicas", "StatefulSet", "nfsdriver-controller", `{spec: {replicas: 2}}`},
	{"replicas", "StatefulSet", "nfsdriver-controller", `- {op: remove, path: /spec/template/spec/containers/0/args/4}`}, // --leader-election
	{"bidirectional", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/args/5, value: "-shared-dirs=/var/lib/kubelet/pods"}`},
	{"bidirectional", "DaemonSet", "nfsdriver-node", `{spec: {template: {spec: {containers: [{name: driver, volumeMounts: [{name: csi, mountPath: /var/lib/kubelet/plugins/kubernetes.io/csi, mountPropagation: Bidirectional}]}], volumes: [{name: csi, hostPath: {path: /var/lib/kubelet/plugins/kubernetes.io/csi, type: DirectoryOrCreate}}]}}}}`},
	{"attach", "CSIDriver", "nfs.csikit.dev", `{spec: {attachRequired: true}}`},
}

// brokenLifecycle is as broken, with the component that adds nodelifecycle.
var brokenLifecycle = []struct{ rule, kind, name, patch string }{
	{"grace", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {terminationGracePeriodSeconds: 80}}}}`},
	{"account", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {automountServiceAccountToken: false}}}}`},
	{"rbac-missing", "ClusterRole", "blockdriver-node-lifecycle", `- {op: replace, path: /rules/0/verbs, value: [get]}`},
	{"rbac-missing", "ClusterRole", "blockdriver-node-lifecycle", `- {op: remove, path: /rules/1}`}, // csinodes
	{"rbac-missing", "ClusterRole", "blockdriver-node-lifecycle", `- {op: remove, path: /rules/2}`}, // volumeattachments
	{"rbac-missing", "ClusterRoleBinding", "blockdriver-node-lifecycle", `- {op: replace, path: /subjects/0/name, value: blockdriver-controller}`},
	{"rbac-excess", "ClusterRole", "blockdriver-node-lifecycle", `- {op: add, path: /rules/0/verbs/-, value: list}`},
	{"rbac-excess", "DaemonSet", "blockdriver-node", `- {op: remove, path: /spec/template/spec/containers/0/lifecycle}`},
	{"rbac-excess", "DaemonSet", "blockdriver-node", `- {op: remove, path: /spec/template/spec/containers/0/args/11}`}, // -startup-taint
	{"pre-stop", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/lifecycle/preStop/exec/command/2, value: -drain-timeout=60s}`},
	{"pre-stop", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/lifecycle/preStop/exec/command/0, value: /blockdriver}`},
	{"pre-stop", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/lifecycle/preStop, value: {sleep: {seconds: 60}}}`},
	{"pre-stop", "DaemonSet", "blockdriver-node", `{spec: {template: {spec: {containers: [{name: driver, env: [{name: NODE_NAME, $patch: delete}]}]}}}}`},
	{"pre-stop", "CSIDriver", "block.csikit.dev", `{spec: {attachRequired: false}}`},
	{"pre-stop", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/args/2, value: -mode=node}`}, // -register
	{"taint", "DaemonSet", "blockdriver-node", `- {op: replace, path: /spec/template/spec/containers/0/args/11, value: "-startup-taint=block.csikit.dev/agent-not-ready:NoExecute"}`},
}

// brokenMetadata is as broken, with the component that serves the metadata of snapshots.
var brokenMetadata = []struct{ rule, kind, name, patch string }{
	{"snapshot-metadata", "SnapshotMetadataService", "block.csikit.dev", `$patch: delete`},
	{"snapshot-metadata", "SnapshotMetadataService", "block.csikit.dev", `- {op: replace, path: /metadata/name, value: blockdriver}`},
	{"snapshot-metadata", "SnapshotMetadataService", "block.csikit.dev", `- {op: replace, path: /spec/audience, value: ""}`},
	{"snapshot-metadata", "SnapshotMetadataService", "block.csikit.dev", `- {op: replace, path: /spec/address, value: "blockdriver-snapshot-metadata.kube-system.svc:6443"}`},
	{"snapshot-metadata", "SnapshotMetadataService", "block.csikit.dev", `- {op: replace, path: /spec/address, value: "blockdriver-snapshot-metadata.blockdriver.svc:443"}`},
	{"snapshot-metadata", "Service", "blockdriver-snapshot-metadata", `- {op: add, path: /spec/selector/app.kubernetes.io~1component, value: node}`},
	{"snapshot-metadata", "Service", "blockdriver-snapshot-metadata", `- {op: replace, path: /spec/ports/0/targetPort, value: metadata-health}`},
	{"snapshot-metadata", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {volumes: [{name: snapshot-metadata-tls, secret: null, emptyDir: {}}]}}}}`},
	{"probes", "Deployment", "blockdriver-controller", `{spec: {template: {spec: {containers: [{name: csi-snapshot-metadata, livenessProbe: {httpGet: {path: /healthz}}}]}}}}`},
	{"rbac-missing", "ClusterRole", "blockdriver-snapshot-metadata", `- {op: remove, path: /rules/0}`}, // tokenreviews
	{"rbac-missing", "ClusterRole", "blockdriver-snapshot-metadata", `- {op: remove, path: /rules/1}`}, // subjectaccessreviews
	{"rbac-missing", "ClusterRole", "blockdriver-snapshot-metadata", `- {op: remove, path: /rules/2}`}, // snapshotmetadataservices
	{"rbac-excess", "ClusterRole", "blockdriver-snapshot-metadata", `- {op: add, path: /rules/2/verbs/-, value: create}`},
}

// overlays are those that are broken.
var overlays = map[string]string{"blockdriver": "shared-pool", "nfsdriver": "cluster"}

// lifecycle are the components that use package nodelifecycle, and lifecycleOverlays those that
// they are for.
var (
	lifecycle         = map[string][]string{"blockdriver": {"node-lifecycle"}, "nfsdriver": {"startup-taint"}}
	lifecycleOverlays = map[string]string{"blockdriver": "sidecar-free-node", "nfsdriver": "cluster"}
)

// able is a driver of the table as it is when it has been asked: with all that its
// manifests count on.
func able(name string) *driver {
	d := *drivers[slices.IndexFunc(drivers, func(d *driver) bool { return d.name == name })]
	d.caps, d.flags = map[string]bool{}, map[string]bool{}
	caps := []string{"CREATE_DELETE_VOLUME", "EXPAND_VOLUME", "GET_CAPACITY", "CREATE_DELETE_SNAPSHOT"}
	flags := []string{"mode", "endpoint", "node-id", "drain-timeout", "shared-dirs", "log-format", "startup-taint", "register", "registration-dir", "http"}
	switch name {
	case "blockdriver":
		d.csiName = "block.csikit.dev"
		caps = append(caps, "PUBLISH_UNPUBLISH_VOLUME", "STAGE_UNSTAGE_VOLUME", "MODIFY_VOLUME", "VOLUME_ACCESSIBILITY_CONSTRAINTS", "SNAPSHOT_METADATA_SERVICE")
		flags = append(flags, "pool", "topology")
	case "nfsdriver":
		d.csiName = "nfs.csikit.dev"
		flags = append(flags, "mount-dir", "server-timeout")
	}
	for _, c := range caps {
		d.caps[c] = true
	}
	for _, f := range flags {
		d.flags[f] = true
	}
	return &d
}

// Each rule finds its mistake, and nothing where there is none.
func TestRules(t *testing.T) {
	trees := map[string]tree{}
	groups := []struct {
		broken     []struct{ rule, kind, name, patch string }
		overlays   map[string]string
		components map[string][]string
	}{
		{broken, overlays, nil},
		{brokenLifecycle, lifecycleOverlays, lifecycle},
		{brokenMetadata, map[string]string{"blockdriver": "shared-pool"}, map[string][]string{"blockdriver": {"snapshot-metadata"}}},
	}
	for name := range overlays {
		trees[name] = able(name).tree(t)
	}
	for _, g := range groups {
		for name, overlay := range g.overlays {
			if objects, err := trees[name].render(overlay, g.components[name]); err != nil {
				t.Fatal(err)
			} else if findings := newCluster(able(name), objects).lint(); len(findings) > 0 {
				t.Fatalf("%s with %q without a mistake: %q", name, g.components[name], findings)
			}
		}
	}
	tested := map[string]bool{}
	for _, g := range groups {
		for _, b := range g.broken {
			tested[b.rule] = true
			t.Run(b.rule, func(t *testing.T) {
				name := "blockdriver"
				if strings.HasPrefix(b.name, "nfs") {
					name = "nfsdriver"
				}
				d := able(name)
				var patches []types.Patch
				switch {
				case b.rule == "mount-group":
					d.caps["VOLUME_MOUNT_GROUP"] = true
				case b.patch == "":
					d.caps["CREATE_DELETE_SNAPSHOT"] = false
				case strings.HasPrefix(b.patch, "- "):
					patches = []types.Patch{{Patch: b.patch, Target: &types.Selector{ResId: resid.ResId{Gvk: resid.Gvk{Kind: b.kind}, Name: b.name}}}}
				default:
					text := "{kind: " + b.kind + ", apiVersion: any, metadata: {name: " + b.name + "}, " + strings.TrimPrefix(strings.TrimSuffix(b.patch, "}"), "{") + "}"
					patches = []types.Patch{{Patch: text, Target: &types.Selector{ResId: resid.ResId{Gvk: resid.Gvk{Kind: b.kind}, Name: b.name}}}}
				}
				objects, err := trees[name].render(g.overlays[name], g.components[name], patches...)
				if err != nil {
					t.Fatalf("%s: %v", b.patch, err)
				}
				findings := newCluster(d, objects).lint()
				if !slices.ContainsFunc(findings, func(f finding) bool { return f.rule == b.rule }) {
					t.Errorf("%s %s with %s: found %q", b.kind, b.name, b.patch, findings)
				}
			})
		}
	}
	for _, r := range rules {
		if !tested[r.name] {
			t.Errorf("nothing breaks the rule %s", r.name)
		}
	}
}
