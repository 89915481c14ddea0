package nodeops

import "context"

// Stats is how full a volume is.
type Stats struct {
	Block bool // a raw block volume: only TotalBytes is known

	TotalBytes, AvailableBytes, UsedBytes    int64
	TotalInodes, AvailableInodes, UsedInodes int64 // all zero for a file system that does not count inodes
}

// Stats measures the volume that is staged or published at the path. A path on
// which nothing is mounted is KindNotFound.
func (n *Node) Stats(ctx context.Context, volumeID, volumePath string) (Stats, error) {
	const op = "stats"
	if err := checkVolumePath(volumePath); err != nil {
		return Stats{}, wrap(op, volumeID, volumePath, err)
	}
	// Not n.run: a result is good for everybody who asks, and asking must not
	// wait for work on the volume. The suffix keeps the key apart from a path.
	v, _, err := n.blocking.Do(ctx, volumePath+" (stats)", func() (any, error) { return n.stats(volumePath) })
	if err != nil {
		return Stats{}, wrap(op, volumeID, volumePath, err)
	}
	return v.(Stats), nil
}

// checkVolumePath: a path that cannot be one is a place where no volume is,
// which is NOT_FOUND for the RPCs that look for one.
func checkVolumePath(p string) error {
	if err := checkPath(p); err != nil {
		return &fault{kind: KindNotFound, err: err}
	}
	return nil
}

// MountedAt lists the paths in this mount namespace at which the device shows:
// those of its file system and those of its node. A driver asks before it
// detaches a device.
func (n *Node) MountedAt(ctx context.Context, d Device) ([]string, error) {
	v, _, err := n.blocking.Do(ctx, d.Path+" (mounts)", func() (any, error) { return n.mountedDevice(d) })
	if err != nil {
		return nil, wrap("look for mounts of device", "", d.Path, err)
	}
	return v.([]string), nil
}
