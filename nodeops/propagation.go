package nodeops

import (
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
)

// CheckPropagation returns an error if what is mounted below the path, a directory that
// exists, stays in the mount namespace of this process: its mount is not in a peer group
// (shared, see mount_namespaces(7)). In a container, every operation succeeds then, and a pod
// writes to the node's disk in place of its volume.
//
// A driver calls it when it starts on a node, for each directory in which the CO has its
// target paths, such as /var/lib/kubelet/pods and /var/lib/kubelet/plugins/kubernetes.io/csi.
// It cannot show whether the peers are those of the host. The error is csierr.Precondition.
// It needs no privileges, only /proc.
func CheckPropagation(path string) error {
	shared, err := mountapi.IsShared(path)
	if err == nil && !shared {
		err = faultf(csierr.Precondition, "its mount is private: what is mounted below it does not reach the host, and pods would write to the node's disk; "+
			"set mountPropagation: Bidirectional for it in the container, and have it below a shared mount on the node (mount --make-rshared /)")
	}
	return wrap("check propagation", "", path, err)
}
