package storage

import (
	"context"

	"github.com/csikit/csikit/nodeops"
)

// Devices is the storage as a node uses it: how a volume becomes a block device there. The
// controller may be another process; Attach may call the API of the storage. Every method
// is idempotent and safe for concurrent use. For one volume the driver calls Detach and
// Rescan alone, but Attach and Find concurrently, because several pods may start. Where the
// volume ID does not lead to the device, keep a record on the node, such as a file below
// /run. Errors are as those of [Backend].
type Devices interface {
	// Attach makes the device of the volume appear, and returns it. It is called at each
	// stage and publish. Set the serial number, WWID or size that you know: it is
	// checked on the open device before anything is written. An attachment that has
	// ended, because the volume was detached from this node, is csierr.Precondition.
	Attach(ctx context.Context, a DeviceRequest) (nodeops.Device, error)
	// Find returns the device of a volume that is attached on this node, with its present
	// size, or csierr.NotFound. It is also called when the CO asks for the volume's usage
	// (kubelet: every minute), which is when a changed setting can be applied.
	Find(ctx context.Context, volumeID string) (nodeops.Device, error)
	// Detach removes the device. It is a no-op if there is none. The driver has checked that
	// the device that Find returns is not mounted. Where Find fails although there is a device,
	// for instance because the record of the volume is lost, Detach has to check that itself.
	Detach(ctx context.Context, volumeID string) error
	// Rescan makes the device as large as the volume is after ExpandVolume, and returns how
	// many bytes of the volume it has. Without a device it is csierr.NotFound.
	Rescan(ctx context.Context, volumeID string, secrets map[string]string) (int64, error)
}

// DeviceRequest is what a node knows of a volume.
type DeviceRequest struct {
	VolumeID       string
	PublishContext map[string]string // what Backend.AttachVolume returned
	VolumeContext  map[string]string // Volume.Context
	Secrets        map[string]string // of the stage or publish
	AccessType     string            // as in the Volume, as are HoldsData and Prezeroed
	Encryption     string            // the value of ParamEncryption

	Stage, HoldsData, Prezeroed, ReadOnly bool
}
