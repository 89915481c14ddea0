package driver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// A field that needs a capability which the storage does not have is refused: to ignore it
// would create another volume than the one that is wanted.
func TestNotOffered(t *testing.T) {
	conn := dial(t, strings.TrimPrefix(serveMode(t, t.TempDir(), memory.New()), "unix://"))
	c := csi.NewControllerClient(conn)
	zone := &csi.Topology{Segments: map[string]string{"topology.example.com/zone": "z1"}}
	for field, change := range map[string]func(*csi.CreateVolumeRequest){
		"mutable_parameters": func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} },
		"accessibility_requirements": func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{zone}}
		},
		"volume_content_source": func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "vol-1"}}}
		},
	} {
		req := &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps(mountCap("", writer))}
		change(req)
		_, err := c.CreateVolume(t.Context(), req, grpc.WaitForReady(true))
		wantCode(t, err, codes.InvalidArgument, field)
	}
	_, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	wantCode(t, err, codes.Unimplemented)
	_, err = c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: "a", MutableParameters: map[string]string{"a": "b"}})
	wantCode(t, err, codes.Unimplemented)
	_, err = csi.NewGroupControllerClient(conn).GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "a"})
	wantCode(t, err, codes.Unimplemented)
}
