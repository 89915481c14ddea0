package nodeops

import "context"

// Holder is another mount namespace that has a device mounted, such as that of a container
// which outlived its pod or which has a copy of the host's mounts.
type Holder struct {
	PID     int      // the lowest PID of the processes in that namespace
	Command string   // the name of that process
	Paths   []string // the mount points in that namespace
}

// Holders returns the mount namespaces, other than that of this process, that have the
// device mounted. A volume that is unmounted in this namespace and mounted in another one
// is still in use, and its device must not be detached. Holders reads the mount tables of
// all namespaces and takes milliseconds per hundred processes, so call it when a device
// stays busy, not on every RPC.
//
// Namespaces without a process, and those whose processes this one may not inspect
// (that needs CAP_SYS_PTRACE and the host's /proc), are not found.
func (n *Node) Holders(ctx context.Context, d Device) ([]Holder, error) {
	v, _, err := n.blocking.Do(ctx, d.Path+" (holders)", func() (any, error) { return n.holders(d) })
	if err != nil {
		return nil, wrap("find holders of device", "", d.Path, err)
	}
	return v.([]Holder), nil
}
