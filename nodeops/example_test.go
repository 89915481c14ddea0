package nodeops_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/status"
)

// A mount at the target path that is not what was requested is a conflict, and the error
// lists each difference.
func ExampleError() {
	err := error(&nodeops.Error{
		Op: "publish", VolumeID: "vol-1", Path: "/pods/a/mount", Kind: csierr.Conflict,
		Diff: []nodeops.Difference{{What: "access", Have: "read-write", Want: "read-only"}},
		Err:  errors.New("another volume or another configuration is published at the target path"),
	})
	fmt.Println(status.Code(err))
	var e *nodeops.Error
	if errors.As(err, &e) {
		for _, d := range e.Diff {
			fmt.Printf("%s: %v\n", e.Path, d)
		}
	}
	// Output:
	// AlreadyExists
	// /pods/a/mount: access is read-write, want read-only
}

// A driver that needs another code for one kind of error branches on the kind.
func ExampleError_kind() {
	err := fmt.Errorf("volume group vg1: %w",
		&nodeops.Error{Op: "stage", Path: "/staging", Kind: csierr.Busy, Err: errors.New("in use by process 42 (fsck)")})
	if csierr.KindOf(err) == csierr.Busy {
		fmt.Println("retry later:", err)
	}
	// Output: retry later: volume group vg1: stage at /staging: in use by process 42 (fsck)
}

// A share is mounted at the pod's path without staging. An error of the mount helper, a
// timeout and a server that does not answer each have their own code; the password is in
// none of the texts.
func ExampleNode_PublishShare() {
	ops, err := nodeops.New(nodeops.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 110*time.Second) // kubelet's timeout is 120 s
	defer cancel()
	err = ops.PublishShare(ctx, nodeops.PublishShareRequest{
		VolumeID: "vol-1", Source: "//files.example.com/homes", FSType: "cifs", TargetPath: "/pods/a/mount",
		MountFlags: []string{"vers=3.1.1"}, Sensitive: []string{"password=secret"},
	})
	fmt.Println(err)
}

// The kernel sees the new size of a SCSI disk only after a rescan.
func ExampleNode_Expand() {
	ops, err := nodeops.New(nodeops.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	rescan := func(devicePath string) error {
		path, err := filepath.EvalSymlinks(devicePath)
		if err != nil {
			return err
		}
		return os.WriteFile("/sys/class/block/"+filepath.Base(path)+"/device/rescan", []byte("1"), 0)
	}
	size, err := ops.Expand(context.Background(), nodeops.ExpandRequest{
		VolumeID: "vol-1", VolumePath: "/staging/vol-1", RequiredBytes: 10 << 30, Rescan: rescan,
	})
	fmt.Println(size, err)
}

// The operations that hang in the kernel, and since when: for a debug page.
func ExampleNode_InFlight() {
	ops, err := nodeops.New(nodeops.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, call := range ops.InFlight() {
		fmt.Println(call.Key, "since", call.Since, "callers:", call.Waiters)
	}
	fmt.Println(len(ops.InFlight()), "in flight")
	// Output: 0 in flight
}
