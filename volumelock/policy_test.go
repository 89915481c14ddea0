package volumelock_test

import (
	"fmt"
	"os"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/csikit/csikit/volumelock"
)

func capability(m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: m}}
}

var services = []grpc.ServiceDesc{
	csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc,
	csi.SnapshotMetadata_ServiceDesc, csi.Node_ServiceDesc,
}

// Every RPC of the specification needs a rule.
func TestDefaultPolicyDecidesEveryRPC(t *testing.T) {
	n := 0
	decided := func(service, method string) {
		n++
		if full := "/" + service + "/" + method; !volumelock.Decided(full) {
			t.Errorf("no line in DefaultPolicy for %s", full)
		}
	}
	for _, s := range services {
		for _, m := range s.Methods {
			decided(s.ServiceName, m.MethodName)
		}
		for _, m := range s.Streams {
			decided(s.ServiceName, m.StreamName)
		}
	}
	if got := volumelock.DecidedCount(); got != n {
		t.Errorf("DefaultPolicy has %d lines for %d RPCs", got, n)
	}
	if got := volumelock.DefaultPolicy("/vendor.v1.Service/Method", nil); got != nil {
		t.Errorf("keys for a method outside CSI: %v", got)
	}
}

// policyCase is a call and the keys it takes, "+" before a shared one.
type policyCase struct {
	method string
	req    proto.Message
	want   string
}

func policyCases() []policyCase {
	cases := []policyCase{
		{csi.Identity_GetPluginInfo_FullMethodName, &csi.GetPluginInfoRequest{}, ``},
		{csi.Identity_GetPluginCapabilities_FullMethodName, &csi.GetPluginCapabilitiesRequest{}, ``},
		{csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, ``},

		{csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "n"}, `volume_name "n"`},
		{csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "n", VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "src"}},
		}}, `volume_name "n", +volume "src"`},
		{csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "n", VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snap"}},
		}}, `volume_name "n", +snapshot "snap"`},
		{csi.Controller_DeleteVolume_FullMethodName, &csi.DeleteVolumeRequest{VolumeId: "v"}, `volume "v"`},
		{csi.Controller_ControllerUnpublishVolume_FullMethodName, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: "n"},
			`+volume "v", +attachments "v", attachment "1:v@n"`},
		{csi.Controller_ControllerUnpublishVolume_FullMethodName, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v"},
			`+volume "v", attachments "v"`},
		{csi.Controller_ValidateVolumeCapabilities_FullMethodName, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "v"}, ``},
		{csi.Controller_ListVolumes_FullMethodName, &csi.ListVolumesRequest{}, ``},
		{csi.Controller_ControllerListVolumeHealth_FullMethodName, &csi.ControllerListVolumeHealthRequest{}, ``},
		{csi.Controller_ControllerGetVolumeHealth_FullMethodName, &csi.ControllerGetVolumeHealthRequest{VolumeId: "v"}, ``},
		{csi.Controller_GetCapacity_FullMethodName, &csi.GetCapacityRequest{}, ``},
		{csi.Controller_ControllerGetCapabilities_FullMethodName, &csi.ControllerGetCapabilitiesRequest{}, ``},
		{csi.Controller_CreateSnapshot_FullMethodName, &csi.CreateSnapshotRequest{Name: "n", SourceVolumeId: "v"}, `snapshot_name "n", +volume "v"`},
		{csi.Controller_DeleteSnapshot_FullMethodName, &csi.DeleteSnapshotRequest{SnapshotId: "s"}, `snapshot "s"`},
		{csi.Controller_ListSnapshots_FullMethodName, &csi.ListSnapshotsRequest{SourceVolumeId: "v", SnapshotId: "s"}, ``},
		{csi.Controller_GetSnapshot_FullMethodName, &csi.GetSnapshotRequest{SnapshotId: "s"}, ``},
		{csi.Controller_ControllerExpandVolume_FullMethodName, &csi.ControllerExpandVolumeRequest{VolumeId: "v"}, `volume "v"`},
		{csi.Controller_ControllerGetVolume_FullMethodName, &csi.ControllerGetVolumeRequest{VolumeId: "v"}, ``},
		{csi.Controller_ControllerModifyVolume_FullMethodName, &csi.ControllerModifyVolumeRequest{VolumeId: "v"}, `volume "v"`},

		{csi.GroupController_GroupControllerGetCapabilities_FullMethodName, &csi.GroupControllerGetCapabilitiesRequest{}, ``},
		{csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName, &csi.CreateVolumeGroupSnapshotRequest{Name: "n", SourceVolumeIds: []string{"a", "b"}},
			`group_snapshot_name "n", +volume "a", +volume "b"`},
		{csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"a", "b"}},
			`group_snapshot "g", snapshot "a", snapshot "b"`},
		{csi.GroupController_GetVolumeGroupSnapshot_FullMethodName, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g"}, ``},

		{csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName, &csi.GetMetadataAllocatedRequest{SnapshotId: "s"}, ``},
		{csi.SnapshotMetadata_GetMetadataDelta_FullMethodName, &csi.GetMetadataDeltaRequest{BaseSnapshotId: "s"}, ``},

		{csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}, `volume_on_node "v"`},
		{csi.Node_NodeUnstageVolume_FullMethodName, &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}, `volume_on_node "v"`},
		{csi.Node_NodeUnpublishVolume_FullMethodName, &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/t"}, `+volume_on_node "v", target_path "/t"`},
		{csi.Node_NodeUnpublishVolume_FullMethodName, &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/t//x/"}, `+volume_on_node "v", target_path "/t/x"`},
		{csi.Node_NodeGetVolumeStats_FullMethodName, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/t"}, ``},
		{csi.Node_NodeGetVolumeHealth_FullMethodName, &csi.NodeGetVolumeHealthRequest{VolumeId: "v"}, ``},
		{csi.Node_NodeGetStorageHealth_FullMethodName, &csi.NodeGetStorageHealthRequest{}, ``},
		{csi.Node_NodeExpandVolume_FullMethodName, &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/t"}, `volume_on_node "v"`},
		{csi.Node_NodeGetCapabilities_FullMethodName, &csi.NodeGetCapabilitiesRequest{}, ``},
		{csi.Node_NodeGetInfo_FullMethodName, &csi.NodeGetInfoRequest{}, ``},
	}

	// By access mode, the last one being unknown to this release.
	const newer = csi.VolumeCapability_AccessMode_Mode(99)
	for mode, want := range map[csi.VolumeCapability_AccessMode_Mode]struct{ attach, attachReadonly, publish string }{
		csi.VolumeCapability_AccessMode_UNKNOWN:                   {"", "", ""},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        {"", "", ""},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   {"", "", ""},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: {"", "", ""},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  {"", "", "+"},
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    {"+", "+", "+"},
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  {"", "+", "+"},
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   {"+", "+", "+"},
		newer: {"", "", ""},
	} {
		cases = append(cases,
			policyCase{csi.Controller_ControllerPublishVolume_FullMethodName,
				&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: capability(mode)},
				`+volume "v", ` + want.attach + `attachments "v", attachment "1:v@n"`},
			policyCase{csi.Controller_ControllerPublishVolume_FullMethodName,
				&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: capability(mode), Readonly: true},
				`+volume "v", ` + want.attachReadonly + `attachments "v", attachment "1:v@n"`},
			policyCase{csi.Node_NodePublishVolume_FullMethodName,
				&csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/t/", VolumeCapability: capability(mode)},
				want.publish + `volume_on_node "v", target_path "/t"`})
	}
	return cases
}

func TestDefaultPolicy(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range policyCases() {
		seen[tt.method] = true
		var got []string
		for _, r := range volumelock.DefaultPolicy(tt.method, tt.req) {
			s := r.Key.String()
			if r.Mode == volumelock.Shared {
				s = "+" + s
			}
			got = append(got, s)
		}
		if g := strings.Join(got, ", "); g != tt.want {
			t.Errorf("%s(%v)\n takes %s\n want  %s", tt.method, tt.req, g, tt.want)
		}

		// An invalid request takes no key that others could meet.
		empty := tt.req.ProtoReflect().New().Interface()
		if got := volumelock.DefaultPolicy(tt.method, empty); len(got) != 0 {
			t.Errorf("%s without any field takes %v", tt.method, got)
		}
	}
	for _, s := range services {
		for _, m := range s.Methods {
			if full := "/" + s.ServiceName + "/" + m.MethodName; !seen[full] {
				t.Errorf("no case for %s", full)
			}
		}
	}
}

// The table in the package's documentation is what DefaultPolicy does.
func TestDocumentedPolicy(t *testing.T) {
	type line map[volumelock.Kind]string // "", "+" or "±"
	want := map[string]line{}
	for _, tt := range policyCases() {
		for _, r := range volumelock.DefaultPolicy(tt.method, tt.req) {
			rpc := path.Base(tt.method)
			if want[rpc] == nil {
				want[rpc] = line{}
			}
			mode := map[volumelock.Mode]string{volumelock.Exclusive: "", volumelock.Shared: "+"}[r.Mode]
			if before, ok := want[rpc][r.Key.Kind]; ok && before != mode {
				mode = "±"
			}
			want[rpc][r.Key.Kind] = mode
		}
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]volumelock.Kind{}
	for k := volumelock.KindVolume; k <= volumelock.KindGroupSnapshotName; k++ {
		kinds[k.String()] = k
	}
	got := map[string]line{}
	remark := regexp.MustCompile(` \([^)]*\)`)
	for text := range strings.Lines(string(doc)) {
		words := strings.Fields(remark.ReplaceAllString(text, ""))
		if !strings.HasPrefix(text, "//\t") || len(words) < 3 {
			continue
		}
		l := line{}
		for _, w := range words[2:] {
			kind := strings.TrimLeft(w, "+±")
			if kinds[kind] == 0 {
				t.Errorf("doc.go: there is no kind %q", kind)
			}
			l[kinds[kind]] = strings.TrimSuffix(w, kind)
		}
		got[words[1]] = l
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("doc.go says\n%v\nDefaultPolicy does\n%v", got, want)
	}
}

// What may and may not run at the same time, in the words of a driver's author.
func TestDefaultPolicyPairs(t *testing.T) {
	const (
		rwo = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		rwx = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	)
	type call struct {
		method string
		req    any
	}
	attach := func(node string, m csi.VolumeCapability_AccessMode_Mode) call {
		return call{csi.Controller_ControllerPublishVolume_FullMethodName,
			&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: node, VolumeCapability: capability(m)}}
	}
	detach := func(node string) call {
		return call{csi.Controller_ControllerUnpublishVolume_FullMethodName, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: node}}
	}
	publish := func(target string, m csi.VolumeCapability_AccessMode_Mode) call {
		return call{csi.Node_NodePublishVolume_FullMethodName,
			&csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target, VolumeCapability: capability(m)}}
	}
	clone := func(name string) call {
		return call{csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: name, VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}}}}
	}
	restore := call{csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "r", VolumeContentSource: &csi.VolumeContentSource{
		Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}}}
	snapshot := func(name string) call {
		return call{csi.Controller_CreateSnapshot_FullMethodName, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: "v"}}
	}
	group := call{csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v", "w"}}}
	deleteGroup := call{csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s"}}}
	deleteVolume := call{csi.Controller_DeleteVolume_FullMethodName, &csi.DeleteVolumeRequest{VolumeId: "v"}}
	deleteSnapshot := call{csi.Controller_DeleteSnapshot_FullMethodName, &csi.DeleteSnapshotRequest{SnapshotId: "s"}}
	expand := call{csi.Controller_ControllerExpandVolume_FullMethodName, &csi.ControllerExpandVolumeRequest{VolumeId: "v"}}
	modify := call{csi.Controller_ControllerModifyVolume_FullMethodName, &csi.ControllerModifyVolumeRequest{VolumeId: "v"}}
	stage := call{csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{VolumeId: "v"}}
	unstage := call{csi.Node_NodeUnstageVolume_FullMethodName, &csi.NodeUnstageVolumeRequest{VolumeId: "v"}}
	nodeExpand := call{csi.Node_NodeExpandVolume_FullMethodName, &csi.NodeExpandVolumeRequest{VolumeId: "v"}}
	unpublish := func(target string) call {
		return call{csi.Node_NodeUnpublishVolume_FullMethodName, &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}}
	}

	tests := []struct {
		name     string
		a, b     call
		excluded bool
	}{
		{"two pods of a shared volume", publish("/1", rwx), publish("/2", rwx), false},
		{"two pods of a single-writer volume", publish("/1", rwo), publish("/2", rwo), true},
		{"one target twice", publish("/1", rwx), publish("/1", rwx), true},
		{"publish and unpublish of one target", publish("/1", rwx), unpublish("/1"), true},
		{"publish and unpublish of two pods", publish("/1", rwx), unpublish("/2"), false},
		{"two pods going", unpublish("/1"), unpublish("/2"), false},
		{"stage and unstage", stage, unstage, true},
		{"stage and publish", stage, publish("/1", rwx), true},
		{"unpublish and unstage", unpublish("/1"), unstage, true},
		{"node expand and publish", nodeExpand, publish("/1", rwx), true},

		{"two attaches, single node", attach("1", rwo), attach("2", rwo), true},
		{"two attaches, many nodes", attach("1", rwx), attach("2", rwx), false},
		{"one attach twice", attach("1", rwx), attach("1", rwx), true},
		{"attach and detach of one node", attach("1", rwx), detach("1"), true},
		{"attach and detach of two nodes", attach("1", rwx), detach("2"), false},
		{"move: detach there, attach here", detach("1"), attach("2", rwo), true},
		{"detach from all and attach", detach(""), attach("1", rwx), true},
		{"detach from all and detach", detach(""), detach("1"), true},
		{"attach and delete", attach("1", rwx), deleteVolume, true},
		{"attach during a snapshot", attach("1", rwo), snapshot("a"), false},
		{"attach and expand", attach("1", rwx), expand, true},

		{"two clones", clone("a"), clone("b"), false},
		{"one clone twice", clone("a"), clone("a"), true},
		{"clone and delete of its source", clone("a"), deleteVolume, true},
		{"restore and delete of its snapshot", restore, deleteSnapshot, true},
		{"restore and delete of its group", restore, deleteGroup, true},
		{"two snapshots of a volume", snapshot("a"), snapshot("b"), false},
		{"one snapshot twice", snapshot("a"), snapshot("a"), true},
		{"snapshot and group snapshot", snapshot("a"), group, false},
		{"group snapshot twice", group, group, true},
		{"group snapshot and delete of a member", group, deleteVolume, true},
		{"snapshot and delete of a volume", snapshot("a"), deleteVolume, true},
		{"expand and modify", expand, modify, true},
		{"delete of a group and of a member", deleteGroup, deleteSnapshot, true},

		// One process may be controller and node.
		{"controller expand and node expand", expand, nodeExpand, false},
		{"attach elsewhere and stage here", attach("2", rwo), stage, false},
		{"controller modify and unpublish", modify, unpublish("/1"), false},
		{"snapshot and unstage", snapshot("a"), unstage, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, pair := range [][2]call{{tt.a, tt.b}, {tt.b, tt.a}} {
				var table volumelock.Table
				mustAcquire(t, &table, volumelock.Op{}, volumelock.DefaultPolicy(pair[0].method, pair[0].req)...)
				_, err := table.Acquire(volumelock.Op{}, volumelock.DefaultPolicy(pair[1].method, pair[1].req)...)
				if (err != nil) != tt.excluded {
					t.Errorf("%s beside %s: %v, want excluded %v", pair[1].method, pair[0].method, err, tt.excluded)
				}
			}
		})
	}
}

// A request of another type is a bug in the caller; it must not run unlocked.
func TestDefaultPolicyWrongRequest(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "NodeStageVolumeRequest") {
			t.Errorf("recover = %v, want a panic that names the type", r)
		}
	}()
	volumelock.DefaultPolicy(csi.Node_NodeStageVolume_FullMethodName, &csi.NodeUnstageVolumeRequest{VolumeId: "v"})
}
