package luks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/csikit/csikit/csierr"
	"golang.org/x/sys/unix"
)

// mapping is a device of device-mapper.
type mapping struct {
	Mapping
	uuid    string
	number  string   // major:minor
	devices []string // major:minor of what it is on
	sectors int64
}

// mappingOf returns the mapping with that name: ErrNotOpen if there is none.
func mappingOf(name string) (mapping, error) {
	status, err := deviceStatus(name)
	if err != nil {
		return mapping{}, err
	}
	m := mapping{uuid: text(status.Uuid[:]), number: fmt.Sprintf("%d:%d", unix.Major(status.Dev), unix.Minor(status.Dev))}
	m.Name, m.Path, m.ReadOnly = name, "/dev/mapper/"+name, status.Flags&unix.DM_READONLY_FLAG != 0
	if status.Flags&unix.DM_ACTIVE_PRESENT_FLAG == 0 { // Linux has no /sys/block for it then
		return m, nil
	}
	err = m.read("/sys/dev/block/" + m.number)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		if _, err := deviceStatus(name); err != nil { // removed meanwhile
			return mapping{}, err
		}
	}
	return m, err
}

// deviceStatus asks the kernel for a mapping, which has no node or directory if its creation was
// interrupted.
func deviceStatus(name string) (unix.DmIoctl, error) {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if _, e := os.Stat("/sys/class/misc/device-mapper"); errors.Is(e, fs.ErrNotExist) { // dm_mod is not loaded
			return unix.DmIoctl{}, ErrNotOpen
		}
		return unix.DmIoctl{}, fmt.Errorf("%w: mount devtmpfs or the host's /dev here", err)
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) { // nor can it be loaded
		return unix.DmIoctl{}, ErrNotOpen
	}
	if errors.Is(err, fs.ErrPermission) && !inSysfs(name) {
		return unix.DmIoctl{}, ErrNotOpen // one whose creation was interrupted does not use the device
	}
	if err != nil {
		return unix.DmIoctl{}, err
	}
	defer control.Close()
	// The version of the interface since Linux 2.6; the kernel accepts the same major one.
	s := unix.DmIoctl{Version: [3]uint32{4, 0, 0}, Data_size: uint32(unsafe.Sizeof(unix.DmIoctl{})), Data_start: uint32(unsafe.Sizeof(unix.DmIoctl{}))}
	copy(s.Name[:len(s.Name)-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), unix.DM_DEV_STATUS, uintptr(unsafe.Pointer(&s)))
	switch errno {
	case 0:
		return s, nil
	case unix.ENXIO:
		return unix.DmIoctl{}, ErrNotOpen
	}
	return unix.DmIoctl{}, os.NewSyscallError("ioctl DM_DEV_STATUS", errno)
}

// inSysfs reports whether there is, or may be, a mapping with that name: a process without the
// privilege to ask the kernel can read that much, and without encrypted volumes it needs no more.
func inSysfs(name string) bool {
	names, err := filepath.Glob("/sys/block/dm-*/dm/name")
	return err != nil || slices.ContainsFunc(names, func(file string) bool {
		text, err := os.ReadFile(file)
		return strings.TrimSpace(string(text)) == name || err != nil && !errors.Is(err, fs.ErrNotExist)
	})
}

// read reads from sysfs what the table of the mapping is on.
func (m *mapping) read(dir string) error {
	size, err := attribute(dir, "size")
	if err != nil {
		return err
	}
	if m.sectors, err = strconv.ParseInt(size, 10, 64); err != nil {
		return fmt.Errorf("size of mapping %s: %w", m.Name, err)
	}
	m.Size = m.sectors * 512
	slaves, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if err != nil {
		return err
	}
	for _, s := range slaves {
		number, err := attribute(dir, "slaves/"+s.Name()+"/dev")
		if err != nil {
			return err
		}
		m.devices = append(m.devices, number)
	}
	return nil
}

func attribute(dir, file string) (string, error) {
	content, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(content)), err
}

func (m *Mapper) find(volumeID string) (Mapping, error) {
	found, err := mappingOf(nameOf(m.prefix, volumeID))
	return found.Mapping, err
}

// belongs checks that the mapping is of this header on this device, or is one that was
// interrupted before it had a table.
func (m mapping) belongs(d device, h header) error {
	if m.uuid != h.mapperUUID(m.Name) {
		return kindf(csierr.Precondition, "the mapping %s exists and has UUID %q, want %q: it belongs to another volume or program; close that first", m.Name, m.uuid, h.mapperUUID(m.Name))
	}
	if m.empty() || len(m.devices) == 1 && m.devices[0] == d.number {
		return nil
	}
	return kindf(csierr.Precondition, "the mapping %s exists, on device %s and not on %s (%s): close it first", m.Name, strings.Join(m.devices, ", "), d.Path, d.number)
}

// empty reports that the mapping has no table: its creation was interrupted.
func (m mapping) empty() bool { return m.sectors == 0 && len(m.devices) == 0 }

// ensureNode creates the node of a mapping whose creation was interrupted.
func (m *Mapper) ensureNode(ctx context.Context, f mapping) error {
	var st unix.Stat_t
	if err := unix.Stat(f.Path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && numberOf(&st) == f.number {
		return nil
	}
	if err := m.dmsetup(ctx, "mknodes", f.Name); err != nil {
		return err
	}
	if err := unix.Stat(f.Path, &st); err != nil {
		return fmt.Errorf("the node of an open mapping is missing: mount devtmpfs or the host's /dev here: %w", &os.PathError{Op: "stat", Path: f.Path, Err: err})
	}
	if numberOf(&st) != f.number {
		return fmt.Errorf("%s is device %s, want %s", f.Path, numberOf(&st), f.number)
	}
	return nil
}

func numberOf(st *unix.Stat_t) string {
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
}

// close removes the mapping.
func (m *Mapper) close(ctx context.Context, name string) error {
	var failed error
	for range 3 { // what another process does meanwhile is found at the next try
		found, err := mappingOf(name)
		if errors.Is(err, ErrNotOpen) {
			return nil
		}
		if err != nil {
			return err
		}
		if !strings.HasPrefix(found.uuid, "CRYPT-LUKS2-") || !strings.HasSuffix(found.uuid, "-"+name) {
			return kindf(csierr.Precondition, "the mapping %s has UUID %q: it is not of LUKS2", name, found.uuid)
		}
		if found.empty() { // cryptsetup does not close it
			err = m.dmsetup(ctx, "remove", name)
		} else {
			err = m.cryptsetup(ctx, program{args: []string{"close", name}})
		}
		if errors.Is(err, csierr.Busy) {
			return kindf(csierr.Busy, "the mapping %s is mounted or open, in this or another mount namespace: unmount it first: %w", name, err)
		}
		if ctx.Err() != nil {
			return err
		}
		failed = err
	}
	if failed == nil {
		failed = kindf(csierr.Busy, "the mapping %s was closed and exists again", name)
	}
	return failed
}

func (m *Mapper) dmsetup(ctx context.Context, args ...string) error {
	status, output, err := m.run(ctx, program{name: "dmsetup", args: args})
	if err == nil && status != 0 {
		err = fmt.Errorf("dmsetup %s exited with status %d: %s", strings.Join(args, " "), status, output)
	}
	return err
}

// undo closes what a failed call has opened, and returns its error: one that is not final if
// something is left.
func (m *Mapper) undo(ctx context.Context, name string, failed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := m.close(ctx, name); err != nil {
		return kindf(csierr.Uncertain, "%w", errors.Join(failed, err))
	}
	return failed
}

// resize lets the mapping use the whole device.
func (m *Mapper) resize(ctx context.Context, volumeID string, p Passphrase) (int64, error) {
	name := nameOf(m.prefix, volumeID)
	found, err := mappingOf(name)
	if err != nil {
		return 0, err
	}
	if !strings.HasPrefix(found.uuid, "CRYPT-LUKS2-") || len(found.devices) != 1 {
		return 0, kindf(csierr.Precondition, "the mapping %s has UUID %q on %d devices: it is not of LUKS2", name, found.uuid, len(found.devices))
	}
	text, err := attribute("/sys/dev/block/"+found.devices[0], "size")
	if err != nil {
		return 0, err
	}
	sectors, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size of device %s: %w", found.devices[0], err)
	}
	const perBlock = 4096 / 512 // of the largest block of dm-crypt
	missing := sectors - dataOffset/512 - found.sectors
	switch {
	case missing >= 0 && missing < perBlock:
		return found.Size, nil
	case missing < 0:
		return 0, kindf(csierr.Precondition, "the device of %s has %d bytes, too few for its %d: expand it", name, sectors*512, found.Size)
	case len(p) == 0:
		return 0, kindf(csierr.Invalid, "the passphrase is needed to resize an open volume, and is empty")
	}
	if err := m.cryptsetup(ctx, program{args: []string{"resize", "--batch-mode", "--key-file", "-", name}, stdin: p}); err != nil {
		return 0, err
	}
	if found, err = mappingOf(name); err != nil {
		return 0, err
	}
	return found.Size, nil
}
