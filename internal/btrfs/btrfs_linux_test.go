package btrfs

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The sizes are part of the ioctl numbers.
func TestSizes(t *testing.T) {
	if a, b, c := unsafe.Sizeof(fsInfo{}), unsafe.Sizeof(deviceInfo{}), unsafe.Sizeof(volArgs{}); a != 1024 || b != 4096 || c != 4096 {
		t.Errorf("sizes are %d, %d and %d, want 1024, 4096 and 4096", a, b, c)
	}
}

func TestNotBtrfs(t *testing.T) {
	dir, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := Stat(dir); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("error is %v, want ENOTTY", err)
	}
	if _, _, err := (Info{FSID: "no such"}).BlockDevice(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v, want not exist", err)
	}
	if _, err := (Info{Devices: 2}).DeviceSize(dir); !errors.Is(err, ErrDevices) {
		t.Errorf("error is %v, want %v", err, ErrDevices)
	}
}

func TestFSID(t *testing.T) {
	id := [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 1, 2, 3, 4, 5, 6, 7}
	if got := fsid(id); got != "01234567-89ab-cdef-0001-020304050607" {
		t.Error(got)
	}
}
