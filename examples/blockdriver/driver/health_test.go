package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// sick has volumes with problems.
type sick struct {
	storage.Backend
	problems map[string][]storage.Problem
}

func (s *sick) CheckVolume(_ context.Context, id string) ([]storage.Problem, error) {
	p, ok := s.problems[id]
	if !ok {
		return nil, csierr.Errorf("check volume", id, "%w", csierr.NotFound)
	}
	return p, nil
}

func TestControllerHealth(t *testing.T) {
	b := &sick{testController(t).backend, map[string][]storage.Problem{}}
	adds(t, b, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	c := newController(b)
	var want []string
	for i := range 9 {
		id := c.mustCreate(t, fmt.Sprint(i), mountCap("", writer))
		switch i % 3 {
		case 0: // sound
			b.problems[id] = nil
		case 1:
			b.problems[id] = []storage.Problem{{Severity: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "Broken", Text: strings.Repeat("ä", 100)}}
			want = append(want, id)
		} // else deleted concurrently
	}
	slices.Sort(want)
	for most := range int32(5) {
		var got []string
		for token, pages := "", 0; ; pages++ {
			page, err := c.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: most, StartingToken: token})
			if err != nil || most > 0 && len(page.GetEntries()) > int(most) || pages > 9 {
				t.Fatalf("%v, %v", page, err)
			}
			for _, h := range page.GetEntries() {
				got = append(got, h.GetVolumeId())
			}
			if token = page.GetNextToken(); token == "" {
				break
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("in pages of %d %v, want %v", most, got, want)
		}
	}
	one, err := c.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: want[0]})
	must(t, err)
	if s := one.GetVolumeHealth().GetHealthStatuses(); len(s) != 1 || s[0].GetReason() != "Broken" || len(s[0].GetMessage()) != 128 {
		t.Errorf("%v", one)
	}
	_, err = c.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: "unknown"})
	wantCode(t, err, codes.NotFound)
}

func TestLargestPageOfHealth(t *testing.T) {
	page := &csi.ControllerListVolumeHealthResponse{NextToken: strings.Repeat("x", 128)}
	problem := storage.Problem{Severity: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "ImageNotAFile", Text: strings.Repeat("x", 1000)}
	for range maxPage {
		page.Entries = append(page.Entries, csiHealth(strings.Repeat("x", 64), []storage.Problem{problem, problem, problem}))
	}
	if size := proto.Size(page); size > 4<<20 {
		t.Errorf("a page can have %d bytes, grpc allows %d", size, 4<<20)
	}
}

// brokenStorage are devices of a storage with problems at several places.
type brokenStorage struct{ storage.Devices }

func (brokenStorage) CheckStorage(context.Context) []storage.StorageProblem {
	full := storage.StorageProblem{Severity: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Full", Text: "pool a"}
	also := full
	also.Text = "pool b"
	return []storage.StorageProblem{full, also, {Severity: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "Away", Text: "pool c"}}
}

func TestStorageHealth(t *testing.T) {
	n := &node{storage: brokenStorage{}}
	got, err := n.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	must(t, err)
	if h := got.GetBackendHealth(); len(h) != 2 || h[0].GetMessage() != "pool a; pool b" || h[1].GetStatus() != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
		t.Errorf("%v", got)
	}
	for devices, want := range map[storage.Devices]bool{brokenStorage{}: true, nil: false} {
		caps, err := (&node{storage: devices}).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
		must(t, err)
		has := slices.ContainsFunc(caps.GetCapabilities(), func(c *csi.NodeServiceCapability) bool {
			return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH
		})
		if has != want {
			t.Errorf("%T: GET_STORAGE_HEALTH %t", devices, has)
		}
	}
}
