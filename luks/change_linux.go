package luks

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/csikit/csikit/csierr"
)

// change adds the new key, verifies it, and removes the old one, by the numbers of their slots:
// cryptsetup --batch-mode removes the last key of a volume, too.
func (m *Mapper) change(ctx context.Context, r ChangeRequest) error {
	if len(r.Old) == 0 || len(r.New) == 0 || bytes.Equal(r.Old, r.New) {
		return kindf(csierr.Invalid, "two different passphrases are needed")
	}
	d, err := openDevice(r.Device, 0)
	if err != nil {
		return err
	}
	defer d.File.Close()
	h, found, err := d.contents(r.VolumeID)
	switch {
	case unfinished(found, err):
		return kindf(csierr.Precondition, "%s is not formatted completely: open the volume once: %w", d.Path, cmp.Or(err, errNoHeader))
	case err != nil:
		return d.headerError(err)
	case h.label != labelOf(r.VolumeID):
		return kindf(csierr.Precondition, "%s has a LUKS header with label %q, the volume has %q: it is another volume", d.Path, h.label, labelOf(r.VolumeID))
	}
	old, err := m.slotsOf(ctx, d, h, r.Old)
	if err != nil {
		return err
	}
	added, err := m.slotsOf(ctx, d, h, r.New)
	if err != nil {
		return err
	}
	if len(added) == 0 {
		if len(old) == 0 {
			return kindf(csierr.Unauthenticated, "neither the old nor the new passphrase opens the volume")
		}
		slot, err := m.add(ctx, d, h, r)
		if err != nil {
			return err
		}
		added = []int{slot}
	}
	for _, slot := range old {
		// A derived key may be the same: PBKDF2 pads a passphrase with zeros.
		for _, other := range added {
			if slot == other {
				return kindf(csierr.Invalid, "both passphrases open the same key of the volume")
			}
		}
	}
	for _, slot := range old {
		m.log.Info("removing the old key of a volume", "volume_id", r.VolumeID, "device", d.Path, "slot", slot)
		if err := m.cryptsetup(ctx, program{args: []string{"luksKillSlot", "--batch-mode", "--key-file", "-", d.Path, strconv.Itoa(slot)}, stdin: r.New}); err != nil {
			return err
		}
	}
	return nil
}

// add adds the new key to a free slot, and verifies that the passphrase opens it.
func (m *Mapper) add(ctx context.Context, d device, h header, r ChangeRequest) (slot int, err error) {
	for _, taken := range h.slots { // in ascending order
		if taken == slot {
			slot++
		}
	}
	args := append([]string{"luksAddKey", "--type", "luks2", "--batch-mode", "--key-file", "-", "--key-slot", strconv.Itoa(slot)}, m.pbkdf...)
	if err := m.cryptsetup(ctx, program{args: append(args, d.Path, newKey), stdin: r.Old, key: r.New}); err != nil {
		return 0, err
	}
	ok, err := m.opens(ctx, d, slot, r.New)
	if err == nil && !ok {
		err = kindf(csierr.Uncertain, "the new passphrase does not open slot %d, to which it was added", slot)
	}
	return slot, err
}

// slotsOf returns the slots of the keys that the passphrase opens.
func (m *Mapper) slotsOf(ctx context.Context, d device, h header, p Passphrase) (slots []int, err error) {
	for _, slot := range h.slots {
		ok, err := m.opens(ctx, d, slot, p)
		if err != nil {
			return nil, err
		}
		if ok {
			slots = append(slots, slot)
		}
	}
	return slots, nil
}

func (m *Mapper) opens(ctx context.Context, d device, slot int, p Passphrase) (bool, error) {
	status, output, err := m.run(ctx, program{name: "cryptsetup", args: []string{"open", "--test-passphrase", "--type", "luks2", "--batch-mode",
		"--key-file", "-", "--key-slot", strconv.Itoa(slot), d.Path}, stdin: p})
	switch {
	case err != nil:
		return false, err
	case status == statusOK:
		return true, nil
	case status == statusPassphrase:
		return false, nil
	}
	return false, fmt.Errorf("cryptsetup open --test-passphrase exited with status %d: %s", status, output)
}
