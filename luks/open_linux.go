package luks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/blockdev"
	"github.com/csikit/csikit/internal/mark"
	"golang.org/x/sys/unix"
)

// device is the encrypted device, open for reading.
type device struct {
	blockdev.Device
	number string // major:minor
}

func openDevice(path string, size int64) (device, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return device{}, missing(path, err)
	}
	// O_NONBLOCK: opening a path that is not a block device must not block.
	f, err := os.OpenFile(resolved, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return device{}, missing(path, err)
	}
	d := device{Device: blockdev.Device{File: f, Path: resolved}}
	if err := d.check(size); err != nil {
		f.Close()
		return device{}, err
	}
	return d, nil
}

func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return kindf(csierr.Precondition, "device %s does not exist: check that the volume is attached to this node", path)
	}
	return fmt.Errorf("open the device: %w", err)
}

func (d *device) check(size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.File.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: d.Path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return kindf(csierr.Precondition, "%s is not a block device", d.Path)
	}
	d.number = numberOf(&st)
	var err error
	if d.Size, err = d.File.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("size of %s: %w", d.Path, err)
	}
	if d.Size == 0 {
		return kindf(csierr.Precondition, "device %s has size 0: it is not ready or has no medium", d.Path)
	}
	if size != 0 && size != d.Size {
		return kindf(csierr.Precondition, "%s has %d bytes, the volume has %d: it may be another disk", d.Path, d.Size, size)
	}
	return nil
}

// contents reads the header and the mark of an interrupted format from the disk.
func (d device) contents(volumeID string) (h header, found mark.Search, err error) {
	disk, err := d.Direct()
	if err != nil {
		return header{}, mark.Search{}, err
	}
	defer disk.Close()
	if found, err = mark.Find(disk, volumeID, d.Size); err != nil {
		return header{}, mark.Search{}, err
	}
	if d.Size < dataOffset {
		return header{}, found, errNoHeader
	}
	h, err = readHeader(disk)
	return h, found, err
}

// unfinished reports that the device has no header, or one of a format that was interrupted: err
// is that of reading the header.
func unfinished(found mark.Search, err error) bool {
	return errors.Is(err, errNoHeader) || found.Whole(markType) && (err == nil || errors.Is(err, errDamaged))
}

// headerError is the error of a call for a device whose header cannot be used.
func (d device) headerError(err error) error {
	switch {
	case errors.Is(err, errDamaged):
		return kindf(csierr.DataLoss, "%s: %w", d.Path, err)
	case errors.Is(err, errVersion):
		return kindf(csierr.Precondition, "%s: %w: cryptsetup convert changes it", d.Path, err)
	}
	return err
}

func (m *Mapper) open(ctx context.Context, r OpenRequest) (Mapping, error) {
	d, err := openDevice(r.Device, r.Size)
	if err != nil {
		return Mapping{}, err
	}
	defer d.File.Close()
	h, found, err := d.contents(r.VolumeID)
	// A header that was written before the mark was cleared is of a format that is repeated.
	if err == nil && !found.Whole(markType) {
		return m.openFormatted(ctx, r, d, h, found)
	}
	if err != nil && !unfinished(found, err) {
		return Mapping{}, d.headerError(err)
	}
	if err := m.format(ctx, r, d); err != nil {
		return Mapping{}, err
	}
	if h, found, err = d.contents(r.VolumeID); err != nil {
		return Mapping{}, kindf(csierr.Uncertain, "%s after a format that succeeded: %w", d.Path, err)
	}
	return m.openNew(ctx, r, d, h, found)
}

// openFormatted opens a volume whose format is complete.
func (m *Mapper) openFormatted(ctx context.Context, r OpenRequest, d device, h header, found mark.Search) (Mapping, error) {
	label := labelOf(r.VolumeID)
	if h.label != label && !r.Copy {
		return Mapping{}, kindf(csierr.Precondition, "%s has a LUKS header with label %q, the volume has %q: it is another volume, or a copy of one", d.Path, h.label, label)
	}
	name := nameOf(m.prefix, r.VolumeID)
	have, err := mappingOf(name)
	switch {
	case err == nil:
		if err := have.belongs(d, h); err != nil {
			return Mapping{}, err
		}
		if have.empty() {
			if err := m.close(ctx, name); err != nil {
				return Mapping{}, err
			}
			break
		}
		if have.ReadOnly != r.ReadOnly {
			return Mapping{}, kindf(csierr.Conflict, "the mapping %s exists, and is read-only: %v, want %v: close it first", name, have.ReadOnly, r.ReadOnly)
		}
		if err := m.finishMark(have.Mapping, d, found); err != nil {
			return Mapping{}, err
		}
		if err := m.ensureNode(ctx, have); err != nil {
			return Mapping{}, err
		}
		return have.Mapping, nil
	case !errors.Is(err, ErrNotOpen):
		return Mapping{}, err
	}
	if h.label != label {
		if err := m.relabel(ctx, r, d, label); err != nil {
			return Mapping{}, err
		}
	}
	opened, err := m.attach(ctx, r, d, h)
	if err != nil {
		return Mapping{}, err
	}
	if err := m.finishMark(opened, d, found); err != nil {
		return Mapping{}, m.undo(ctx, name, err)
	}
	return opened, nil
}

// relabel gives the header of a copy the label of this volume, if the passphrase opens it.
func (m *Mapper) relabel(ctx context.Context, r OpenRequest, d device, label string) error {
	if err := m.cryptsetup(ctx, program{args: []string{"open", "--test-passphrase", "--type", "luks2", "--batch-mode", "--key-file", "-", d.Path}, stdin: r.Passphrase}); err != nil {
		return err
	}
	return m.cryptsetup(ctx, program{args: []string{"config", "--batch-mode", "--label", label, d.Path}})
}

// attach creates the mapping. On failure there is none.
func (m *Mapper) attach(ctx context.Context, r OpenRequest, d device, h header) (_ Mapping, err error) {
	name := nameOf(m.prefix, r.VolumeID)
	args := []string{"open", "--type", "luks2", "--batch-mode", "--key-file", "-"}
	if r.ReadOnly {
		args = append(args, "--readonly")
	}
	err = m.cryptsetup(ctx, program{args: append(args, d.Path, name), stdin: r.Passphrase})
	if errors.Is(err, csierr.Unauthenticated) || errors.Is(err, csierr.Busy) {
		return Mapping{}, err // if the mapping exists, another process has created it
	}
	var have mapping
	if err == nil {
		have, err = mappingOf(name)
	}
	if err == nil {
		err = have.belongs(d, h)
	}
	if err == nil {
		err = m.ensureNode(ctx, have)
	}
	if err != nil {
		// A cryptsetup that was killed may have created it.
		if have, e := mappingOf(name); e == nil && have.belongs(d, h) == nil {
			err = m.undo(ctx, name, err)
		}
		return Mapping{}, err
	}
	have.Opened = true
	return have.Mapping, nil
}
