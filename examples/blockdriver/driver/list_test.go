package driver

import (
	"maps"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func TestControllerListVolumes(t *testing.T) {
	c := testController(t)
	want := map[string]bool{}
	for _, name := range []string{"a", "b", "c"} {
		want[c.mustCreate(t, name, mountCap("", writer))] = true
	}
	got := map[string]bool{}
	for token, pages := "", 0; ; pages++ {
		resp, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil || len(resp.GetEntries()) > 2 || pages > 2 {
			t.Fatalf("page %d: %v, %v", pages, resp, err)
		}
		for _, e := range resp.GetEntries() {
			got[e.GetVolume().GetVolumeId()] = true
			if e.GetStatus() == nil {
				t.Error("no status, although LIST_VOLUMES_PUBLISHED_NODES is offered")
			}
		}
		if token = resp.GetNextToken(); token == "" {
			break
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	_, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "nonsense"})
	wantCode(t, err, codes.Aborted)
}

// A page with no limit asked for must still fit into what grpc lets a client
// receive.
func TestLargestPage(t *testing.T) {
	long := func(n int) string { return strings.Repeat("n", n) }
	volumes := &csi.ListVolumesResponse{NextToken: long(128)}
	for range maxPage {
		volumes.Entries = append(volumes.Entries, &csi.ListVolumesResponse_Entry{
			Volume: &csi.Volume{
				VolumeId: long(128), CapacityBytes: 1 << 62, ContentSource: csiVolume(storage.Volume{Source: &storage.Source{SnapshotID: long(128)}}).ContentSource,
				AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"topology.example.com/zone": long(63), long(253) + "/" + long(63): long(63)}}},
			},
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{long(256)}},
		})
	}
	if size := proto.Size(volumes); size > 4<<20 {
		t.Errorf("a page of volumes can have %d bytes, grpc allows %d", size, 4<<20)
	}
}

// Volumes show to which node they are attached.
func TestPublishedNodes(t *testing.T) {
	c := testController(t)
	id := c.mustCreate(t, "a", mountCap("", writer))
	if _, err := c.backend.AttachVolume(t.Context(), id, storage.Attachment{NodeID: "n1"}); err != nil {
		t.Fatal(err)
	}
	got, err := c.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil || got.GetVolume().GetVolumeId() != id || got.GetVolume().GetCapacityBytes() != gib || len(got.GetStatus().GetPublishedNodeIds()) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	_, err = c.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "unknown"})
	wantCode(t, err, codes.NotFound)
	list, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil || len(list.GetEntries()) != 1 || list.GetEntries()[0].GetStatus().GetPublishedNodeIds()[0] != "n1" {
		t.Errorf("%v, %v", list, err)
	}
}
