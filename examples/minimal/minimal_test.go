package main

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%v, want %v", err, want)
	}
}

func capability(fsType string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}}
	if fsType == "block" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}
	}
	return c
}

func newController(t *testing.T, dir string) *controller {
	t.Helper()
	s, err := openStore(dir)
	if err != nil {
		t.Skip(err) // not on this system
	}
	t.Cleanup(func() { s.dir.Close() }) // gate reports what no garbage collection has closed
	return &controller{store: s, nodeID: "node"}
}

func (c *controller) make(t *testing.T, name, fsType string, bytes int64) (id string) {
	t.Helper()
	resp, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability(fsType)}, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})
	must(t, err)
	return resp.GetVolume().GetVolumeId()
}

func (c *controller) publish(ctx context.Context, id, node, fsType string) error {
	_, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability(fsType)})
	return err
}

// A start removes what a kill has left of the driver's own files, and nothing else.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	c := newController(t, dir)
	id := c.make(t, "x", "ext4", 0)
	must(t, c.publish(t.Context(), id, "node", "ext4"))
	foreign := []string{"x.img", "x.tmp", "vol-.tmp", "vol-1.tmp", strings.ToLower(id) + ".tmp"}
	for _, name := range append(foreign, id+".tmp") {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	_ = newController(t, dir)
	for _, name := range append(foreign, id+".img", id+".attached") {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, id+".tmp")); !os.IsNotExist(err) {
		t.Errorf("the unfinished file: %v", err)
	}
}

// A delete that comes late does not reach the successor of the volume.
func TestLateDelete(t *testing.T) {
	c := newController(t, t.TempDir())
	old := c.make(t, "x", "ext4", 0)
	for range 2 {
		_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: old})
		must(t, err)
	}
	id := c.make(t, "x", "block", 0)
	_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: old})
	must(t, err)
	if again := c.make(t, "x", "block", 0); again != id {
		t.Errorf("%s became %s", id, again)
	}
}

// A volume that is attached to a node keeps others away, and is not deleted.
func TestFencing(t *testing.T) {
	dir := t.TempDir()
	c := newController(t, dir)
	id := c.make(t, "x", "ext4", 0)
	must(t, c.publish(t.Context(), id, "node", "ext4"))
	wantCode(t, c.publish(t.Context(), id, "other", "ext4"), codes.NotFound)

	other := &controller{store: c.store, nodeID: "other"}
	err := other.publish(t.Context(), id, "other", "ext4")
	wantCode(t, err, codes.FailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), `"node"`) {
		t.Errorf("%v does not name the node", err)
	}
	_, err = (&node{store: c.store, id: "other"}).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, VolumeCapability: capability("ext4")})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "other"})
	must(t, err)
	must(t, c.publish(t.Context(), id, "node", "ext4"))
	wantCode(t, other.publish(t.Context(), id, "other", "ext4"), codes.FailedPrecondition)
}

// No size makes anything overflow, and no failure leaves a file.
func TestHugeCapacity(t *testing.T) {
	dir := t.TempDir()
	c := newController(t, dir)
	for _, r := range []*csi.CapacityRange{
		{RequiredBytes: math.MaxInt64}, {RequiredBytes: math.MaxInt64 - mib, LimitBytes: math.MaxInt64}, {RequiredBytes: 1 << 62}, {LimitBytes: 1},
	} {
		_, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "x", CapacityRange: r, VolumeCapabilities: []*csi.VolumeCapability{capability("ext4")}})
		wantCode(t, err, codes.OutOfRange)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left: %v, %v", files, err)
	}
	id := c.make(t, "x", "ext4", 0)
	_, err := c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: math.MaxInt64}})
	wantCode(t, err, codes.OutOfRange)
}

// What is not an ID never becomes a path.
func TestHostileIDs(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "volumes"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "x.img"), nil, 0o600))
	c := newController(t, filepath.Join(dir, "volumes"))
	for _, id := range []string{"../x", "x", "", "vol-", c.make(t, "x", "ext4", 0) + "\n"} {
		_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		must(t, err)
		_, err = (&node{store: c.store}).NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id})
		wantCode(t, err, codes.NotFound)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.img")); err != nil {
		t.Error(err)
	}
}

// Pages are in order, and complete for what exists throughout.
func TestPages(t *testing.T) {
	c := newController(t, t.TempDir())
	want := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		want[c.make(t, name, "block", 0)] = true
	}
	token := ""
	for page := 0; ; page++ {
		resp, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		must(t, err)
		for _, e := range resp.GetEntries() {
			if !want[e.GetVolume().GetVolumeId()] {
				t.Errorf("page %d has %s", page, e)
			}
			delete(want, e.GetVolume().GetVolumeId())
		}
		if page == 0 { // the volume that the token names may go
			_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: resp.GetNextToken()})
			must(t, err)
		}
		if token = resp.GetNextToken(); token == "" {
			break
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
	_, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "x"})
	wantCode(t, err, codes.Aborted)
}

// Reads need no lock: a list during creates and deletes has what exists throughout, without errors.
func TestListDuringChanges(t *testing.T) {
	c := newController(t, t.TempDir())
	kept := c.make(t, "kept", "block", 0)
	var changes sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		changes.Go(func() {
			for range 50 {
				id := c.make(t, name, "block", 0)
				if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		resp, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		must(t, err)
		found := 0
		for _, e := range resp.GetEntries() {
			if e.GetVolume().GetVolumeId() == kept {
				found++
			}
		}
		if found != 1 {
			t.Errorf("the volume is listed %d times", found)
		}
	}
	changes.Wait()
}
