package driver

import (
	"context"
	"errors"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/luks"
	"github.com/csikit/csikit/nodeops"
)

// The volumes of a class with the parameter "encryption: luks2" are encrypted on the node: a
// mapping of package luks is between the device of the storage and what is mounted. The
// passphrase is in the secrets of the stage, and in those of the expansion on the node.

func init() {
	parameters[storage.ParamEncryption] = []string{storage.EncryptionLUKS2}
	besideServer = append(besideServer, encrypt)
}

// keyPassphrase is the key in the secrets.
const keyPassphrase = "passphrase"

// encrypted is the devices of the storage, and the mappings on those of encrypted volumes. Only
// Attach needs to know which volumes are encrypted: the others have no mapping.
type encrypted struct {
	storage.Devices
	mapper *luks.Mapper
	ops    *nodeops.Node
}

func encrypt(b *background) error {
	if b.node == nil {
		return nil
	}
	const longest = 47 // of a luks.Config.Prefix; the names of mappings have the volume's ID as well
	m, err := luks.New(luks.Config{Prefix: b.cfg.driverName[:min(len(b.cfg.driverName), longest)], Logger: b.log})
	if err != nil {
		return err
	}
	b.node.devices = encrypted{b.node.storage, m, b.node.ops}
	b.sections = append(b.sections, csiserver.DebugTable("encryption in the kernel", m.InFlight))
	return nil
}

// Attach returns the mapping of an encrypted volume. A stage opens it.
func (e encrypted) Attach(ctx context.Context, r storage.DeviceRequest) (nodeops.Device, error) {
	dev, err := e.Devices.Attach(ctx, r)
	if err != nil || r.Encryption == "" {
		return dev, err
	}
	var m luks.Mapping
	if !r.Stage {
		m, err = e.mapper.Find(r.VolumeID)
	} else if m, err = e.open(ctx, dev, r); err != nil {
		// The CO does not unstage after a final error.
		if _, findErr := e.mapper.Find(r.VolumeID); csierr.IsFinal(err) && errors.Is(findErr, luks.ErrNotOpen) {
			if undo := e.Devices.Detach(ctx, r.VolumeID); undo != nil {
				err = csierr.Errorf("attach device of volume", r.VolumeID, "%w: %v; and the device remains: %v", csierr.Unknown, err, undo)
			}
		}
	}
	return nodeops.Device{Path: m.Path, Size: m.Size}, err
}

// open opens the volume. What is published as a raw block device, or is read-only, is one of
// the mapping: that stays writable, as the devices of other volumes do.
func (e encrypted) open(ctx context.Context, dev nodeops.Device, r storage.DeviceRequest) (luks.Mapping, error) {
	if _, err := e.ops.MountedAt(ctx, dev); err != nil { // for the check of the serial number or WWID
		return luks.Mapping{}, err
	}
	passphrase := r.Secrets[keyPassphrase]
	if passphrase == "" {
		return luks.Mapping{}, csierr.Errorf("open volume", r.VolumeID, "%w: secrets: no key %q: name a secret with it in the class, as csi.storage.k8s.io/node-stage-secret-name", csierr.Invalid, keyPassphrase)
	}
	return e.mapper.Open(ctx, luks.OpenRequest{
		VolumeID: r.VolumeID, Device: dev.Path, Size: dev.Size, Passphrase: luks.Passphrase(passphrase),
		Copy: r.HoldsData, MustHoldData: r.ReadOnly,
	})
}

// Find returns the mapping, if there is one.
func (e encrypted) Find(ctx context.Context, volumeID string) (nodeops.Device, error) {
	dev, err := e.Devices.Find(ctx, volumeID)
	if err != nil {
		return dev, err
	}
	m, err := e.mapper.Find(volumeID)
	if errors.Is(err, luks.ErrNotOpen) {
		return dev, nil
	}
	return nodeops.Device{Path: m.Path, Size: m.Size}, err
}

// Detach closes the mapping first. A raw block publication does not keep it open, and Find,
// which the driver asks before, may have failed.
func (e encrypted) Detach(ctx context.Context, volumeID string) error {
	switch m, err := e.mapper.Find(volumeID); {
	case err == nil:
		if err := e.ops.Released(ctx, nodeops.Device{Path: m.Path}); err != nil {
			return err
		}
	case !errors.Is(err, luks.ErrNotOpen):
		return err
	}
	if err := e.mapper.Close(ctx, volumeID); err != nil {
		return err
	}
	return e.Devices.Detach(ctx, volumeID)
}

// Rescan lets the mapping have the new size as well.
func (e encrypted) Rescan(ctx context.Context, volumeID string, secrets map[string]string) (int64, error) {
	size, err := e.Devices.Rescan(ctx, volumeID, secrets)
	if err != nil {
		return 0, err
	}
	if _, err = e.mapper.Resize(ctx, volumeID, luks.Passphrase(secrets[keyPassphrase])); errors.Is(err, luks.ErrNotOpen) {
		err = nil
	} else if errors.Is(err, csierr.Invalid) {
		err = csierr.Errorf("resize volume", volumeID, "%w; name the secret in the class, as csi.storage.k8s.io/node-expand-secret-name", err)
	}
	return size, err
}
