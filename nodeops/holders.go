package nodeops

import "context"

// Holder is a mount namespace other than this process's own in which a device is
// mounted, such as that of a container which outlived its pod or which has a copy
// of the host's mounts.
type Holder struct {
	PID     int    // one of the processes in that namespace, the one with the lowest number
	Command string // its name
	Paths   []string
}

// Holders looks for the device in the mount tables of all other mount namespaces.
// An unmounted volume whose device shows there is still in use: detaching it would
// take it from under whoever that is. It reads the table of every process and takes
// milliseconds per hundred of them, so ask it where something does not let go, not
// on every call.
//
// Namespaces without a process, and those whose processes this one may not look at
// (it needs CAP_SYS_PTRACE and the host's /proc), are not found.
func (n *Node) Holders(ctx context.Context, d Device) ([]Holder, error) {
	v, _, err := n.blocking.Do(ctx, d.Path+" (holders)", func() (any, error) { return n.holders(d) })
	if err != nil {
		return nil, wrap("look for holders of device", "", d.Path, err)
	}
	return v.([]Holder), nil
}
