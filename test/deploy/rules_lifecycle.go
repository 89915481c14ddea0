package deploy

import (
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

var lifecycleRules = []rule{
	{"taint", "the taint of new nodes is never removed", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			key, set := w.driver.flags["startup-taint"]
			if !set {
				continue
			}
			if bad := validation.IsQualifiedName(key); len(bad) > 0 {
				report(w.of(w.driver), "-startup-taint %q: want the key alone: %s", key, strings.Join(bad, "; "))
			}
			if !w.isNode() || !w.driver.nodeName("NODE_NAME") || w.driver.flags["node-id"] != "$(NODE_NAME)" {
				report(w.of(w.driver), "-startup-taint needs the node's name as -node-id")
			}
		}
	}},
	{"pre-stop", "a node plugin ends before its volumes are unmounted, or each update waits for the hook", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.every() {
				if n.Lifecycle == nil || n.Lifecycle.PreStop == nil {
					continue
				}
				if n != w.driver || !w.isNode() || n.hook() == nil {
					report(w.of(n), "a preStop hook that is not the driver's pre-stop, which waits only on a drained node")
					continue
				}
				if program := n.hook()[0]; !strings.Contains(c.driver.stage(n.image), `ENTRYPOINT ["`+program+`"]`) {
					report(w.of(n), "its image has no program %s", program)
				}
				if n.preStop() == 0 {
					report(w.of(n), "the hook has no -timeout")
				}
				if registrar, _, _ := w.registers(); registrar != n {
					report(w.of(n), "the registrar is a container of its own and ends at once: kubelet then no longer knows the driver, and unmounts nothing while the hook waits; set -register")
				}
				if !n.nodeName("NODE_NAME") {
					report(w.of(n), "NODE_NAME is not spec.nodeName, and the hook does not know its node")
				}
				if !c.attaches() {
					report(w.of(n), "the driver's volumes are not attached: there is nothing to wait for")
				}
			}
		}
	}},
}

// hook is the command of the preStop hook if it is the driver's pre-stop.
func (n *container) hook() []string {
	if n.Lifecycle == nil || n.Lifecycle.PreStop == nil || n.Lifecycle.PreStop.Exec == nil {
		return nil
	}
	command := n.Lifecycle.PreStop.Exec.Command
	if len(command) < 2 || command[1] != "pre-stop" {
		return nil
	}
	return command
}

// preStop is how long the hook takes at most.
func (n *container) preStop() time.Duration {
	for _, a := range n.hook() {
		if text, ok := strings.CutPrefix(a, "-timeout="); ok {
			d, _ := time.ParseDuration(text)
			return d
		}
	}
	return 0
}

// nodeName says whether a variable of the environment is the name of the node.
func (n *container) nodeName(variable string) bool {
	return slices.ContainsFunc(n.Env, func(e corev1.EnvVar) bool {
		return e.Name == variable && e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName"
	})
}

// lifecycleRights are what package nodelifecycle asks of the API server.
func (n *container) lifecycleRights() (rs []right) {
	if n.flags["startup-taint"] != "" {
		rs = append(rs,
			right{false, "", []string{"nodes"}, []string{"get", "patch"}, "-startup-taint"},
			right{false, "storage.k8s.io", []string{"csinodes"}, []string{"get"}, "-startup-taint"})
	}
	if n.hook() != nil {
		rs = append(rs,
			right{false, "", []string{"nodes"}, []string{"get"}, "pre-stop"},
			right{false, "storage.k8s.io", []string{"volumeattachments"}, []string{"list"}, "pre-stop"})
	}
	return rs
}

// stage is the part of the driver's Dockerfile that makes an image.
func (d *driver) stage(image string) string {
	text, err := os.ReadFile("../../examples/" + d.name + "/Dockerfile")
	if err != nil {
		return err.Error()
	}
	for s := range strings.SplitSeq(string(text), "\nFROM ") {
		if line, _, _ := strings.Cut(s, "\n"); strings.HasSuffix(line, " AS "+strings.TrimPrefix(image, d.name+"-")) {
			return s
		}
	}
	return ""
}
