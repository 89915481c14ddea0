package deploy

import (
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// snapshotMetadataService is that of cbt.storage.k8s.io/v1beta1, whose module the Go proxy does not
// have.
type snapshotMetadataService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Audience string `json:"audience"`
		Address  string `json:"address"`
		CACert   []byte `json:"caCert,omitempty"`
	} `json:"spec"`
}

func (s *snapshotMetadataService) DeepCopyObject() runtime.Object {
	c := *s
	c.ObjectMeta = *s.ObjectMeta.DeepCopy()
	c.Spec.CACert = slices.Clone(s.Spec.CACert)
	return &c
}

var metadataRules = []rule{
	{"snapshot-metadata", "backup programs do not find the service, or cannot connect", func(c *cluster, report reporter) {
		w, n := c.sidecar("csi-snapshot-metadata")
		var found *snapshotMetadataService
		services := map[string]*corev1.Service{}
		for _, o := range c.objects {
			switch o := o.(type) {
			case *snapshotMetadataService:
				found = o
			case *corev1.Service:
				services[o.Name+"."+o.Namespace+".svc"] = o
			}
		}
		if (n == nil) != (found == nil) {
			report(c.driver.name, "want csi-snapshot-metadata and a SnapshotMetadataService, or neither")
		}
		if n == nil || found == nil {
			return
		}
		if len(c.csiDrivers) != 1 || found.Name != c.csiDrivers[0].Name {
			report(found, "the sidecar asks for the one that has the driver's name")
		}
		if found.Spec.Audience == "" {
			report(found, "without an audience, a token for any other service will do")
		}
		host, port, err := net.SplitHostPort(found.Spec.Address)
		s := services[host]
		switch {
		case err != nil || s == nil:
			report(found, "address %s is of no Service: %v", found.Spec.Address, err)
		case !matches(s.Spec.Selector, w.labels):
			report(s, "it does not select the pods with the sidecar")
		default:
			ok := slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
				return strconv.Itoa(int(p.Port)) == port && slices.ContainsFunc(n.Ports, func(c corev1.ContainerPort) bool {
					return c.Name == p.TargetPort.StrVal && strconv.Itoa(int(c.ContainerPort)) == n.flags["port"]
				})
			})
			if !ok {
				report(s, "port %s does not lead to the sidecar's --port=%s", port, n.flags["port"])
			}
		}
		for _, flag := range []string{"tls-cert", "tls-key"} {
			if _, v := w.mountOf(n, n.flags[flag]); v == nil || v.Secret == nil || !strings.HasPrefix(n.flags[flag], "/") {
				report(w.of(n), "--%s=%s is not in a Secret", flag, n.flags[flag])
			}
		}
	}},
}
