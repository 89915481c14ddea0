package csispec

import "github.com/container-storage-interface/spec/lib/go/csi"

// Usage is the usage of a volume in one unit, bytes or inodes.
type Usage struct{ Total, Available, Used int64 }

// VolumeUsage returns the usage for a NodeGetVolumeStatsResponse: an entry for bytes, and
// one for inodes unless inodes.Total is 0, as for a raw block volume or a file system
// without a fixed number of inodes. Negative values, which the specification forbids and
// some file systems report above a quota, become 0.
func VolumeUsage(bytes, inodes Usage) []*csi.VolumeUsage {
	list := []*csi.VolumeUsage{bytes.message(csi.VolumeUsage_BYTES)}
	if inodes.Total > 0 {
		list = append(list, inodes.message(csi.VolumeUsage_INODES))
	}
	return list
}

func (u Usage) message(unit csi.VolumeUsage_Unit) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: max(u.Total, 0), Available: max(u.Available, 0), Used: max(u.Used, 0)}
}
