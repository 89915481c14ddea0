package driver

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
)

var luks2 = map[string]string{storage.ParamEncryption: storage.EncryptionLUKS2}

// The parameter is the driver's: any storage has it.
func TestEncryptionParameter(t *testing.T) {
	b, err := memory.New().OpenBackend(t.Context(), storage.Env{Parameters: parameters})
	must(t, err)
	c := newController(b)
	req := &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: caps(mountCap("ext4", writer)), Parameters: luks2, CapacityRange: &csi.CapacityRange{RequiredBytes: 1}}
	created, err := c.CreateVolume(t.Context(), req)
	must(t, err)
	if size := created.GetVolume().GetCapacityBytes(); size != 64<<20 {
		t.Errorf("the smallest has %d bytes", size)
	}
	req.Parameters = nil
	_, err = c.CreateVolume(t.Context(), req)
	wantCode(t, err, codes.AlreadyExists, "encryption")
	req.Name, req.Parameters = "w", map[string]string{storage.ParamEncryption: "rot13"}
	_, err = c.CreateVolume(t.Context(), req)
	wantCode(t, err, codes.InvalidArgument, `"rot13", want luks2`)
	must(t, b.DeleteVolume(t.Context(), created.GetVolume().GetVolumeId()))

	sent := publishContextOf(storage.Volume{AccessType: "ext4", Parameters: luks2}, storage.Attachment{}, nil)
	r, err := requestOf(&csi.NodeStageVolumeRequest{VolumeId: "v", VolumeCapability: mountCap("ext4", writer), PublishContext: sent})
	if err != nil || r.Encryption != storage.EncryptionLUKS2 {
		t.Errorf("the node gets %+v, %v", r, err)
	}
	// A driver without encryption.go would format the device for all to read.
	known := parameters
	defer func() { parameters = known }()
	parameters = nil
	_, err = requestOf(&csi.NodeStageVolumeRequest{VolumeId: "v", VolumeCapability: mountCap("ext4", writer), PublishContext: sent})
	wantCode(t, err, codes.FailedPrecondition, "encrypted")
}

// oneDevice has a device for every volume.
type oneDevice struct {
	storage.Devices
	path     string
	detached int
}

func (d *oneDevice) Find(context.Context, string) (nodeops.Device, error) {
	return nodeops.Device{Path: d.path}, nil
}

func (d *oneDevice) Attach(context.Context, storage.DeviceRequest) (nodeops.Device, error) {
	return nodeops.Device{Path: d.path}, nil
}

func (d *oneDevice) Detach(context.Context, string) error {
	d.detached++
	return nil
}

func (d *oneDevice) Rescan(context.Context, string, map[string]string) (int64, error) { return 7, nil }

// What is not encrypted is not changed, and what cannot be opened is not left attached.
func TestEncryptionOfDevices(t *testing.T) {
	gate.Root(t)
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 64<<20))
	loop, err := loopdev.Attach(t.Context(), image)
	must(t, err)
	t.Cleanup(func() { must(t, loop.Detach(context.Background())) })
	dev := loop.Path
	ops, err := nodeops.New(nodeops.Config{DeviceWait: -1})
	must(t, err)
	d := &oneDevice{path: dev}
	n := &node{storage: d, devices: d, ops: ops, cfg: config{driverName: "a-name-that-is-longer-than-what-a-mapping-can-have.example.com"}}
	b := &background{cfg: n.cfg, node: n}
	must(t, encrypt(b))
	if len(b.sections) != 1 {
		t.Errorf("%d sections of the debug page", len(b.sections))
	}
	must(t, encrypt(&background{})) // -mode controller

	for _, stage := range []bool{true, false} {
		got, err := n.devices.Attach(t.Context(), storage.DeviceRequest{VolumeID: "v", Stage: stage})
		if err != nil || got.Path != dev {
			t.Errorf("not encrypted: %+v, %v", got, err)
		}
	}
	got, err := n.devices.Find(t.Context(), "v")
	if err != nil || got.Path != dev {
		t.Errorf("found %+v, %v", got, err)
	}
	size, err := n.devices.Rescan(t.Context(), "v", nil)
	if err != nil || size != 7 {
		t.Errorf("rescanned to %d, %v", size, err)
	}
	must(t, n.devices.Detach(t.Context(), "v"))

	for i, x := range []struct {
		r    storage.DeviceRequest
		kind csierr.Kind
		text string
	}{
		{storage.DeviceRequest{Stage: true}, csierr.Invalid, "node-stage-secret-name"},
		{storage.DeviceRequest{Stage: true, HoldsData: true, Secrets: map[string]string{keyPassphrase: "x"}}, csierr.Precondition, "holds data"},
		{storage.DeviceRequest{Stage: true, ReadOnly: true, Secrets: map[string]string{keyPassphrase: "x"}}, csierr.Precondition, "holds data"},
		{storage.DeviceRequest{Secrets: map[string]string{keyPassphrase: "x"}}, csierr.NotFound, "not open"}, // a publish before the stage
	} {
		d.detached = 0
		x.r.VolumeID, x.r.Encryption = "v", storage.EncryptionLUKS2
		_, err := n.devices.Attach(t.Context(), x.r)
		wantCode(t, err, csierr.CodeOf(x.kind), x.text)
		if want := i < 3; (d.detached == 1) != want {
			t.Errorf("%v: detached %d times", err, d.detached)
		}
	}
}
