package fastmount_test

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/csikit/csikit/nodeops/fastmount"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// Where a driver says mount.New("") today.
func ExampleNew() {
	mounter := fastmount.New()

	is, err := mounter.IsMountPoint("/proc")
	fmt.Println(is, err)
	_, err = mounter.IsMountPoint("/nonexistent")
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output:
	// true <nil>
	// true
}

// A device is formatted by mkfs, as before, and mounted by system calls.
func ExampleNew_safeFormatAndMount() {
	mounter := mount.NewSafeFormatAndMount(fastmount.New(), exec.New())
	_ = func(device, target string) error { // NodeStageVolume
		return mounter.FormatAndMount(device, target, "ext4", []string{"noatime"})
	}
}

// A driver that runs as a systemd service and mounts FUSE file systems.
func ExampleWithFallback() {
	_ = func() mount.Interface {
		return fastmount.New(fastmount.WithFallback(mount.New("")))
	}
}

// Errors unwrap to the errno.
func ExampleError() {
	err := fastmount.New().Unmount("/nonexistent")
	var e *fastmount.Error
	fmt.Println(errors.As(err, &e), errors.Is(err, fs.ErrNotExist))
	fmt.Println(e.Op, e.Target)
	// Output:
	// true true
	// unmount /nonexistent
}
