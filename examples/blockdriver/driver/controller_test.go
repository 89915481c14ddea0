package driver

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	writer      = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	reader      = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	multiWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	everywhere  = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

func mountCap(fsType string, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
	}
}

func blockCap(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func groupCap() *csi.VolumeCapability {
	c := mountCap("", writer)
	c.GetMount().VolumeMountGroup = "1000"
	return c
}

func caps(c ...*csi.VolumeCapability) []*csi.VolumeCapability { return c }

// testController serves an empty storage that has the nodes n1 and n2.
func testController(t *testing.T) *controller {
	t.Helper()
	m := memory.New()
	b, err := m.OpenBackend(t.Context(), storage.Env{})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	for _, id := range []string{"n1", "n2"} {
		_, err := m.OpenDevices(t.Context(), storage.NodeEnv{NodeID: id})
		must(t, err)
	}
	return newController(b)
}

func (c *controller) mustCreate(t *testing.T, name string, capabilities ...*csi.VolumeCapability) string {
	t.Helper()
	resp, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: capabilities})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetVolume().GetVolumeId()
}

func TestControllerCreateVolume(t *testing.T) {
	tests := []struct {
		name  string
		req   *csi.CreateVolumeRequest
		code  codes.Code
		texts []string
		want  string // access type
		size  int64  // 0: the default
	}{
		{name: "default file system", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer))}, want: "ext4"},
		{name: "xfs", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("xfs", reader))}, want: "xfs"},
		{name: "block", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(blockCap(multiWriter))}, want: "block"},
		{name: "all modes", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(
			mountCap("", writer), mountCap("ext4", reader), mountCap("", multiWriter),
			mountCap("", csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER),
		)}, want: "ext4"},
		{name: "keys of Kubernetes", req: &csi.CreateVolumeRequest{
			VolumeCapabilities: caps(mountCap("", writer)),
			Parameters:         map[string]string{"csi.storage.k8s.io/pvc/name": "claim"},
		}, want: "ext4"},
		{name: "unknown parameters", req: &csi.CreateVolumeRequest{
			VolumeCapabilities: caps(mountCap("", writer)),
			Parameters:         map[string]string{"tier": "gold", "color": "red"},
		}, code: codes.InvalidArgument, texts: []string{"parameters"}},
		{name: "other file system", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("btrfs", writer))},
			code: codes.InvalidArgument, texts: []string{`"btrfs"`, "ext4, xfs"}},
		{name: "multi node", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", everywhere))},
			code: codes.InvalidArgument, texts: []string{"MULTI_NODE_MULTI_WRITER"}},
		{name: "multi node among others", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(blockCap(writer), blockCap(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY))},
			code: codes.InvalidArgument},
		{name: "block and mount", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer), blockCap(writer))},
			code: codes.InvalidArgument, texts: []string{"both ext4 and block"}},
		{name: "two file systems", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("xfs", writer), mountCap("", writer))},
			code: codes.InvalidArgument, texts: []string{"both xfs and ext4"}},
		{name: "mount group", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(groupCap())},
			code: codes.InvalidArgument, texts: []string{"volume_mount_group"}},
		{name: "source", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer)), VolumeContentSource: &csi.VolumeContentSource{}},
			code: codes.InvalidArgument, texts: []string{"volume_content_source"}},
		{name: "volume as source", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer)), VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{}}},
			code: codes.InvalidArgument, texts: []string{"volume_content_source"}},
		{name: "snapshot as source", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer)), VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{}}},
			code: codes.InvalidArgument, texts: []string{"volume_content_source"}},
		{name: "limit below the minimum", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("xfs", writer)), CapacityRange: &csi.CapacityRange{LimitBytes: mib}},
			code: codes.OutOfRange, texts: []string{"minimum"}},
		// Kubernetes' own storage suite asks for 1 MiB.
		{name: "ext4 of 1 MiB", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer)), CapacityRange: &csi.CapacityRange{RequiredBytes: mib}}, want: "ext4", size: 16 * mib},
		{name: "xfs of 1 MiB", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("xfs", writer)), CapacityRange: &csi.CapacityRange{RequiredBytes: mib}}, want: "xfs", size: 300 * mib},
		{name: "xfs of 1 MiB to 300 MiB", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("xfs", writer)), CapacityRange: &csi.CapacityRange{RequiredBytes: mib, LimitBytes: 300 * mib}}, want: "xfs", size: 300 * mib},
		{name: "ext4 of 1 MiB exactly", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("", writer)), CapacityRange: &csi.CapacityRange{RequiredBytes: mib, LimitBytes: mib}},
			code: codes.OutOfRange, texts: []string{"limit_bytes"}},
		{name: "xfs of less than its minimum", req: &csi.CreateVolumeRequest{VolumeCapabilities: caps(mountCap("xfs", writer)), CapacityRange: &csi.CapacityRange{RequiredBytes: mib, LimitBytes: 300*mib - 1}},
			code: codes.OutOfRange, texts: []string{"limit_bytes"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := testController(t)
			test.req.Name = "a"
			resp, err := c.CreateVolume(t.Context(), test.req)
			if test.code != codes.OK {
				wantCode(t, err, test.code, test.texts...)
				if left, _, err := c.backend.ListVolumes(t.Context(), "", 0); err != nil || len(left) > 0 {
					t.Errorf("after an error there are %v, %v", left, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.GetVolume(); got.GetVolumeId() == "" || got.GetCapacityBytes() != cmp.Or(test.size, gib) {
				t.Errorf("got %v", got)
			}
			v, err := c.backend.GetVolume(t.Context(), resp.GetVolume().GetVolumeId())
			if err != nil || v.AccessType != test.want || len(v.Parameters) != 0 {
				t.Errorf("volume %+v, %v; want access type %s", v, err, test.want)
			}
			again, err := c.CreateVolume(t.Context(), test.req)
			if err != nil || !proto.Equal(again, resp) {
				t.Errorf("repeat: %v, %v; first: %v", again, err, resp)
			}
		})
	}
}

func TestControllerPublishVolume(t *testing.T) {
	c := testController(t)
	id, raw := c.mustCreate(t, "a", mountCap("xfs", writer)), c.mustCreate(t, "raw", blockCap(writer))
	publish := func(id, node string, capability *csi.VolumeCapability, change ...func(*csi.ControllerPublishVolumeRequest)) (*csi.ControllerPublishVolumeResponse, error) {
		req := &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability}
		for _, f := range change {
			f(req)
		}
		return c.ControllerPublishVolume(context.Background(), req)
	}
	readonly := func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true }
	fromKubernetes := func(r *csi.ControllerPublishVolumeRequest) {
		r.VolumeContext = map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x"}
	}

	for _, test := range []struct {
		name       string
		id, node   string
		capability *csi.VolumeCapability
		code       codes.Code
		text       string
	}{
		{"no volume", "vol-b", "n1", mountCap("xfs", writer), codes.NotFound, "vol-b"},
		{"no volume, mode of no volume", "vol-b", "n1", mountCap("xfs", everywhere), codes.InvalidArgument, "MULTI_NODE_MULTI_WRITER"},
		{"no node", id, "n3", mountCap("xfs", writer), codes.NotFound, `"n3"`},
		{"mode", id, "n1", mountCap("xfs", everywhere), codes.InvalidArgument, "MULTI_NODE_MULTI_WRITER"},
		{"block use of a file system", id, "n1", blockCap(writer), codes.InvalidArgument, "as xfs and cannot be used as block"},
		{"mount of a block volume", raw, "n1", mountCap("", writer), codes.InvalidArgument, "as block and cannot be used as ext4"},
		{"other file system", id, "n1", mountCap("ext4", writer), codes.InvalidArgument, "as xfs and cannot be used as ext4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := publish(test.id, test.node, test.capability)
			wantCode(t, err, test.code, test.text)
		})
	}
	_, err := publish(id, "n1", mountCap("xfs", writer), func(r *csi.ControllerPublishVolumeRequest) {
		r.VolumeContext = map[string]string{"server": "secret"}
	})
	wantCode(t, err, codes.InvalidArgument, `"server"`)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the value is in the error: %v", err)
	}

	for range 2 {
		resp, err := publish(id, "n1", mountCap("xfs", writer), fromKubernetes)
		if err != nil || resp.GetPublishContext()["attachment"] == "" || resp.GetPublishContext()[keyAccessType] != "xfs" || len(resp.GetPublishContext()) != 5 {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	_, err = publish(id, "n1", mountCap("xfs", writer), readonly)
	wantCode(t, err, codes.AlreadyExists, "readonly")
	_, err = publish(id, "n1", mountCap("xfs", multiWriter))
	wantCode(t, err, codes.AlreadyExists, "SINGLE_NODE_MULTI_WRITER")
	_, err = publish(id, "n2", mountCap("xfs", writer))
	wantCode(t, err, codes.FailedPrecondition, `"n1"`)
	_, err = c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	wantCode(t, err, codes.FailedPrecondition, `"n1"`)

	// A reader-only mode is read-only with or without the flag.
	if _, err := publish(raw, "n2", blockCap(reader)); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(raw, "n2", blockCap(reader), readonly); err != nil {
		t.Error(err)
	}

	for _, node := range []string{"n2", "gone", "n1", "n1", ""} {
		if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node}); err != nil {
			t.Fatalf("unpublish from %q: %v", node, err)
		}
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "vol-b", NodeId: "n1"}); err != nil {
		t.Error(err)
	}
	if _, err := publish(id, "n2", mountCap("xfs", writer)); err != nil {
		t.Errorf("after unpublish: %v", err)
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: raw}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: raw}); err != nil {
			t.Error(err)
		}
	}
}

func TestControllerExpandVolume(t *testing.T) {
	c := testController(t)
	id, raw := c.mustCreate(t, "a", mountCap("", writer)), c.mustCreate(t, "raw", blockCap(writer))
	tests := []struct {
		name            string
		id              string
		required, limit int64
		capability      *csi.VolumeCapability
		code            codes.Code
		want            int64
	}{
		{"unknown", "vol-b", gib, 0, nil, codes.NotFound, 0},
		{"unknown with capability", "vol-b", gib, 0, mountCap("", writer), codes.NotFound, 0},
		{"other capability", id, 2 * gib, 0, blockCap(writer), codes.InvalidArgument, 0},
		{"unsupported capability", id, 2 * gib, 0, mountCap("", everywhere), codes.InvalidArgument, 0},
		{"beyond the pool", id, 1 << 41, 0, nil, codes.OutOfRange, 0},
		{"shrink", id, 0, mib, nil, codes.OutOfRange, 0},
		{"grow", id, 2 * gib, 2 * gib, mountCap("ext4", writer), codes.OK, 2 * gib},
		{"again", id, 2 * gib, 0, nil, codes.OK, 2 * gib},
		{"less", id, gib, 0, nil, codes.OK, 2 * gib},
		{"block", raw, 3 * gib, 0, blockCap(writer), codes.OK, 3 * gib},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resp, err := c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: test.id, VolumeCapability: test.capability,
				CapacityRange: &csi.CapacityRange{RequiredBytes: test.required, LimitBytes: test.limit},
			})
			if test.code != codes.OK {
				wantCode(t, err, test.code)
				return
			}
			if err != nil || resp.GetCapacityBytes() != test.want || !resp.GetNodeExpansionRequired() {
				t.Errorf("%v, %v; want %d bytes and node expansion", resp, err, test.want)
			}
		})
	}
}

func TestControllerValidateVolumeCapabilities(t *testing.T) {
	c := testController(t)
	id := c.mustCreate(t, "a", mountCap("", writer))
	tests := []struct {
		name string
		req  *csi.ValidateVolumeCapabilitiesRequest
		text string // empty: confirmed
	}{
		{"same", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(mountCap("ext4", writer), mountCap("", reader))}, ""},
		{"context and parameters of Kubernetes", &csi.ValidateVolumeCapabilitiesRequest{
			VolumeCapabilities: caps(mountCap("", writer)),
			VolumeContext:      map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x"},
			Parameters:         map[string]string{"csi.storage.k8s.io/pv/name": "x"},
		}, ""},
		{"mode", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(mountCap("", writer), mountCap("", everywhere))}, "MULTI_NODE_MULTI_WRITER"},
		{"block", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(blockCap(writer))}, "cannot be used as block"},
		{"file system", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(mountCap("xfs", writer))}, "cannot be used as xfs"},
		{"long name", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(mountCap(strings.Repeat("ä", 60), writer))}, "fs_type"},
		{"mount group", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(groupCap())}, "volume_mount_group"},
		{"context", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(mountCap("", writer)), VolumeContext: map[string]string{"a": "b"}}, "volume_context"},
		{"parameters", &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: caps(mountCap("", writer)), Parameters: map[string]string{"a": "b"}}, "parameters"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.req.VolumeId = id
			resp, err := c.ValidateVolumeCapabilities(t.Context(), test.req)
			if err != nil {
				t.Fatal(err)
			}
			if test.text == "" {
				want := &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
					VolumeCapabilities: test.req.GetVolumeCapabilities(),
					VolumeContext:      test.req.GetVolumeContext(),
					Parameters:         test.req.GetParameters(),
				}}
				if !proto.Equal(resp, want) {
					t.Errorf("got %v, want %v", resp, want)
				}
				return
			}
			m := resp.GetMessage()
			if resp.GetConfirmed() != nil || !strings.Contains(m, test.text) || len(m) > 128 || !utf8.ValidString(m) {
				t.Errorf("got %v (message of %d bytes), want unconfirmed because of %q", resp, len(m), test.text)
			}
		})
	}
	_, err := c.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: "vol-b", VolumeCapabilities: caps(mountCap("", everywhere)),
	})
	wantCode(t, err, codes.NotFound)
}

// capabilitiesOf returns the capabilities of a controller in the order of their numbers.
func capabilitiesOf(t *testing.T, c *controller) (types []csi.ControllerServiceCapability_RPC_Type) {
	t.Helper()
	resp, err := c.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	must(t, err)
	for _, got := range resp.GetCapabilities() {
		types = append(types, got.GetRpc().GetType())
	}
	slices.Sort(types)
	return types
}

// adds checks which capabilities an interface of the storage adds to those of one without.
func adds(t *testing.T, b storage.Backend, want ...csi.ControllerServiceCapability_RPC_Type) {
	t.Helper()
	base := capabilitiesOf(t, testController(t))
	got := slices.DeleteFunc(capabilitiesOf(t, newController(b)), func(c csi.ControllerServiceCapability_RPC_Type) bool {
		return slices.Contains(base, c)
	})
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("%T adds the capabilities %v, want %v", b, got, want)
	}
}

func TestControllerGetCapabilities(t *testing.T) {
	c := testController(t)
	want := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if got := capabilitiesOf(t, c); slices.ContainsFunc(want, func(w csi.ControllerServiceCapability_RPC_Type) bool { return !slices.Contains(got, w) }) {
		t.Errorf("the capabilities are %v, want at least %v", got, want)
	}
}
