package nodeops

import "context"

// ExpandRequest is the request of [Node.Expand].
type ExpandRequest struct {
	VolumeID      string
	VolumePath    string // where the volume is staged or published, file system or block device
	RequiredBytes int64  // the minimum size of the device; 0: any

	// Rescan makes the kernel read the size of the device again, for devices where this is
	// not automatic: for a SCSI disk, write 1 to device/rescan in sysfs. It is called if
	// the device is smaller than RequiredBytes. nil does nothing.
	Rescan func(devicePath string) error
}

// Expand grows the file system mounted at the volume path to the size of its device and
// returns that size in bytes. The device must have been expanded already. It is
// idempotent: a file system of that size is not changed, and for a raw block volume only
// the size is read.
//
// If nothing is mounted at the path, the error is csierr.NotFound; if the device is smaller
// than RequiredBytes, csierr.Uncertain; for a read-only mount, and for a mounted ext4 without
// CAP_SYS_RESOURCE, csierr.Precondition: the latter grows the next time it is staged.
func (n *Node) Expand(ctx context.Context, r ExpandRequest) (capacityBytes int64, err error) {
	const op = "expand"
	if err := checkVolumePath(r.VolumePath); err != nil {
		return 0, wrap(op, r.VolumeID, r.VolumePath, err)
	}
	var size int64
	err = n.run(ctx, op, r.VolumeID, r.VolumePath, func(ctx context.Context, path resolvedPath) error {
		s, err := n.expand(ctx, r, path)
		size = s
		return err
	})
	if err != nil {
		return 0, err // the operation may still be in flight and write to size
	}
	return size, nil
}
