package nodeops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/csikit/csikit/csierr"
)

// errPath means that the device is only one path of a multipath device, to which a link may
// refer as long as that is not assembled.
var errPath = errors.New("use that device")

// checkIdentity checks what the request says about the device, except its size.
func (d *device) checkIdentity(want Device) error {
	if want.Serial == "" && want.WWID == "" && want.DMUUID == "" && want.Partition == 0 && want.Check == nil {
		return nil
	}
	dir, err := d.sysfs()
	if err == nil {
		err = dir.check(want)
	}
	if err != nil {
		if path := d.refusePath(); path != nil { // the link may change
			return path
		}
		return faultf(csierr.Precondition, "%s is not known to be the device of the volume: %w", d.path, err)
	}
	return nil
}

// refusePath returns an error if the device is one path of a multipath device: what uses it
// loses its data path where the multipath device does not, and both at once have two caches.
func (d *device) refusePath() error {
	dir, err := d.sysfs()
	if err != nil {
		return nil // without sysfs this is not known, and neither are the devices above it
	}
	if name := dir.multipath(); name != "" {
		return faultf(csierr.Precondition, "%s is one path of the multipath device /dev/mapper/%s; %w", d.path, name, errPath)
	}
	return nil
}

func (d *device) sysfs() (sysfsDir, error) {
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%v", d.number()))
	return sysfsDir(dir), err
}

// sysfsDir is the directory of a block device in sysfs. That of a partition is in that of
// its disk.
type sysfsDir string

func (s sysfsDir) check(want Device) error {
	partition, disk, err := s.partition()
	if err != nil {
		return err
	}
	if partition != want.Partition && (want.Partition != 0 || want.Serial != "" || want.WWID != "") {
		return fmt.Errorf("it is %s, the volume is %s", describePartition(partition), describePartition(want.Partition))
	}
	for _, id := range []struct {
		name, want string
		read       func() (string, error)
	}{
		{"serial", want.Serial, disk.serial},
		{"wwid", want.WWID, func() (string, error) { return disk.first("wwid", "device/wwid") }},
		{"device-mapper uuid", want.DMUUID, func() (string, error) { return s.first("dm/uuid") }},
	} {
		if id.want == "" {
			continue
		}
		have, err := id.read()
		if err != nil {
			return fmt.Errorf("its %s cannot be read: %w", id.name, err)
		}
		if have != id.want {
			return fmt.Errorf("it has %s %q, the volume has %q: it is another disk", id.name, have, id.want)
		}
	}
	if want.Check != nil {
		return want.Check(string(s))
	}
	return nil
}

// first returns the text of the first of the files that exists.
func (s sysfsDir) first(files ...string) (string, error) {
	var text []byte
	var err error
	for _, f := range files {
		if text, err = os.ReadFile(filepath.Join(string(s), f)); !notExist(err) {
			break
		}
	}
	return strings.TrimSpace(string(text)), err
}

// partition returns the number of the partition, 0 for a whole disk, and the disk.
func (s sysfsDir) partition() (n int, disk sysfsDir, err error) {
	text, err := s.first("partition")
	if notExist(err) {
		return 0, s, nil
	}
	if err == nil {
		n, err = strconv.Atoi(text)
	}
	return n, sysfsDir(filepath.Dir(string(s))), err
}

func describePartition(n int) string {
	if n == 0 {
		return "a whole disk"
	}
	return fmt.Sprintf("partition %d of a disk", n)
}

// serial returns the serial number of a disk: as the driver of NVMe or virtio shows it, or
// the unit serial number of SCSI.
func (s sysfsDir) serial() (string, error) {
	text, err := s.first("serial", "device/serial")
	if !notExist(err) {
		return text, err
	}
	page, err := os.ReadFile(filepath.Join(string(s), "device/vpd_pg80"))
	if err != nil {
		return "", err
	}
	// SPC-4, 7.8.17: the page code, the length in two bytes, and as many of ASCII, that some
	// devices pad.
	if len(page) < 4 || page[1] != 0x80 || len(page)-4 < int(binary.BigEndian.Uint16(page[2:])) {
		return "", fmt.Errorf("vpd_pg80 has %d bytes, which are not a page 0x80", len(page))
	}
	return strings.Trim(string(page[4:4+binary.BigEndian.Uint16(page[2:])]), " \x00"), nil
}

// multipath returns the name of the multipath device of which this one, or the disk of this
// partition, is a path; "" if there is none.
func (s sysfsDir) multipath() string {
	dirs := []sysfsDir{s}
	if n, disk, err := s.partition(); err == nil && n > 0 {
		dirs = append(dirs, disk)
	}
	for _, dir := range dirs {
		above, _ := os.ReadDir(filepath.Join(string(dir), "holders"))
		for _, h := range above {
			holder := sysfsDir(filepath.Join(string(dir), "holders", h.Name()))
			if uuid, _ := holder.first("dm/uuid"); strings.HasPrefix(uuid, "mpath-") {
				name, _ := holder.first("dm/name")
				return name
			}
		}
	}
	return ""
}
