package nodeops

import "context"

// MountedDevice is what is mounted at a path.
type MountedDevice struct {
	Block        bool   // the node of the device is mounted: a raw block volume
	Major, Minor uint32 // of the block device; of a share, the number of its file system
	Path         string // of the device in /dev, as the kernel names it, such as /dev/dm-3; "" for a share, and for a device that is gone
	Source       string // of the mount, as in proc(5): a device, or a share such as "server:/path"; "" for a raw block volume
}

// DeviceAt returns the device of what is mounted at the path, the staging path or a target path,
// for what a driver does in teardown after the unmount, when it has only the path: close an
// encryption layer, log out of an iSCSI target. Call it before Unstage or Unpublish.
//
// It reads the mount table and sysfs, and neither the file system nor the device, which may both
// hang. A path at which nothing is mounted is csierr.NotFound: an earlier call may have unmounted
// it, so that the driver has to find the device by a record of its own.
func (n *Node) DeviceAt(ctx context.Context, path string) (MountedDevice, error) {
	const op = "find device"
	if err := checkVolumePath(path); err != nil {
		return MountedDevice{}, wrap(op, "", path, err)
	}
	v, _, err := n.teardown.Do(ctx, path+" (device)", func() (any, error) { return deviceAt(path) })
	if err != nil {
		return MountedDevice{}, wrap(op, "", path, err)
	}
	return v.(MountedDevice), nil
}
