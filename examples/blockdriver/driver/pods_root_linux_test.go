package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc"
)

// meeting is a storage that holds each Attach of a publication until all are there.
type meeting struct {
	*memory.Memory
	storage.Devices
	open     atomic.Bool
	seats    int64
	inside   atomic.Int64
	complete chan struct{}
}

func (m *meeting) OpenDevices(ctx context.Context, env storage.NodeEnv) (_ storage.Devices, err error) {
	m.Devices, err = m.Memory.OpenDevices(ctx, env)
	return m, err
}

func (m *meeting) Attach(ctx context.Context, r storage.DeviceRequest) (nodeops.Device, error) {
	if m.open.Load() {
		if m.inside.Add(1) == m.seats {
			close(m.complete)
		}
		select {
		case <-m.complete:
		case <-ctx.Done():
			return nodeops.Device{}, ctx.Err()
		}
	}
	return m.Devices.Attach(ctx, r)
}

// kubernetes-csi/csi-driver-nfs#200, ceph/ceph-csi#2123: pods that share a volume were
// refused for each other. Here 200 of them come concurrently, as a CO that is not
// kubelet may send them, and go concurrently, as kubelet does send them. Each publication is
// held inside the storage until every other one has arrived there: with a lock per volume
// they never would, and the calls would be refused.
func TestPodsOfOneVolume(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	const pods = 200
	dir := t.TempDir()
	m := &meeting{Memory: memory.New(), seats: pods, complete: make(chan struct{})}
	conn := dial(t, strings.TrimPrefix(serveMode(t, dir, m), "unix://"))
	controller, node := csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	capability := mountCap("ext4", multiWriter)
	v, err := controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "a", VolumeCapabilities: caps(capability), CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib},
	}, grpc.WaitForReady(true))
	must(t, err)
	id, staging := v.GetVolume().GetVolumeId(), filepath.Join(dir, "staging")
	attached, err := controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "node", VolumeCapability: capability})
	must(t, err)
	must(t, os.Mkdir(staging, 0o700))
	_, err = node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability, PublishContext: attached.GetPublishContext(),
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(staging, "data"), []byte("shared"), 0o600))

	target := func(pod int) string { return filepath.Join(dir, fmt.Sprint("pod", pod)) }
	each := func(call func(pod int) error) {
		t.Helper()
		var calls sync.WaitGroup
		for pod := range pods {
			calls.Go(func() {
				if err := call(pod); err != nil {
					t.Errorf("pod %d: %v", pod, err)
				}
			})
		}
		calls.Wait()
	}
	m.open.Store(true)
	each(func(pod int) error {
		_, err := node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: id, StagingTargetPath: staging, TargetPath: target(pod), VolumeCapability: capability, PublishContext: attached.GetPublishContext(),
		})
		return err
	})
	if n := m.inside.Load(); n != pods {
		t.Errorf("%d publications were in the storage concurrently, want %d", n, pods)
	}
	for pod := range pods {
		if data, err := os.ReadFile(filepath.Join(target(pod), "data")); err != nil || string(data) != "shared" {
			t.Errorf("pod %d reads %q, %v", pod, data, err)
		}
	}
	each(func(pod int) error {
		_, err := node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target(pod)})
		return err
	})
	_, err = node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	must(t, err)
}
