package deploy

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var podRules = []rule{
	{"privileged", "an attacker in a sidecar has the node", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.every() {
				if n.privileged() && (n != w.driver || !w.isNode()) {
					report(w.of(n), "only the driver's container on a node needs to be privileged")
				}
			}
			if w.isNode() && !w.driver.privileged() {
				report(w.of(w.driver), "it cannot mount for pods without being privileged")
			}
		}
	}},
	{"hardening", "an attacker in a container can change it, or gain rights", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			pod := w.pod.SecurityContext
			if pod == nil {
				pod = &corev1.PodSecurityContext{}
			}
			for _, n := range w.every() {
				s := n.SecurityContext
				if s == nil {
					report(w.of(n), "no securityContext")
					continue
				}
				if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					report(w.of(n), "its root file system is not read-only")
				}
				if n.privileged() {
					continue
				}
				if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
					report(w.of(n), "allowPrivilegeEscalation is not false")
				}
				var needs []corev1.Capability
				if n == w.driver {
					needs = c.driver.capabilities
				}
				if s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") || !slices.Equal(s.Capabilities.Add, needs) {
					report(w.of(n), "want all capabilities dropped, and these added: %v", needs)
				}
				if mounts := slices.Contains(needs, "SYS_ADMIN"); mounts != (s.AppArmorProfile != nil && s.AppArmorProfile.Type == corev1.AppArmorProfileTypeUnconfined) {
					report(w.of(n), "appArmorProfile: want Unconfined for what mounts, because the runtimes' own forbids that, and for nothing else")
				}
				if profile := pod.SeccompProfile; s.SeccompProfile == nil && (profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault) {
					report(w.of(n), "no seccomp profile")
				}
				nonRoot := pod.RunAsNonRoot != nil && *pod.RunAsNonRoot || s.RunAsNonRoot != nil && *s.RunAsNonRoot
				if !w.isNode() && !nonRoot && len(c.driver.capabilities) == 0 {
					report(w.of(n), "runAsNonRoot is not set, and nothing here needs root")
				}
			}
		}
	}},
	{"socket-user", "the driver's socket has mode 0600, and a sidecar that is another user cannot open it", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			want := w.user(w.driver)
			for _, n := range w.every() {
				if u := w.user(n); u == nil || want == nil || *u != *want {
					report(w.of(n), "runAsUser: set it so that all containers run as the driver's user, whatever their images set")
				}
			}
		}
	}},
	{"writable-tmp", "programs of a container with a read-only root file system fail", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if m, _ := w.mountOf(w.driver, "/tmp"); w.isNode() && m == nil {
				report(w.of(w.driver), "no emptyDir at /tmp")
			}
		}
	}},
	{"host-namespaces", "an attacker in the pod sees the host's processes and network", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if w.pod.HostPID || w.pod.HostIPC || w.pod.HostNetwork && !(w.isNode() && c.driver.network) {
				report(w, "it is in a namespace of the host")
			}
		}
	}},
	{"mount-network", "a mount belongs to the network namespace it was created in: created in the pod's, it hangs for ever once the plugin's pod goes", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if w.isNode() && c.driver.network && !w.pod.HostNetwork {
				report(w, "hostNetwork is not set")
			}
		}
	}},
	{"host-ports", "every client that reaches the host reads volumes' names, or the port is another driver's", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if !w.pod.HostNetwork {
				continue
			}
			for _, n := range w.all {
				for _, flag := range listenFlags {
					if at := n.flags[flag]; at != "" && !strings.HasPrefix(at, "127.0.0.1:") {
						report(w.of(n), "--%s=%s in the host's network: listen only on 127.0.0.1", flag, at)
					}
				}
				p := n.listens()
				if p == 9808 || p == 9809 {
					report(w.of(n), "port %d in the host's network is what other drivers have as well", p)
				}
				if p != 0 && !slices.ContainsFunc(w.all, func(other *container) bool {
					return slices.ContainsFunc(other.Ports, func(port corev1.ContainerPort) bool { return int(port.ContainerPort) == p })
				}) {
					report(w.of(n), "port %d is not in ports, and the scheduler does not know that it is taken", p)
				}
			}
		}
	}},
	{"priority", "under pressure the node plugin is evicted before the pods whose volumes it must unmount", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			want := "system-cluster-critical"
			if w.isNode() {
				want = "system-node-critical"
			}
			if w.pod.PriorityClassName != want {
				report(w, "priorityClassName is %q, want %s", w.pod.PriorityClassName, want)
			}
		}
	}},
	{"tolerations", "on a tainted node volumes are neither mounted nor unmounted", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			all := slices.ContainsFunc(w.pod.Tolerations, func(t corev1.Toleration) bool {
				return t.Operator == corev1.TolerationOpExists && t.Key == "" && t.Effect == "" && t.TolerationSeconds == nil
			})
			if w.isNode() != all {
				report(w, "it tolerates every taint: %t, and is a node plugin: %t", all, w.isNode())
			}
		}
	}},
	{"os", "a node of another system gets a pod that cannot start", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if w.pod.NodeSelector["kubernetes.io/os"] != "linux" {
				report(w, "nodeSelector is not kubernetes.io/os: linux")
			}
		}
	}},
	{"update", "an update takes all nodes simultaneously, or starts a second plugin of the same name on a node", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if w.daemonSet == nil {
				continue
			}
			s := w.daemonSet.Spec.UpdateStrategy
			if s.Type != appsv1.RollingUpdateDaemonSetStrategyType || s.RollingUpdate == nil || s.RollingUpdate.MaxUnavailable == nil || s.RollingUpdate.MaxUnavailable.Type != intstr.String {
				report(w, "want RollingUpdate with a percentage of nodes as maxUnavailable")
			} else if surge := s.RollingUpdate.MaxSurge; surge != nil && *surge != intstr.FromInt32(0) {
				report(w, "maxSurge is %v: two plugins of one name cannot both register", surge)
			}
		}
	}},
	{"replicas", "two concurrent controllers do everything twice, or a single one is unavailable while its node is down", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if w.daemonSet != nil {
				continue
			}
			if c.driver.single && (w.statefulSet == nil || w.replicas != 1) {
				report(w, "the driver's controller must run at most once: want a StatefulSet of one, whose pods are not replaced before they are gone")
			}
			for _, n := range w.sidecars {
				if sidecars[n.image].controller && !n.is("leader-election") && (w.replicas > 1 || w.deployment == nil || w.deployment.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType) {
					report(w.of(n), "%d replicas without --leader-election", w.replicas)
				}
			}
			if w.replicas < 2 {
				continue
			}
			if !slices.ContainsFunc(c.budgets, func(b *policyv1.PodDisruptionBudget) bool {
				return b.Namespace == w.namespace && b.Spec.Selector != nil && matches(b.Spec.Selector.MatchLabels, w.labels)
			}) {
				report(w, "%d replicas without a PodDisruptionBudget", w.replicas)
			}
			if w.pod.Affinity == nil || w.pod.Affinity.PodAntiAffinity == nil {
				report(w, "%d replicas that may all be on one node", w.replicas)
			}
		}
	}},
	{"grace", "the driver is killed while it drains", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			drain, said := w.driver.duration("drain-timeout")
			grace := int64(30)
			if w.pod.TerminationGracePeriodSeconds != nil {
				grace = *w.pod.TerminationGracePeriodSeconds
			}
			if !said || time.Duration(grace)*time.Second <= drain+w.driver.preStop() {
				report(w, "terminationGracePeriodSeconds is %d, -drain-timeout %q, the preStop hook takes %v", grace, w.driver.flags["drain-timeout"], w.driver.preStop())
			}
		}
	}},
	{"resources", "the pod is the first to be starved, or fsck is killed half-way by its memory limit", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.every() {
				if n.Resources.Requests.Cpu().IsZero() || n.Resources.Requests.Memory().IsZero() {
					report(w.of(n), "it requests no CPU or no memory")
				}
				if !n.Resources.Limits.Memory().IsZero() && n.privileged() {
					report(w.of(n), "a memory limit on what runs mkfs and fsck")
				}
			}
		}
	}},
	{"images", "each node may run another program", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.every() {
				if n.tag == "" || n.tag == "latest" || strings.Contains(n.tag, "canary") {
					report(w.of(n), "image %s has no fixed tag", n.Image)
				}
			}
		}
	}},
	{"probes", "a driver that hangs stays, or one that works is killed under load: the default timeout is one second", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.all {
				if n.LivenessProbe == nil && n.image != "livenessprobe" {
					report(w.of(n), "no livenessProbe")
				}
				if n == w.driver && n.StartupProbe == nil {
					report(w.of(n), "no startupProbe: while it starts, /healthz says 500 and it would be killed")
				}
				for kind, p := range map[string]*corev1.Probe{"livenessProbe": n.LivenessProbe, "startupProbe": n.StartupProbe, "readinessProbe": n.ReadinessProbe} {
					if p != nil {
						w.checkProbe(kind, n, p, report)
					}
				}
			}
		}
	}},
	{"ports", "the second of two containers that listen on a port of a pod cannot start", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			at := map[int]string{}
			for _, n := range w.all {
				if p := n.listens(); p != 0 {
					if other := at[p]; other != "" {
						report(w.of(n), "port %d is %s's", p, other)
					}
					at[p] = n.Name
				}
			}
		}
	}},
	{"node-id", "each pod is a new node: a container's host name is its pod's", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if w.isNode() && !slices.ContainsFunc(w.driver.Env, func(e corev1.EnvVar) bool {
				return w.driver.flags["node-id"] == "$("+e.Name+")" && e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName"
			}) {
				report(w.of(w.driver), "-node-id=%s is not spec.nodeName", w.driver.flags["node-id"])
			}
		}
	}},
	{"driver-flags", "the driver does not start", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for name := range w.driver.flags {
				if !c.driver.flags[name] {
					report(w.of(w.driver), "%s -h lists no -%s", c.driver.name, name)
				}
			}
			if len(w.driver.positional) > 0 {
				report(w.of(w.driver), "arguments that are no flags: %q", w.driver.positional)
			}
		}
	}},
}

// checkProbe: a probe asks a container of the pod, with a timeout that is long enough, and often enough before it kills.
func (w *workload) checkProbe(kind string, n *container, p *corev1.Probe, report reporter) {
	of := w.of(n) + ", " + kind
	if p.HTTPGet == nil {
		report(of, "want httpGet: the images have no programs to run")
		return
	}
	if local := p.HTTPGet.Host == "127.0.0.1"; local != w.pod.HostNetwork {
		report(of, "host is %q: kubelet asks the pod's address, or 127.0.0.1 in the host's network", p.HTTPGet.Host)
	}
	server, least := w.answers(n, p.HTTPGet)
	if server == nil {
		report(of, "nothing in the pod answers %s at port %s", p.HTTPGet.Path, p.HTTPGet.Port.String())
		return
	}
	if time.Duration(p.TimeoutSeconds)*time.Second <= least {
		report(of, "timeoutSeconds is %d, and the answer may take %v", p.TimeoutSeconds, least)
	}
	grace := time.Duration(p.InitialDelaySeconds+max(p.PeriodSeconds, 1)*max(p.FailureThreshold, 1)) * time.Second
	if want := 30 * time.Second; grace < want {
		report(of, "after %v of failures the container is killed; want at least %v", grace, want)
	}
}

// answers finds the container that serves a probe, and how long its answer may take.
func (w *workload) answers(n *container, get *corev1.HTTPGetAction) (*container, time.Duration) {
	port := get.Port.IntValue()
	for _, p := range n.Ports {
		if get.Port.Type == intstr.String && p.Name == get.Port.StrVal {
			port = int(p.ContainerPort)
		}
	}
	for _, s := range w.all {
		if s.listens() != port || port == 0 {
			continue
		}
		switch {
		case s == w.driver && n == s && (get.Path == "/healthz" || get.Path == "/readyz"):
			return s, 3 * time.Second // csiserver's own
		case s.image == "livenessprobe" && n == w.driver && get.Path == "/healthz":
			d, said := s.duration("probe-timeout")
			if !said {
				d = 3 * time.Second
			}
			return s, d
		case s.image == "csi-node-driver-registrar" && n == s && get.Path == "/healthz":
			return s, time.Second
		case s.image == "csi-snapshot-metadata" && n == s && get.Path == "/health":
			return s, time.Second
		case sidecars[s.image].controller && n == s && get.Path == "/healthz/leader-election" && s.is("leader-election"):
			return s, time.Second
		}
	}
	return nil, 0
}

var listenFlags = []string{"http-endpoint", "http", "health-port", "metrics-address"}

// listens is the port that a container serves HTTP on.
func (n *container) listens() int {
	for _, flag := range listenFlags {
		if p := n.port(flag); p != 0 {
			return p
		}
	}
	if n.image == "livenessprobe" {
		return 9808
	}
	return 0
}

// user is whom a container runs as, nil if its image decides.
func (w *workload) user(n *container) *int64 {
	if n.SecurityContext != nil && n.SecurityContext.RunAsUser != nil {
		return n.SecurityContext.RunAsUser
	}
	if w.pod.SecurityContext != nil {
		return w.pod.SecurityContext.RunAsUser
	}
	return nil
}

// matches says whether labels have all of selector.
func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}
