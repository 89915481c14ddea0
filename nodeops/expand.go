package nodeops

import "context"

// ExpandRequest asks for a volume to use all of its device. The device must
// have grown already.
type ExpandRequest struct {
	VolumeID      string
	VolumePath    string // where the volume is staged or published, file system or block device
	RequiredBytes int64  // the device must have at least so many; 0: whatever it has

	// Rescan makes the kernel look at the size of the device again, where it does not
	// by itself: of a SCSI disk, a 1 written to its device/rescan in sysfs does so. It is
	// called when the device is smaller than RequiredBytes. nil does nothing.
	Rescan func(devicePath string) error
}

// Expand grows the file system mounted at the volume path to the size of its
// device and returns that size. What is grown already is left alone, and a raw
// block volume is only measured, so repeating it costs nothing.
//
// Nothing mounted at the path is KindNotFound; a device below RequiredBytes, which
// has not grown yet, is KindUncertain; a read-only mount, and a mounted ext4 without CAP_SYS_RESOURCE,
// are KindPrecondition: the latter grows when it is staged the next time.
func (n *Node) Expand(ctx context.Context, r ExpandRequest) (capacityBytes int64, err error) {
	const op = "expand"
	if err := checkVolumePath(r.VolumePath); err != nil {
		return 0, wrap(op, r.VolumeID, r.VolumePath, err)
	}
	var size int64
	err = n.run(ctx, op, r.VolumeID, r.VolumePath, func(ctx context.Context) error {
		s, err := n.expand(ctx, r)
		size = s
		return err
	})
	if err != nil {
		return 0, err // the work may still be under way: size is not ours to read
	}
	return size, nil
}
