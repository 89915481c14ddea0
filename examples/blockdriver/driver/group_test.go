package driver

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
)

type groupStorage struct {
	storage.Backend
	storage.GroupSnapshotter
	created storage.GroupSpec
}

func (g *groupStorage) CreateGroup(_ context.Context, s storage.GroupSpec) (storage.Group, error) {
	g.created = s
	return storage.Group{ID: "group-1", Name: s.Name, Snapshots: []storage.Snapshot{{ID: "snap-1", GroupID: "group-1"}}}, nil
}

func TestGroups(t *testing.T) {
	b := &groupStorage{}
	if services, capabilities := servicesOf(b); len(services) != 1 || !slices.Contains(capabilities, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE) {
		t.Errorf("a storage with groups has %v", capabilities)
	}
	g := &groupController{backend: b}
	resp, err := g.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"b", "a"}})
	must(t, err)
	if s := resp.GetGroupSnapshot().GetSnapshots(); !slices.Equal(b.created.VolumeIDs, []string{"a", "b"}) || len(s) != 1 || s[0].GetGroupSnapshotId() != "group-1" {
		t.Errorf("%v from %+v", resp, b.created)
	}
	_, err = g.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"b", "a", "b"}})
	wantCode(t, err, codes.InvalidArgument, "twice")
}
