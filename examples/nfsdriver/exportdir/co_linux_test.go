package exportdir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// co is a CO for tests, with short methods for the calls.
type co struct {
	t          *testing.T
	pods       string
	class      map[string]string // parameters
	flags      []string          // mount flags
	controller csi.ControllerClient
	node       csi.NodeClient
	storage    *backend        // of a controller without a server
	timeout    time.Duration   // of each call
	parent     context.Context // of their contexts; nil: none
}

func newCO(t *testing.T, endpoint string, class map[string]string) *co {
	t.Helper()
	quick := grpc.ConnectParams{MinConnectTimeout: 10 * time.Second, Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond}}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(quick), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	pods := t.TempDir()
	t.Cleanup(func() { // what a failed test left
		for _, m := range mountsBelow(t, pods) {
			unix.Unmount(m, unix.MNT_FORCE|unix.MNT_DETACH)
		}
	})
	return &co{t: t, pods: pods, class: class, controller: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn), timeout: 2 * time.Minute}
}

func mountsBelow(t *testing.T, dir string) (points []string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	return points
}

func (c *co) ctx() context.Context {
	parent := c.parent
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	c.t.Cleanup(cancel)
	return ctx
}

// again retries a call while its outcome is not known, as COs do.
func again(do func() error) error {
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := do()
		switch status.Code(err) {
		case codes.Aborted, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			if time.Now().Before(end) {
				continue
			}
		}
		return err
	}
}

func (c *co) capability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: c.flags}},
	}
}

const shared = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER

// create creates a volume. The arguments after the name are pairs of parameters;
// "snapshot" and "volume" name a source, "size" is in bytes.
func (c *co) create(name string, pairs ...string) (*csi.Volume, error) {
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{c.capability(shared)}, Parameters: map[string]string{}}
	for key, value := range c.class {
		req.Parameters[key] = value
	}
	for i := 0; i < len(pairs); i += 2 {
		switch key, value := pairs[i], pairs[i+1]; key {
		case "snapshot":
			req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: value}}}
		case "volume":
			req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: value}}}
		case "size":
			bytes, err := strconv.ParseInt(value, 10, 64)
			must(c.t, err)
			req.CapacityRange = &csi.CapacityRange{RequiredBytes: bytes}
		default:
			req.Parameters[key] = value
		}
	}
	r, err := c.controller.CreateVolume(c.ctx(), req)
	return r.GetVolume(), err
}

func (c *co) mustCreate(name string, pairs ...string) *csi.Volume {
	c.t.Helper()
	v, err := c.create(name, pairs...)
	must(c.t, err)
	return v
}

func (c *co) delete(id string) error {
	_, err := c.controller.DeleteVolume(c.ctx(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (c *co) expand(id string, required, limit int64) (int64, error) {
	r, err := c.controller.ControllerExpandVolume(c.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}})
	if r.GetNodeExpansionRequired() {
		c.t.Error("the nodes have nothing to do")
	}
	return r.GetCapacityBytes(), err
}

func (c *co) snapshot(name, volumeID string) (string, error) {
	r, err := c.controller.CreateSnapshot(c.ctx(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volumeID})
	return r.GetSnapshot().GetSnapshotId(), err
}

func (c *co) deleteSnapshot(id string) error {
	_, err := c.controller.DeleteSnapshot(c.ctx(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func (c *co) target(pod string) string { return filepath.Join(c.pods, pod) }

func (c *co) publish(v *csi.Volume, pod string, change ...func(*csi.NodePublishVolumeRequest)) error {
	req := &csi.NodePublishVolumeRequest{VolumeId: v.GetVolumeId(), VolumeContext: v.GetVolumeContext(), TargetPath: c.target(pod), VolumeCapability: c.capability(shared)}
	for _, f := range change {
		f(req)
	}
	_, err := c.node.NodePublishVolume(c.ctx(), req)
	return err
}

func (c *co) unpublish(v *csi.Volume, pod string) error {
	_, err := c.node.NodeUnpublishVolume(c.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: c.target(pod)})
	return err
}

func (c *co) stats(v *csi.Volume, pod string) error {
	_, err := c.node.NodeGetVolumeStats(c.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: c.target(pod)})
	return err
}

// refused expects this code and text.
func refused(t *testing.T, err error, code codes.Code, words string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), words) {
		t.Errorf("error is %v, want %v with %q", err, code, words)
	}
}

// gone expects a pod's path to be neither mounted nor existing.
func (c *co) gone(pod string) {
	c.t.Helper()
	if m := mountsBelow(c.t, c.pods); len(m) > 0 {
		for _, p := range m {
			if p == c.target(pod) {
				c.t.Errorf("%s is still mounted", p)
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(c.target(pod), &st); !errors.Is(err, unix.ENOENT) {
		c.t.Errorf("%s is still there: %v", c.target(pod), err)
	}
}
