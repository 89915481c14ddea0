package share

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/volumelock"
)

// LockPolicy makes CreateVolume and DeleteVolume of one directory exclude each other, and
// likewise those of snapshots with one name, because a request to create has no ID yet.
func LockPolicy(fullMethod string, req any) []volumelock.Request {
	keys := volumelock.DefaultPolicy(fullMethod, req)
	add := func(kind volumelock.Kind, place string) {
		keys = append(keys, volumelock.Request{Key: volumelock.Key{Kind: kind, ID: place}})
	}
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		var flags []string
		for _, c := range r.GetVolumeCapabilities() {
			flags = append(flags, c.GetMount().GetMountFlags()...)
		}
		own, metadata := storage.SplitKeys(r.GetParameters())
		if ref, _, err := plan(r.GetName(), own, metadata, flags); err == nil {
			add(volumelock.KindVolume, ref.place())
		}
	case *csi.DeleteVolumeRequest:
		if ref, err := ParseVolumeID(r.GetVolumeId()); err == nil {
			add(volumelock.KindVolume, ref.place())
		}
	case *csi.CreateSnapshotRequest:
		if ref, err := ParseVolumeID(r.GetSourceVolumeId()); err == nil {
			add(volumelock.KindSnapshot, SnapshotRef{Export: ref.Export, Key: Digest(r.GetName())}.place())
		}
	case *csi.DeleteSnapshotRequest:
		if ref, err := ParseSnapshotID(r.GetSnapshotId()); err == nil {
			add(volumelock.KindSnapshot, ref.place())
		}
	}
	return keys
}
