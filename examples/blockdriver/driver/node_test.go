package driver

import (
	"context"
	"reflect"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
)

// What the controller says of a volume arrives at the node, and the storage gets its own
// keys only.
func TestPublishContext(t *testing.T) {
	for _, v := range []storage.Volume{
		{AccessType: "xfs"}, {AccessType: "xfs", HoldsData: true}, {AccessType: "xfs", Prezeroed: true}, {AccessType: "xfs", HoldsData: true, Prezeroed: true},
	} {
		for _, readOnly := range []bool{false, true} {
			own := map[string]string{"lun": "7", keyReadOnly: "mine"}
			sent := publishContextOf(v, storage.Attachment{ReadOnly: readOnly}, own)
			got, err := requestOf(&csi.NodeStageVolumeRequest{
				VolumeId: "vol-1", VolumeCapability: mountCap("xfs", writer), PublishContext: sent, Secrets: map[string]string{"a": "b"},
				VolumeContext: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x", "tier": "gold"},
			})
			must(t, err)
			if want := (storage.DeviceRequest{
				VolumeID: "vol-1", PublishContext: map[string]string{"lun": "7"}, VolumeContext: map[string]string{"tier": "gold"}, Secrets: map[string]string{"a": "b"},
				Stage: true, AccessType: "xfs", HoldsData: v.HoldsData, Prezeroed: v.Prezeroed, ReadOnly: readOnly,
			}); !reflect.DeepEqual(got, want) {
				t.Errorf("the node gets %+v, want %+v", got, want)
			}
			if own[keyReadOnly] != "mine" {
				t.Error("the map of the storage was changed")
			}
		}
	}
	xfs := publishContextOf(storage.Volume{AccessType: "xfs"}, storage.Attachment{}, nil)
	if got, err := requestOf(&csi.NodePublishVolumeRequest{VolumeCapability: mountCap("xfs", reader), PublishContext: xfs}); err != nil || !got.ReadOnly || got.Stage {
		t.Errorf("a reader-only mode: %+v, %v", got, err)
	}
	for _, x := range []struct {
		capability *csi.VolumeCapability
		sent       map[string]string
		code       codes.Code
	}{
		{mountCap("ext4", writer), xfs, codes.FailedPrecondition},
		{blockCap(writer), xfs, codes.FailedPrecondition},
		{mountCap("xfs", everywhere), xfs, codes.InvalidArgument},
		{groupCap(), xfs, codes.InvalidArgument},
		{mountCap("xfs", writer), nil, codes.FailedPrecondition}, // not attached
	} {
		_, err := requestOf(&csi.NodeStageVolumeRequest{VolumeId: "vol-1", VolumeCapability: x.capability, PublishContext: x.sent})
		wantCode(t, err, x.code)
	}
	// Unknown is the safe side: data is not formatted over.
	if got, _ := requestOf(&csi.NodeStageVolumeRequest{VolumeCapability: mountCap("xfs", writer), PublishContext: map[string]string{keyAccessType: "xfs"}}); !got.HoldsData || got.Prezeroed {
		t.Errorf("without the keys: %+v", got)
	}
}

// noDevice has no device for any volume.
type noDevice struct {
	storage.Devices
	attached bool
}

func (d *noDevice) Find(context.Context, string) (nodeops.Device, error) {
	return nodeops.Device{}, csierr.NotFound
}

func (d *noDevice) Attach(context.Context, storage.DeviceRequest) (nodeops.Device, error) {
	d.attached = true
	return nodeops.Device{Path: "/dev/null"}, nil
}

// A publish before the stage makes no device appear: another publish would use it, and
// nothing would remove it after a kill.
func TestPublishBeforeStage(t *testing.T) {
	d := new(noDevice)
	_, err := (&node{devices: d}).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: "vol-1", VolumeCapability: mountCap("xfs", writer), PublishContext: publishContextOf(storage.Volume{AccessType: "xfs"}, storage.Attachment{}, nil),
	})
	wantCode(t, err, codes.NotFound, "stage it first")
	if d.attached {
		t.Error("the device was attached")
	}
}
