package luks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/blockdev"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

const (
	// markType is the type in the mark of an interrupted format, which is a mark of nodeops
	// otherwise: see package mark for why it can be trusted. luksFormat writes only before
	// dataOffset, and the places of the mark are behind it on a device of minSize.
	markType = "crypto_LUKS"
	minSize  = 64 << 20

	blkidTimeout = 30 * time.Second
)

// format formats a device that is blank, or holds an interrupted format of a blank device. The
// mark is on it afterwards.
func (m *Mapper) format(ctx context.Context, r OpenRequest, d device) error {
	name := nameOf(m.prefix, r.VolumeID)
	// The mapping of an interrupted call, or one that only has the name.
	if have, err := mappingOf(name); err == nil {
		if !have.empty() && !slices.Equal(have.devices, []string{d.number}) {
			return kindf(csierr.Precondition, "the mapping %s exists, on device %v and not on %s (%s): close it first", name, have.devices, d.Path, d.number)
		}
		if err := m.close(ctx, name); err != nil {
			return err
		}
	} else if !errors.Is(err, ErrNotOpen) {
		return err
	}
	release, err := d.Hold()
	if errors.Is(err, unix.EBUSY) {
		return kindf(csierr.Busy, "%s is in use by a mount or a program, perhaps the format of an earlier, interrupted call: %w", d.Path, err)
	}
	if err != nil {
		return err
	}
	defer release()
	if err := m.mayFormat(ctx, r, d); err != nil {
		return err
	}
	claim, err := d.Claim(ctx)
	if errors.Is(err, unix.EBUSY) {
		return kindf(csierr.Busy, "%s is locked by another program: %w", d.Path, err)
	}
	if err != nil {
		return err
	}
	defer blockdev.CloseWithoutFork(claim.Close) // a format that still runs keeps the lock
	attempt := mark.New(r.VolumeID, markType, d.Size)
	if err := d.WriteBlocks(attempt.Blocks()); err != nil {
		return kindf(csierr.Uncertain, "write the csikit format mark to %s: %w", d.Path, err)
	}
	if err := d.CompareBlocks(attempt.Blocks()); err != nil {
		return kindf(csierr.Uncertain, "%w", err)
	}
	m.log.Warn("formatting a blank device", "volume_id", r.VolumeID, "device", d.Path, "type", "luks2", "bytes", d.Size)
	release() // cryptsetup opens the device exclusively itself
	args := append([]string{"luksFormat", "--type", "luks2", "--batch-mode", "--key-file", "-",
		"--offset", strconv.Itoa(dataOffset / 512), "--label", labelOf(r.VolumeID)}, m.pbkdf...)
	if err := m.cryptsetup(ctx, program{args: append(args, d.Path), stdin: r.Passphrase, claim: claim}); err != nil {
		return m.formatFailed(ctx, r, d, err)
	}
	if _, found, err := d.contents(r.VolumeID); err != nil || !found.Whole(markType) {
		return kindf(csierr.Uncertain, "%s: the format succeeded, but its mark is not intact: %w", d.Path, errors.Join(err, errDamaged))
	} else if err := found.CheckAttempt(attempt); err != nil {
		return kindf(csierr.Uncertain, "%s: %w", d.Path, err)
	}
	return nil
}

// formatFailed returns the error of a luksFormat. If it has written nothing, which is so for
// options that it does not know, the device is blank again.
func (m *Mapper) formatFailed(ctx context.Context, r OpenRequest, d device, failed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), blkidTimeout)
	defer cancel()
	result, found, err := d.probe(r.VolumeID, func() {})
	if err != nil || result.Kind != probe.Blank || ctx.Err() != nil {
		return kindf(csierr.Uncertain, "%w", errors.Join(failed, err))
	}
	if err := d.WriteBlocks(found.Zeros()); err != nil {
		return kindf(csierr.Uncertain, "%w", errors.Join(failed, err))
	}
	return failed
}

// mayFormat checks that the device is blank, or that only an interrupted format is on it.
func (m *Mapper) mayFormat(ctx context.Context, r OpenRequest, d device) error {
	blkid := errors.New("blkid did not run")
	result, found, err := d.probe(r.VolumeID, func() { blkid = m.confirmBlank(ctx, d) })
	if err != nil {
		return err
	}
	blank := result.Kind == probe.Blank && found.Foreign == ""
	switch {
	case !blank && !found.Interrupted(result, markType) && found.Foreign != "" && result.Type == "":
		return kindf(csierr.Precondition, "%s holds %s and is formatted only if it is blank", d.Path, found.Foreign)
	case !blank && !found.Interrupted(result, markType):
		return kindf(csierr.Precondition, "%s holds %v and is formatted only if it is blank: if that data is not needed, zero the device (blkdiscard -z %s) and try again", d.Path, result, d.Path)
	case r.MustHoldData, r.Copy:
		return kindf(csierr.Precondition, "%s is blank or its format was interrupted, but the volume holds data: check that it is the right device, and, for a copy, that it succeeded", d.Path)
	case r.ReadOnly:
		return kindf(csierr.Precondition, "%s is blank or its format was interrupted, and a read-only volume is not formatted: open the volume writable once", d.Path)
	case d.Size < minSize:
		return kindf(csierr.Precondition, "%s has %d bytes, an encrypted volume needs %d", d.Path, d.Size, minSize)
	case blank && len(found.Ours) == 0:
		return blkid
	}
	return nil
}

// probe reads what is on the device besides the mark; beside runs if its beginning is blank.
func (d device) probe(volumeID string, beside func()) (probe.Result, mark.Search, error) {
	disk, err := d.Direct()
	if err != nil {
		return probe.Result{}, mark.Search{}, err
	}
	defer disk.Close()
	found, err := mark.Find(disk, volumeID, d.Size)
	if err != nil {
		return probe.Result{}, mark.Search{}, err
	}
	result, err := probe.Probe(found.Masked(disk), d.Size, beside)
	return result, found, err
}

// confirmBlank runs blkid, which knows more signatures than package probe.
func (m *Mapper) confirmBlank(ctx context.Context, d device) error {
	ctx, cancel := context.WithTimeout(ctx, blkidTimeout)
	defer cancel()
	status, output, err := m.run(ctx, program{name: "blkid", args: []string{"-p", "-o", "export", d.Path}})
	if err != nil {
		return err
	}
	// blkid(8): 2 is "nothing found", and also "cannot read"; probe has read it.
	if status != 2 {
		return kindf(csierr.Precondition, "%s reads as blank, but blkid (exit status %d) reports: %s", d.Path, status, output)
	}
	return nil
}

// openNew opens a volume after its format, makes it read as blank, and clears the mark: only
// then is it a volume that holds data.
func (m *Mapper) openNew(ctx context.Context, r OpenRequest, d device, h header, found mark.Search) (Mapping, error) {
	opened, err := m.attach(ctx, r, d, h)
	if err == nil {
		if err = zero(opened, found); err == nil {
			err = m.finishMark(opened, d, found)
		}
		if err != nil {
			err = m.undo(ctx, opened.Name, err)
		}
	}
	if err != nil {
		return Mapping{}, kindf(csierr.Uncertain, "%w", err)
	}
	return opened, nil
}

// zero writes zeros to the mapping wherever a signature could be, but for the mark below it.
func zero(opened Mapping, found mark.Search) error {
	f, err := os.OpenFile(opened.Path, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var reserved []int64
	for _, place := range found.Places {
		reserved = append(reserved, place-dataOffset)
	}
	slices.Sort(reserved)
	fill := func(from, to int64) {
		if from < to && err == nil {
			_, err = f.WriteAt(make([]byte, to-from), from)
		}
	}
	write := func(off, n int64) {
		end := off + n
		for _, place := range reserved {
			fill(off, min(place, end))
			off = max(off, place+mark.Size)
		}
		fill(off, end)
	}
	probe.Places(opened.Size, write)
	for _, place := range mark.Places(opened.Size) {
		write(place, mark.Size)
	}
	if err == nil {
		err = f.Sync()
	}
	return err
}

// finishMark clears what is left of the mark, through the mapping: it reads as zeros there.
// When it begins, the volume is complete.
func (m *Mapper) finishMark(opened Mapping, d device, found mark.Search) error {
	if len(found.Ours) == 0 || opened.ReadOnly {
		return nil
	}
	zeros := make(map[int64][]byte)
	for place, block := range found.Zeros() {
		zeros[place-dataOffset] = block
	}
	f, err := os.OpenFile(opened.Path, os.O_RDONLY|unix.O_EXCL, 0) // not mounted
	if err != nil {
		return fmt.Errorf("clear the csikit format mark: %w", err)
	}
	defer f.Close()
	if err := d.CompareBlocks(found.Ours); err != nil {
		return err
	}
	if err := (blockdev.Device{File: f, Path: opened.Path, Size: opened.Size}).WriteBlocks(zeros); err != nil {
		return fmt.Errorf("clear the csikit format mark: %w", err)
	}
	return nil
}
