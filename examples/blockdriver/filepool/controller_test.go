package filepool_test

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

const testZone = "topology.example.com/zone"

func zone(name string) *csi.TopologyRequirement {
	t := []*csi.Topology{{Segments: map[string]string{testZone: name}}}
	return &csi.TopologyRequirement{Requisite: t, Preferred: t}
}

// twoZones serves a controller with a pool in zone a and one in zone b.
func twoZones(t *testing.T) *grpc.ClientConn {
	t.Helper()
	var args []string
	for _, name := range []string{"a", "b"} {
		dir := filepath.Join(t.TempDir(), name)
		makePool(t, dir)
		args = append(args, "-pool", name+"="+dir+","+testZone+"="+name)
	}
	return serveController(t, append(args, "-reserve", "0")...)
}

func TestControllerTopology(t *testing.T) {
	c := csi.NewControllerClient(twoZones(t))
	ctx := t.Context()
	create := &csi.CreateVolumeRequest{
		Name: "v", VolumeCapabilities: []*csi.VolumeCapability{ext4}, AccessibilityRequirements: zone("b"),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib},
	}
	resp, err := c.CreateVolume(ctx, create, grpc.WaitForReady(true))
	if err != nil || !reflect.DeepEqual(resp.GetVolume().GetAccessibleTopology()[0].GetSegments(), map[string]string{testZone: "b"}) {
		t.Errorf("%v, %v", resp, err)
	}
	create.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: zone("a").Requisite, Preferred: zone("b").Preferred}
	_, err = c.CreateVolume(ctx, create)
	wantCode(t, err, codes.InvalidArgument)
	for _, test := range []struct {
		req  *csi.GetCapacityRequest
		some bool
	}{
		{&csi.GetCapacityRequest{}, true},
		{&csi.GetCapacityRequest{AccessibleTopology: zone("a").Requisite[0], Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}}, true},
		{&csi.GetCapacityRequest{AccessibleTopology: zone("c").Requisite[0]}, false},
		{&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}}, true},
		{&csi.GetCapacityRequest{Parameters: map[string]string{"unknown": "x"}}, false},
	} {
		resp, err := c.GetCapacity(ctx, test.req)
		if err != nil || (resp.GetAvailableCapacity() > 0) != test.some || resp.GetAvailableCapacity()%mib != 0 {
			t.Errorf("%v: %v, %v; want some: %t", test.req, resp, err, test.some)
		}
	}

	// Without the capability a topology with segments is refused; one without, which
	// external-provisioner sends, is not set.
	dir := t.TempDir()
	makePool(t, dir)
	c = csi.NewControllerClient(serveController(t, "-pool", "default="+dir, "-reserve", "0"))
	_, err = c.GetCapacity(ctx, &csi.GetCapacityRequest{AccessibleTopology: zone("a").Requisite[0]}, grpc.WaitForReady(true))
	wantCode(t, err, codes.InvalidArgument)
	capacity, err := c.GetCapacity(ctx, &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{}}})
	if err != nil || capacity.GetMaximumVolumeSize().GetValue() == 0 {
		t.Errorf("without segments: %v, %v", capacity, err)
	}
	create.Name, create.AccessibilityRequirements = "w", zone("b")
	_, err = c.CreateVolume(ctx, create)
	wantCode(t, err, codes.InvalidArgument)
	create.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{}}}
	if _, err := c.CreateVolume(ctx, create); err != nil {
		t.Errorf("without segments: %v", err)
	}
}

func TestGroupController(t *testing.T) {
	conn := twoZones(t)
	c := csi.NewGroupControllerClient(conn)
	var ids []string
	for _, name := range []string{"a", "b"} {
		v, err := csi.NewControllerClient(conn).CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{ext4}, AccessibilityRequirements: zone(name),
			CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib},
		}, grpc.WaitForReady(true))
		must(t, err)
		ids = append(ids, v.GetVolume().GetVolumeId())
	}
	create := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{ids[1], ids[0]}, Parameters: map[string]string{"csi.storage.k8s.io/x": "y"}}
	resp, err := c.CreateVolumeGroupSnapshot(t.Context(), create)
	must(t, err)
	g := resp.GetGroupSnapshot()
	if len(g.GetSnapshots()) != 2 || !g.GetReadyToUse() || g.GetCreationTime().AsTime().IsZero() || g.GetSnapshots()[0].GetGroupSnapshotId() != g.GetGroupSnapshotId() {
		t.Errorf("%v", g)
	}
	got, err := c.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId()})
	if err != nil || len(got.GetGroupSnapshot().GetSnapshots()) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	create.SourceVolumeIds = []string{ids[0], ids[0]}
	_, err = c.CreateVolumeGroupSnapshot(t.Context(), create)
	wantCode(t, err, codes.InvalidArgument, "twice")
	create.SourceVolumeIds, create.Parameters = ids, map[string]string{"x": "y"}
	_, err = c.CreateVolumeGroupSnapshot(t.Context(), create)
	wantCode(t, err, codes.InvalidArgument, `"x"`)
	if _, err = c.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId()}); err != nil {
		t.Error(err)
	}
}
