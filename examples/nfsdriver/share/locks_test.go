package share

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/volumelock"
)

// CreateVolume and DeleteVolume of one directory exclude each other, though a request to
// create has no ID.
func TestLockPolicy(t *testing.T) {
	excluded := func(methodA string, a any, methodB string, b any) bool {
		var table volumelock.Table
		held, err := table.Acquire(volumelock.Op{}, LockPolicy(methodA, a)...)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Release()
		other, err := table.Acquire(volumelock.Op{}, LockPolicy(methodB, b)...)
		if err != nil {
			return true
		}
		other.Release()
		return false
	}
	const server, nonce = "#nas#/srv#", "#ABCDEFGHIJKLM"
	create := &csi.CreateVolumeRequest{Name: "pvc", Parameters: map[string]string{ParamServer: "nas", ParamShare: "/srv", ParamSubDir: "a/b"}}
	for id, want := range map[string]bool{
		"vol1" + server + "a/b" + nonce + "#delete":                               true,
		"vol1" + server + "a/b" + nonce + "#archive#vers=4.1":                     true,
		"vol1d" + server + Digest("a/b") + nonce + "#delete":                      true,
		"vol1" + server + "a/c" + nonce + "#delete":                               false,
		"vol1#nas#/other#a/b" + nonce + "#delete":                                 false,
		"vol1d" + server + "0123456789abcdef0123456789abcdef" + nonce + "#delete": false,
	} {
		if got := excluded(csi.Controller_CreateVolume_FullMethodName, create, csi.Controller_DeleteVolume_FullMethodName, &csi.DeleteVolumeRequest{VolumeId: id}); got != want {
			t.Errorf("%s: excluded: %t", id, got)
		}
	}
	snapshot := &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: "vol1" + server + "a/b" + nonce + "#delete"}
	for id, want := range map[string]bool{
		"snap1" + server + Digest("snap") + nonce:               true,
		"snap1" + server + Digest("snap") + nonce + "#vers=4.1": true,
		"snap1" + server + Digest("other") + nonce:              false,
	} {
		if got := excluded(csi.Controller_CreateSnapshot_FullMethodName, snapshot, csi.Controller_DeleteSnapshot_FullMethodName, &csi.DeleteSnapshotRequest{SnapshotId: id}); got != want {
			t.Errorf("%s: excluded: %t", id, got)
		}
	}
}
