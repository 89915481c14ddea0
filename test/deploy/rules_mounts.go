package deploy

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	kubeletDir = "/var/lib/kubelet"
	// sunPathMax is the longest path of a unix socket: sun_path has 108 bytes, one of
	// them for the terminating zero.
	sunPathMax = 107
)

var mountRules = []rule{
	{"bidirectional-overlap", "the mount table doubles at each restart of the plugin (github.com/dell/csm/issues/1659)", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			var seen []string
			for _, b := range w.bidirectional() {
				for _, other := range seen {
					if within(b.host, other) || within(other, b.host) {
						report(w.of(b.container), "%s and %s are Bidirectional and overlap", b.host, other)
					}
				}
				seen = append(seen, b.host)
			}
		}
	}},
	{"bidirectional", "what the driver mounts reaches the host where it must not, or does not reach it where it must", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			var to []string
			stages := c.driver.caps["STAGE_UNSTAGE_VOLUME"]
			for _, b := range w.bidirectional() {
				if !within(b.host, kubeletDir+"/pods") && !(stages && within(b.host, kubeletDir+"/plugins/kubernetes.io/csi")) {
					report(w.of(b.container), "%s is Bidirectional: kubelet's pods is enough, with plugins/kubernetes.io/csi for a driver that stages", b.host)
				}
				if b.mount.MountPath != b.host {
					report(w.of(b.container), "%s is mounted at %s: kubelet hands out paths of the host", b.host, b.mount.MountPath)
				}
				if b.mount.ReadOnly || b.container != w.driver {
					report(w.of(b.container), "%s: only the driver mounts", b.host)
				}
				to = append(to, b.host)
			}
			if !w.isNode() {
				continue
			}
			if !slices.Contains(to, kubeletDir+"/pods") {
				report(w.of(w.driver), "%s/pods is not Bidirectional: pods would see empty directories", kubeletDir)
			}
			if stages && !slices.Contains(to, kubeletDir+"/plugins/kubernetes.io/csi") {
				report(w.of(w.driver), "%s/plugins/kubernetes.io/csi is not Bidirectional: there kubelet has its staging paths and block devices", kubeletDir)
			}
			if dirs := strings.Split(w.driver.flags["shared-dirs"], ","); !slices.Equal(slices.Sorted(slices.Values(dirs)), slices.Sorted(slices.Values(to))) {
				report(w.of(w.driver), "-shared-dirs=%s: want %s, so that the driver does not start where its mounts do not reach the host", w.driver.flags["shared-dirs"], strings.Join(to, ","))
			}
		}
	}},
	{"hostpath-type", "a directory that is missing on a host is created there, empty and by root, or the pod fails without an explanation", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, v := range w.pod.Volumes {
				if v.HostPath != nil && (v.HostPath.Type == nil || *v.HostPath.Type == corev1.HostPathUnset) {
					report(w, "volume %s: hostPath without a type", v.Name)
				}
			}
		}
	}},
	{"hostpath", "an attacker in the container has more of the host than its work needs", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, v := range w.pod.Volumes {
				if v.HostPath == nil {
					continue
				}
				if p := path.Clean(v.HostPath.Path); p == "/" || p == kubeletDir || p == kubeletDir+"/plugins" || within("/etc", p) || within("/var/lib", p) {
					report(w, "volume %s: all of %s", v.Name, p)
				}
			}
			for _, n := range w.every() {
				for _, m := range n.VolumeMounts {
					if v := w.volume(m.Name); v != nil && v.HostPath != nil && within(v.HostPath.Path, "/dev") && !n.privileged() {
						report(w.of(n), "it has the host's devices")
					}
				}
			}
		}
	}},
	{"volumes", "a volume is left over, or is not there", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, v := range w.pod.Volumes {
				if !slices.ContainsFunc(w.every(), func(n *container) bool {
					return slices.ContainsFunc(n.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
				}) {
					report(w, "no container mounts the volume %s", v.Name)
				}
			}
		}
	}},
	{"socket", "the sidecar waits for a socket that no container creates", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			endpoint := w.endpoint()
			_, v := w.mountOf(w.driver, endpoint)
			if endpoint == "" || v == nil {
				report(w.of(w.driver), "-endpoint=%s is in no volume", w.driver.flags["endpoint"])
				continue
			}
			if w.isNode() != (v.HostPath != nil) {
				report(w.of(w.driver), "the volume %s of the socket: want a hostPath on a node, for kubelet, and an emptyDir elsewhere", v.Name)
			}
			for _, n := range w.sidecars {
				m, at := w.mountOf(n, n.flags["csi-address"])
				if at == nil || at.Name != v.Name || strings.TrimPrefix(n.flags["csi-address"], m.MountPath) != strings.TrimPrefix(endpoint, w.mountPath(w.driver, endpoint)) {
					report(w.of(n), "--csi-address=%s is not the driver's socket", n.flags["csi-address"])
				}
			}
		}
	}},
	{"registration", "kubelet does not find the driver, or calls it where it is not", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if !w.isNode() {
				continue
			}
			registrar, at, dir := w.registers()
			if registrar == nil {
				report(w, "neither csi-node-driver-registrar nor -register")
				continue
			}
			if want := w.hostPath(w.driver, w.endpoint()); at != want {
				report(w.of(registrar), "it registers %s; to kubelet the socket is %s", at, want)
			}
			if host := w.hostPath(registrar, dir); host != kubeletDir+"/plugins_registry" {
				report(w.of(registrar), "%s is %q of the host, want %s/plugins_registry", dir, host, kubeletDir)
			}
			if own := kubeletDir + "/plugins/" + c.driver.csiName + "/"; !strings.HasPrefix(at, own) {
				report(w.of(registrar), "the socket is not in its own directory, %s", own)
			}
		}
	}},
	{"sun-path", "bind or kubelet's dial fails: a path of a unix socket has at most 107 bytes", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			paths := []string{w.endpoint(), w.hostPath(w.driver, w.endpoint())}
			if registrar, at, dir := w.registers(); registrar != nil {
				reg := "/" + c.driver.csiName + "-reg.sock"
				paths = append(paths, at, dir+reg, w.hostPath(registrar, dir)+reg)
			}
			for _, n := range w.sidecars {
				paths = append(paths, n.flags["csi-address"])
			}
			for _, p := range paths {
				if len(p) > sunPathMax {
					report(w, "%s has %d bytes", p, len(p))
				}
			}
		}
	}},
}

type bidirectional struct {
	container *container
	mount     corev1.VolumeMount
	host      string
}

func (w *workload) bidirectional() (all []bidirectional) {
	for _, n := range w.every() {
		for _, m := range n.VolumeMounts {
			if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
				all = append(all, bidirectional{n, m, w.hostPath(n, m.MountPath)})
			}
		}
	}
	return all
}

// endpoint is the path of the driver's socket in its container.
func (w *workload) endpoint() string {
	return strings.TrimPrefix(w.driver.flags["endpoint"], "unix://")
}

func (w *workload) mountPath(n *container, file string) string {
	if m, _ := w.mountOf(n, file); m != nil {
		return m.MountPath
	}
	return ""
}

// registers returns the container that registers the driver with kubelet, the socket that it
// registers, and its registration directory.
func (w *workload) registers() (registrar *container, at, dir string) {
	if r := w.sidecar("csi-node-driver-registrar"); r != nil {
		dir := r.flags["plugin-registration-path"]
		if dir == "" {
			dir = "/registration"
		}
		return r, r.flags["kubelet-registration-path"], dir
	}
	if at := w.driver.flags["register"]; at != "" {
		dir := w.driver.flags["registration-dir"]
		if dir == "" {
			dir = "/registration"
		}
		return w.driver, at, dir
	}
	return nil, "", ""
}
