package deploy

import (
	"strings"
	"time"
)

var sidecarRules = []rule{
	{"driver", "sidecars without a driver, or an unknown container", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.sidecars {
				if _, known := sidecars[n.image]; !known {
					report(w.of(n), "image %s is neither the driver's nor a sidecar that is known here", n.Image)
				}
			}
		}
	}},
	{"sidecar-version", "the rights and flags below are those of another version", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.sidecars {
				if s, known := sidecars[n.image]; known && n.tag != s.version {
					report(w.of(n), "%s %s, want %s", n.image, n.tag, s.version)
				}
			}
		}
	}},
	{"sidecar-flags", "the sidecar exits, or a flag has no effect", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.sidecars {
				s, known := sidecars[n.image]
				if !known {
					continue
				}
				flags, err := flagsOf(n.image, s.version)
				if err != nil {
					report(w.of(n), "%v", err)
					continue
				}
				for name := range n.flags {
					if !flags[name] {
						report(w.of(n), "%s %s has no --%s", n.image, s.version, name)
					}
					if why := s.deprecated[name]; why != "" {
						report(w.of(n), "--%s: %s", name, why)
					}
				}
				if len(n.positional) > 0 {
					report(w.of(n), "arguments that are no flags: %q", n.positional)
				}
			}
		}
	}},
	{"sidecar-timeout", "calls time out after ten seconds, and retried while the first is still at work", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.sidecars {
				if !sidecars[n.image].controller {
					continue
				}
				if d, said := n.duration("timeout"); !said || d < 30*time.Second {
					report(w.of(n), "--timeout=%s: set at least 30s", n.flags["timeout"])
				}
				if _, said := n.duration("retry-interval-max"); !said {
					report(w.of(n), "set --retry-interval-max: after a timeout, work that has ended is found only by the retry")
				}
			}
		}
	}},
	{"sidecar-capability", "the sidecar exits, or does nothing", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, n := range w.sidecars {
				needs := sidecars[n.image].needs
				found := len(needs) == 0
				for _, need := range needs {
					found = found || c.driver.caps[need]
				}
				if !found {
					report(w.of(n), "the driver has no %s", strings.Join(needs, " or "))
				}
			}
		}
	}},
	{"fs-type", "a volume without fsType gets no file system of its class, and fsGroup is ignored", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			for _, image := range []string{"csi-provisioner", "csi-attacher"} {
				if n := w.sidecar(image); n != nil && c.driver.caps["STAGE_UNSTAGE_VOLUME"] && n.flags["default-fstype"] == "" {
					report(w.of(n), "set --default-fstype")
				}
			}
		}
	}},
}
