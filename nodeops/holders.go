package nodeops

import "context"

// Released returns nil if the device is no longer in use, so that it may be detached. A driver
// calls it before that: a file system that is unmounted here still writes to its device while
// another mount namespace has it mounted, or a process uses it after a lazy unmount.
//
// The error is csierr.Precondition if a file system on the device is mounted, or its node
// published, in this mount namespace, and lists the paths; csierr.Busy if the device is held
// elsewhere, by another mount namespace, a device on top of it (device-mapper) or a program such
// as mkfs, as far as this can be seen. A device that does not exist is released. A process that
// has the device open and nothing else is not found.
func (n *Node) Released(ctx context.Context, d Device) error {
	_, _, err := n.teardown.Do(ctx, d.Path+" (released)", func() (any, error) { return nil, n.releasedDevice(d) })
	return wrap("release device", "", d.Path, err)
}

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
	v, _, err := n.teardown.Do(ctx, d.Path+" (holders)", func() (any, error) { return n.holders(d) })
	if err != nil {
		return nil, wrap("find holders of device", "", d.Path, err)
	}
	return v.([]Holder), nil
}
