package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var backgroundCtx = context.Background()

// volume is one of the demo's volumes, with the paths that kubelet would use.
type volume struct {
	pv             string // the PersistentVolume's name, which is CreateVolume's name too
	fsType         string // "" for raw block
	size, grown    int64
	id             string
	publishContext map[string]string
	sum            string // sha256 of the data that was written first
}

func (v *volume) block() bool { return v.fsType == "" }

func (v *volume) kind() string {
	if v.block() {
		return "block"
	}
	return v.fsType
}

// capability is what kubelet makes of a ReadWriteOnce claim for a driver that
// has SINGLE_NODE_MULTI_WRITER.
func (v *volume) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{
		Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	}}
	if v.block() {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: v.fsType}}
	}
	return c
}

const (
	podA = "11111111-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
	podB = "22222222-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
)

// kubelet stands for kubelet and the sidecars: it makes the directories that they
// make, in their layout, and calls the driver.
type kubelet struct {
	root   string // kubelet's --root-dir
	driver string // the driver's name
	conn   *grpc.ClientConn
	node   csi.NodeClient
	ctrl   csi.ControllerClient
}

func (k *kubelet) plugins() string { return filepath.Join(k.root, "plugins/kubernetes.io/csi") }

func (k *kubelet) stagingPath(v *volume) string {
	if v.block() {
		return filepath.Join(k.plugins(), "volumeDevices/staging", v.pv)
	}
	handle := sha256.Sum256([]byte(v.id))
	return filepath.Join(k.plugins(), k.driver, hex.EncodeToString(handle[:]), "globalmount")
}

func (k *kubelet) targetPath(v *volume, pod string) string {
	if v.block() {
		return filepath.Join(k.plugins(), "volumeDevices/publish", v.pv, pod)
	}
	return filepath.Join(k.root, "pods", pod, "volumes/kubernetes.io~csi", v.pv, "mount")
}

func (k *kubelet) stage(ctx context.Context, v *volume) error {
	path := k.stagingPath(v)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	return call(ctx, "NodeStageVolume", v.kind(), func(ctx context.Context) error {
		_, err := k.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.id, StagingTargetPath: path, VolumeCapability: v.capability(), PublishContext: v.publishContext,
		})
		return err
	})
}

func (k *kubelet) publish(ctx context.Context, v *volume, pod string, readOnly bool) error {
	path := k.targetPath(v, pod)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	what := v.kind() + " to pod " + podName(pod)
	if readOnly {
		what += ", read-only"
	}
	return call(ctx, "NodePublishVolume", what, func(ctx context.Context) error {
		_, err := k.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.id, StagingTargetPath: k.stagingPath(v), TargetPath: path,
			VolumeCapability: v.capability(), PublishContext: v.publishContext, Readonly: readOnly,
		})
		return err
	})
}

func (k *kubelet) unpublish(ctx context.Context, v *volume, pod string) error {
	path := k.targetPath(v, pod)
	err := call(ctx, "NodeUnpublishVolume", v.kind()+" from pod "+podName(pod), func(ctx context.Context) error {
		_, err := k.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: path})
		return err
	})
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s is still there after NodeUnpublishVolume", path)
	}
	removeEmpty(filepath.Dir(path), k.root)
	return nil
}

func (k *kubelet) unstage(ctx context.Context, v *volume) error {
	path := k.stagingPath(v)
	err := call(ctx, "NodeUnstageVolume", v.kind(), func(ctx context.Context) error {
		_, err := k.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: path})
		return err
	})
	if err == nil {
		removeEmpty(path, k.root)
	}
	return err
}

// removeEmpty removes the directory and its parents as far as they are empty.
func removeEmpty(dir, root string) {
	for dir != root && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
}

func podName(pod string) string {
	if pod == podA {
		return "A"
	}
	return "B"
}

// call does one RPC within kubelet's two minutes, prints it with its time, and
// repeats it while the driver says that the outcome is not known yet.
func call(ctx context.Context, rpc, what string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		start := time.Now()
		err := fn(ctx)
		took := time.Since(start)
		line := fmt.Sprintf("  %-26s %-28s %9.1f ms", rpc, what, float64(took.Microseconds())/1000)
		if err == nil {
			fmt.Println(line)
			return nil
		}
		fmt.Printf("%s  %s\n", line, status.Code(err))
		switch status.Code(err) {
		case codes.Aborted, codes.Unavailable:
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond): // kubelet's first backoff
				continue
			}
		}
		return fmt.Errorf("%s (%s): %w", rpc, strings.TrimSpace(what), err)
	}
}
