package driver

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
)

// snapshotStorage has one snapshot, and records what volumes are created from.
type snapshotStorage struct {
	storage.Backend
	storage.Snapshotter
	storage.Cloner
	created  storage.SnapshotSpec
	restored storage.VolumeSpec
	cloned   storage.VolumeSpec
}

var theSnapshot = storage.Snapshot{ID: "snap-1", Name: "s", SourceVolumeID: "vol-1", SizeBytes: gib}

func (s *snapshotStorage) CreateSnapshot(_ context.Context, spec storage.SnapshotSpec) (storage.Snapshot, error) {
	s.created = spec
	return theSnapshot, nil
}

func (s *snapshotStorage) GetSnapshot(_ context.Context, id string) (storage.Snapshot, error) {
	if id != theSnapshot.ID {
		return storage.Snapshot{}, csierr.Errorf("get snapshot", id, "%w", csierr.NotFound)
	}
	return theSnapshot, nil
}

func (s *snapshotStorage) ListSnapshots(context.Context, string, string, int) ([]storage.Snapshot, string, error) {
	return []storage.Snapshot{theSnapshot}, "next", nil
}

func (s *snapshotStorage) RestoreSnapshot(_ context.Context, spec storage.VolumeSpec) (storage.Volume, error) {
	s.restored = spec
	return storage.Volume{ID: "vol-2", Source: spec.Source}, nil
}

func (s *snapshotStorage) CloneVolume(_ context.Context, spec storage.VolumeSpec) (storage.Volume, error) {
	s.cloned = spec
	return storage.Volume{ID: "vol-3", Source: spec.Source}, nil
}

func TestSnapshots(t *testing.T) {
	b := &snapshotStorage{}
	adds(t, b, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	adds(t, struct {
		storage.Backend
		storage.Cloner
	}{}, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	c := newController(b)
	created, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: "vol-1", Parameters: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "x", "tier": "gold"},
	})
	must(t, err)
	if s := created.GetSnapshot(); s.GetSnapshotId() != "snap-1" || s.GetSizeBytes() != gib || !s.GetReadyToUse() || len(b.created.Parameters) != 1 || b.created.Parameters["tier"] != "gold" {
		t.Errorf("%v from %+v", s, b.created)
	}
	_, err = c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", AccessibilityRequirements: &csi.TopologyRequirement{}})
	wantCode(t, err, codes.InvalidArgument, "accessibility_requirements")

	// What is not there is not in the list, and no error.
	for id, want := range map[string]int{"snap-1": 1, "snap-2": 0} {
		for source, want := range map[string]int{"": want, "vol-1": want, "vol-2": 0} {
			list, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: id, SourceVolumeId: source})
			if err != nil || len(list.GetEntries()) != want {
				t.Errorf("snapshot %q of %q: %v, %v", id, source, list, err)
			}
		}
	}
	list, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	if err != nil || len(list.GetEntries()) != 0 && list.GetNextToken() != "next" {
		t.Errorf("%v, %v", list, err)
	}
}

func TestCreateFromSource(t *testing.T) {
	b := &snapshotStorage{}
	c := newController(b)
	for _, source := range []storage.Source{{SnapshotID: "snap-1"}, {VolumeID: "vol-1"}} {
		sent := csiVolume(storage.Volume{Source: &source}).GetContentSource()
		v, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps(mountCap("", writer)), VolumeContentSource: sent})
		must(t, err)
		if got := v.GetVolume().GetContentSource(); got.String() != sent.String() {
			t.Errorf("from %s: %v", source.String(), v)
		}
	}
	if b.restored.Source.String() != "snapshot snap-1" || b.cloned.Source.String() != "volume vol-1" {
		t.Errorf("restored %v, cloned %v", b.restored.Source, b.cloned.Source)
	}
}
