package nodeops

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sysfsTree writes files with the contents below a directory like that of devices in sysfs.
func sysfsTree(t *testing.T, files map[string]string) (dir func(string) sysfsDir) {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
		ok(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return func(name string) sysfsDir { return sysfsDir(filepath.Join(root, name)) }
}

// kubernetes-sigs/aws-ebs-csi-driver#1224: a link in /dev/disk/by-id pointed to another disk.
func TestIdentity(t *testing.T) {
	dir := sysfsTree(t, map[string]string{
		"virtio0/vda/serial":           "vol-1",
		"nvme0n1/device/serial":        "S1   \n",
		"nvme0n1/wwid":                 "eui.1\n",
		"nvme0n1/nvme0n1p2/partition":  "2\n",
		"sda/device/wwid":              "naa.1\n",
		"sda/device/vpd_pg80":          "\x00\x80\x00\x08 2000 \x00\x00",
		"sda/sda1/partition":           "1\n",
		"sdb/device/vpd_pg80":          "\x00\x80\x00\x08 2000",
		"sdc/device/vpd_pg80":          "\x00\x83\x00\x04 200",
		"sdd/device/vpd_pg80":          "\x00\x80",
		"dm-0/dm/uuid":                 "mpath-3600\n",
		"dm-1/dm/uuid":                 "CRYPT-LUKS2-1-vol\n",
		"loop0/size":                   "1\n",
		"broken/brokenp1/partition":    "one\n",
		"unreadable/serial/not-a-file": "",
		"unreadable/device/serial":     "S1\n",
	})
	for _, tt := range []struct {
		name string
		want Device
		says string // "": it is the device
	}{
		{"loop0", Device{}, ""},
		{"virtio0/vda", Device{Serial: "vol-1"}, ""},
		{"virtio0/vda", Device{Serial: "vol-2"}, `has serial "vol-1", the volume has "vol-2"`},
		{"virtio0/vda", Device{WWID: "eui.1"}, "wwid cannot be read"},
		{"nvme0n1", Device{Serial: "S1", WWID: "eui.1"}, ""},
		{"nvme0n1", Device{Serial: "S1", WWID: "eui.2"}, `has wwid "eui.1"`},
		{"nvme0n1", Device{Serial: "S1", Partition: 2}, "is a whole disk, the volume is partition 2"},
		{"nvme0n1/nvme0n1p2", Device{Serial: "S1", WWID: "eui.1", Partition: 2}, ""},
		{"nvme0n1/nvme0n1p2", Device{Partition: 2}, ""},
		{"nvme0n1/nvme0n1p2", Device{Serial: "S2", Partition: 2}, `has serial "S1"`},
		{"nvme0n1/nvme0n1p2", Device{Serial: "S1", Partition: 1}, "is partition 2 of a disk, the volume is partition 1"},
		{"nvme0n1/nvme0n1p2", Device{Serial: "S1"}, "the volume is a whole disk"},
		{"nvme0n1/nvme0n1p2", Device{WWID: "eui.1"}, "the volume is a whole disk"},
		{"nvme0n1/nvme0n1p2", Device{}, ""},
		{"sda", Device{Serial: "2000", WWID: "naa.1"}, ""},
		{"sda", Device{Serial: "200"}, `has serial "2000"`},
		{"sda/sda1", Device{Serial: "2000", WWID: "naa.1", Partition: 1}, ""},
		{"sdb", Device{Serial: "2000"}, "not a page 0x80"}, // truncated
		{"sdc", Device{Serial: "200"}, "not a page 0x80"},
		{"sdd", Device{Serial: "200"}, "not a page 0x80"},
		{"loop0", Device{Serial: "1"}, "serial cannot be read"},
		{"dm-0", Device{DMUUID: "mpath-3600"}, ""},
		{"dm-0", Device{DMUUID: "mpath-360"}, `has device-mapper uuid "mpath-3600"`},
		{"dm-1", Device{DMUUID: "CRYPT-LUKS2-1-vol"}, ""},
		{"sda", Device{DMUUID: "mpath-3600"}, "device-mapper uuid cannot be read"},
		{"broken/brokenp1", Device{Partition: 1}, "one"},
		{"unreadable", Device{Serial: "S1"}, "serial cannot be read"},
	} {
		err := dir(tt.name).check(tt.want)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s, %+v: %v, want %q", tt.name, tt.want, err, tt.says)
		}
	}
	own := errors.New("of another array")
	var got string
	err := dir("sda/sda1").check(Device{Check: func(dir string) error { got = dir; return own }})
	if !errors.Is(err, own) || got != string(dir("sda/sda1")) {
		t.Errorf("Check was given %q: %v", got, err)
	}
	called := Device{Serial: "other", Check: func(string) error { t.Error("Check is called for another disk"); return nil }}
	if dir("sda").check(called) == nil {
		t.Error("another disk is accepted")
	}
}

func TestPathOfAMultipathDevice(t *testing.T) {
	dir := sysfsTree(t, map[string]string{
		"sda/holders/dm-0/dm/uuid":  "mpath-3600\n",
		"sda/holders/dm-0/dm/name":  "vol\n",
		"sda/sda1/partition":        "1\n",
		"sdb/holders/dm-1/dm/uuid":  "LVM-1\n",
		"sdb/holders/md0/size":      "1\n",
		"sdc/size":                  "1\n",
		"dm-0/dm/uuid":              "mpath-3600\n",
		"dm-0/holders/dm-3/dm/uuid": "part1-mpath-3600\n",
	})
	for name, want := range map[string]string{"sda": "vol", "sda/sda1": "vol", "sdb": "", "sdc": "", "dm-0": ""} {
		if got := dir(name).multipath(); got != want {
			t.Errorf("%s is a path of %q, want %q", name, got, want)
		}
	}
}
