package driver

import (
	"context"
	"maps"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
)

// tiers has one mutable parameter.
type tiers struct {
	storage.Backend
	modified map[string]string
}

func (*tiers) CheckMutable(parameters map[string]string) error {
	for key := range parameters {
		if key != "tier" {
			return csierr.Errorf("check mutable_parameters", key, "%w", csierr.Invalid)
		}
	}
	return nil
}

func (s *tiers) ModifyVolume(_ context.Context, _ string, parameters map[string]string) error {
	s.modified = parameters
	return nil
}

func TestModify(t *testing.T) {
	b := &tiers{Backend: testController(t).backend}
	adds(t, b, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	c := newController(b)
	good, bad := map[string]string{"tier": "gold"}, map[string]string{"color": "red"}
	id := c.mustCreate(t, "a", mountCap("", writer))
	_, err := c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: good})
	must(t, err)
	if !maps.Equal(b.modified, good) {
		t.Errorf("modified to %v", b.modified)
	}
	_, err = c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: bad})
	wantCode(t, err, codes.InvalidArgument, "color")
	_, err = c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: "unknown", MutableParameters: bad})
	wantCode(t, err, codes.NotFound)
	_, err = c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "b", VolumeCapabilities: caps(mountCap("", writer)), MutableParameters: bad})
	wantCode(t, err, codes.InvalidArgument, "color")
}
