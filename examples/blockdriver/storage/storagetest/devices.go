package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// DevicesConfig describes the storage under test on a node that is this machine.
type DevicesConfig struct {
	// Open returns a storage without volumes and its devices on this machine, and registers
	// with t.Cleanup what ends them. What it returns as reopen is called once, when no call is
	// in flight, and returns the devices as the next process of the node plugin has them; nil
	// if they do not outlive the process.
	Open func(t *testing.T) (b storage.Backend, d storage.Devices, reopen func() storage.Devices)
	// Node is the name of this machine. Other is another node that exists.
	Node, Other string
	// Size is the size of volumes in bytes. Default: 16 MiB.
	Size int64
	// Parameters are those of the volumes.
	Parameters map[string]string
}

// RunDevices runs the contract of storage.Devices as subtests. Devices appear on this
// machine, so it needs the privileges of the node plugin; it writes to those of its own
// volumes alone.
func RunDevices(t *testing.T, cfg DevicesConfig) {
	cfg.Size = cmp.Or(cfg.Size, 16<<20)
	for _, x := range []struct {
		name string
		test func(*deviceSuite)
	}{
		{"attach", (*deviceSuite).attach}, {"concurrent", (*deviceSuite).concurrent}, {"data", (*deviceSuite).data},
		{"not attached", (*deviceSuite).notAttached}, {"attachment ended", (*deviceSuite).ended}, {"deleted", (*deviceSuite).deleted},
		{"unknown IDs", (*deviceSuite).unknown}, {"rescan", (*deviceSuite).rescan}, {"restart", (*deviceSuite).restart},
	} {
		t.Run(x.name, func(t *testing.T) {
			b, d, reopen := cfg.Open(t)
			x.test(&deviceSuite{
				suite: suite{T: t, Config: Config{Nodes: [2]string{cfg.Node, cfg.Other}, Size: cfg.Size, Parameters: cfg.Parameters}, b: b},
				d:     d, reopen: reopen,
			})
		})
	}
}

type deviceSuite struct {
	suite
	d      storage.Devices
	reopen func() storage.Devices
}

// create creates a volume whose device is gone at the end, also after a failure.
func (s *deviceSuite) create(name string) storage.Volume {
	s.Helper()
	v := s.mustCreate(name)
	s.Cleanup(func() {
		if err := s.d.Detach(context.WithoutCancel(s.Context()), v.ID); err != nil {
			s.Errorf("Detach of volume %s: %v", name, err)
		}
	})
	return v
}

// attached creates a volume and attaches it to this node.
func (s *deviceSuite) attached(name string) storage.DeviceRequest {
	s.Helper()
	return s.attachVolume(s.create(name), 0)
}

func (s *deviceSuite) attachVolume(v storage.Volume, node int) storage.DeviceRequest {
	s.Helper()
	published, err := s.b.AttachVolume(s.Context(), v.ID, s.attachment(node))
	s.must(err)
	return storage.DeviceRequest{VolumeID: v.ID, PublishContext: published, VolumeContext: maps.Clone(v.Context)}
}

// mustAttach returns the path of the device, and checks that it is the volume's.
func (s *deviceSuite) mustAttach(r storage.DeviceRequest) string {
	s.Helper()
	dev, err := s.d.Attach(s.Context(), r)
	s.must(err)
	info, err := os.Stat(dev.Path)
	s.must(err)
	if info.Mode().Type() != os.ModeDevice {
		s.Fatalf("%q is not a block device: %v", dev.Path, info.Mode())
	}
	s.wantFound(r.VolumeID, dev.Path)
	return dev.Path
}

// wantFound checks that Find returns this device, with the size that it has.
func (s *deviceSuite) wantFound(id, path string) {
	s.Helper()
	dev, err := s.d.Find(s.Context(), id)
	s.must(err)
	if dev.Path != path {
		s.Errorf("Find returns %q, Attach %q", dev.Path, path)
	}
	if size := s.sizeOf(path); dev.Size != 0 && dev.Size != size {
		s.Errorf("Find returns %d bytes, the device has %d", dev.Size, size)
	}
}

// wantNone checks that the volume has no device, and that Detach has nothing to do.
func (s *deviceSuite) wantNone(id string) {
	s.Helper()
	_, err := s.d.Find(s.Context(), id)
	s.wants("Find of a volume without a device", err, csierr.NotFound)
	_, err = s.d.Rescan(s.Context(), id, nil)
	s.wants("Rescan of a volume without a device", err, csierr.NotFound)
	s.must(s.d.Detach(s.Context(), id))
}

func (s *deviceSuite) sizeOf(path string) int64 {
	s.Helper()
	f, err := os.Open(path)
	s.must(err)
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	s.must(err)
	return size
}

func (s *deviceSuite) attach() {
	a, b := s.attached("a"), s.attached("b")
	s.wantNone(a.VolumeID) // AttachVolume is the controller's, and makes no device appear
	first, other := s.mustAttach(a), s.mustAttach(b)
	if first == other {
		s.Fatalf("two volumes have the device %q", first)
	}
	if again := s.mustAttach(a); again != first {
		s.Errorf("Attach returns %q on a repeat, and %q at first", again, first)
	}
	if size := s.sizeOf(first); size < s.Size {
		s.Errorf("the device has %d bytes, the volume %d", size, s.Size)
	}
	s.must(s.d.Detach(s.Context(), a.VolumeID))
	s.wantNone(a.VolumeID)
	s.wantFound(b.VolumeID, other)
}

// Several pods on the node start at once.
func (s *deviceSuite) concurrent() {
	r := s.attached("a")
	var wg sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		wg.Go(func() {
			dev, err := s.d.Attach(s.Context(), r)
			if err != nil {
				s.Error(err)
			}
			paths[i] = dev.Path
			if _, err := s.d.Find(s.Context(), r.VolumeID); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	for _, p := range paths {
		if p != paths[0] {
			s.Fatalf("concurrent calls of Attach return different devices: %q", paths)
		}
	}
	s.must(s.d.Detach(s.Context(), r.VolumeID))
	s.wantNone(r.VolumeID) // of a second device as well
}

// What was written is there after the volume was detached and attached again.
func (s *deviceSuite) data() {
	r := s.attached("a")
	want := bytes.Repeat([]byte("csi"), 4096)
	f, err := os.OpenFile(s.mustAttach(r), os.O_WRONLY, 0)
	s.must(err)
	_, err = f.WriteAt(want, s.Size-int64(len(want)))
	s.must(err)
	s.must(f.Close()) // without fsync: it is for Detach to lose nothing
	s.must(s.d.Detach(s.Context(), r.VolumeID))
	s.must(s.b.DetachVolume(s.Context(), r.VolumeID, s.Nodes[0]))
	v, err := s.b.GetVolume(s.Context(), r.VolumeID)
	s.must(err)
	f, err = os.Open(s.mustAttach(s.attachVolume(v, 0)))
	s.must(err)
	defer f.Close()
	got := make([]byte, len(want))
	_, err = f.ReadAt(got, s.Size-int64(len(want)))
	s.must(err)
	if !bytes.Equal(got, want) {
		s.Error("what was written before Detach is lost")
	}
}

// A volume that this node may not use, because it is attached to another one or to none.
func (s *deviceSuite) notAttached() {
	v := s.create("a")
	for what, published := range map[string]map[string]string{
		"that is not attached": nil, "with keys of no storage": {"csikit": "unknown"},
	} {
		s.wantRefused("a volume "+what, storage.DeviceRequest{VolumeID: v.ID, PublishContext: published, VolumeContext: v.Context})
	}
	s.wantRefused("a volume that is attached to another node", s.attachVolume(v, 1))
}

// A stage that arrives late must not use a volume that has been detached: by now it may be
// attached to another node.
func (s *deviceSuite) ended() {
	old := s.attached("a")
	s.mustAttach(old)
	s.must(s.d.Detach(s.Context(), old.VolumeID))
	s.must(s.b.DetachVolume(s.Context(), old.VolumeID, s.Nodes[0]))
	s.wantRefused("a volume that was detached", old)
	v, err := s.b.GetVolume(s.Context(), old.VolumeID)
	s.must(err)
	s.attachVolume(v, 1)
	s.wantRefused("a volume that another node has by now", old)
	s.must(s.b.DetachVolume(s.Context(), old.VolumeID, s.Nodes[1]))
	present := s.attachVolume(v, 0)
	if maps.Equal(present.PublishContext, old.PublishContext) {
		s.Error("two attachments have the same publish context: a stage of the first one that arrives late uses the second")
	} else {
		s.wantRefused("an attachment before the present one", old)
	}
	s.mustAttach(present)
}

// wantRefused checks that Attach fails for good and that no device appears.
func (s *deviceSuite) wantRefused(what string, r storage.DeviceRequest) {
	s.Helper()
	dev, err := s.d.Attach(s.Context(), r)
	switch kind := csierr.KindOf(err); {
	case err == nil:
		s.Errorf("Attach of %s returns %q", what, dev.Path)
	case kind != csierr.Precondition && kind != csierr.Invalid:
		s.Errorf("Attach of %s: the error is %v, want csierr.Precondition", what, err)
	}
	s.wantNone(r.VolumeID)
}

// A volume that is deleted leaves no device, and Detach does not need it.
func (s *deviceSuite) deleted() {
	r := s.attached("a")
	s.mustAttach(r)
	s.must(s.d.Detach(s.Context(), r.VolumeID))
	s.must(s.b.DetachVolume(s.Context(), r.VolumeID, s.Nodes[0]))
	s.must(s.b.DeleteVolume(s.Context(), r.VolumeID))
	_, err := s.d.Attach(s.Context(), r)
	s.wants("Attach of a deleted volume", err, csierr.NotFound)
	s.wantNone(r.VolumeID)
}

func (s *deviceSuite) unknown() {
	for _, id := range []string{"csikit-no-such-volume", "..", "../../csikit", "a/b", "csikit\x00", fmt.Sprintf("%0300d", 7)} {
		_, err := s.d.Attach(s.Context(), storage.DeviceRequest{VolumeID: id, PublishContext: map[string]string{}})
		s.wants(fmt.Sprintf("Attach of the unknown volume %.30q", id), err, csierr.NotFound)
		s.wantNone(id)
	}
}

func (s *deviceSuite) rescan() {
	r := s.attached("a")
	path := s.mustAttach(r)
	if size, err := s.d.Rescan(s.Context(), r.VolumeID, r.Secrets); err != nil || size < s.Size { // nothing to do
		s.Errorf("Rescan returns %d, %v; the volume has %d bytes", size, err, s.Size)
	}
	v, err := s.b.ExpandVolume(s.Context(), r.VolumeID, storage.CapacityRange{Required: 2 * s.Size})
	s.must(err)
	got, err := s.d.Rescan(s.Context(), r.VolumeID, r.Secrets)
	if size := s.sizeOf(path); err != nil || got < v.CapacityBytes || size < v.CapacityBytes {
		s.Errorf("after Rescan, which returns %d, %v, the device has %d bytes, the volume %d", got, err, size, v.CapacityBytes)
	}
	s.wantFound(r.VolumeID, path)
}

// The node plugin was updated while volumes are in use.
func (s *deviceSuite) restart() {
	r, path := s.attached("a"), ""
	path = s.mustAttach(r)
	if s.reopen == nil {
		s.Skip("the devices do not outlive the process")
	}
	s.d = s.reopen()
	s.wantFound(r.VolumeID, path)
	if again := s.mustAttach(r); again != path {
		s.Errorf("after a restart Attach returns %q, before it %q", again, path)
	}
	s.must(s.d.Detach(s.Context(), r.VolumeID))
	s.wantNone(r.VolumeID)
}
