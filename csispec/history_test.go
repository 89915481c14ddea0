package csispec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
)

func TestHistory(t *testing.T) {
	type call struct {
		req, resp proto.Message
		want      []string
	}
	context := func(v string) map[string]string { return map[string]string{"pool": v, "same": "s3cret"} }
	created := func(name, id, pool string) call {
		return call{req: &csi.CreateVolumeRequest{Name: name}, resp: &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, VolumeContext: context(pool)}}}
	}
	published := func(volume, node, v string) call {
		return call{req: &csi.ControllerPublishVolumeRequest{VolumeId: volume, NodeId: node}, resp: &csi.ControllerPublishVolumeResponse{PublishContext: context(v)}}
	}
	unpublished := func(volume, node string) call {
		return call{req: &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node}, resp: &csi.ControllerUnpublishVolumeResponse{}}
	}
	plugin := func(types ...csi.PluginCapability_Service_Type) call {
		m := &csi.GetPluginCapabilitiesResponse{}
		for _, c := range types {
			m.Capabilities = append(m.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: c}}})
		}
		return call{req: &csi.GetPluginCapabilitiesRequest{}, resp: m}
	}
	node := func(kv ...string) call {
		return call{req: &csi.NodeGetInfoRequest{}, resp: &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: segments(kv...)}}
	}
	snapshotOf := func(name, id string) call {
		return call{req: &csi.CreateSnapshotRequest{Name: name}, resp: &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: id}}}
	}
	groupOf := func(name, id string) call {
		return call{req: &csi.CreateVolumeGroupSnapshotRequest{Name: name}, resp: &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: id}}}
	}
	deleted := call{req: &csi.DeleteVolumeRequest{VolumeId: "v"}, resp: &csi.DeleteVolumeResponse{}}
	broken2 := func(c call, want ...string) call {
		for i := range want {
			want[i] += " Internal"
		}
		c.want = want
		return c
	}
	for name, calls := range map[string][]call{
		"volume repeated":      {created("a", "v", "p"), created("a", "v", "p")},
		"volume moved":         {created("a", "v", "p"), broken2(created("a", "v", "q"), "volume.volume_context constant")},
		"volume elsewhere":     {created("a", "v", "p"), broken2(created("a", "w", "p"), "volume.volume_id constant")},
		"volume created again": {created("a", "v", "p"), deleted, created("a", "w", "q"), created("b", "v", "r")},
		"two volumes":          {created("a", "v", "p"), created("b", "w", "q")},
		"snapshot":             {snapshotOf("a", "s"), snapshotOf("a", "s"), broken2(snapshotOf("a", "t"), "snapshot.snapshot_id constant")},
		"group":                {groupOf("a", "s"), groupOf("a", "s"), broken2(groupOf("a", "t"), "group_snapshot.group_snapshot_id constant")},
		"names of their kind":  {snapshotOf("a", "s"), groupOf("a", "t"), created("a", "v", "p")},
		"snapshot deleted": {snapshotOf("a", "s"), {req: &csi.DeleteSnapshotRequest{SnapshotId: "s"}, resp: &csi.DeleteSnapshotResponse{}}, snapshotOf("a", "t"),
			groupOf("a", "s"), {req: &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "s"}, resp: &csi.DeleteVolumeGroupSnapshotResponse{}}, groupOf("a", "t")},
		"listed": {created("a", "v", "p"), broken2(call{req: &csi.ListVolumesRequest{}, resp: &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{
			{Volume: &csi.Volume{VolumeId: "v", VolumeContext: context("p")}}, {Volume: &csi.Volume{VolumeId: "v"}}}}}, "entries[1].volume.volume_context constant")},
		"got": {created("a", "v", "p"), broken2(call{req: &csi.ControllerGetVolumeRequest{VolumeId: "v"},
			resp: &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: "v", VolumeContext: context("q")}}}, "volume.volume_context constant")},
		"published":                          {published("v", "n", "1"), published("v", "n", "1"), published("v", "m", "2"), published("w", "n", "3")},
		"published again":                    {published("v", "n", "1"), broken2(published("v", "n", "2"), "publish_context constant")},
		"unpublished":                        {published("v", "n", "1"), published("v", "m", "1"), unpublished("v", "n"), published("v", "n", "2"), broken2(published("v", "m", "2"), "publish_context constant")},
		"unpublished from all":               {published("v", "n", "1"), published("v", "m", "1"), unpublished("v", ""), published("v", "n", "2"), published("v", "m", "2")},
		"capabilities":                       {plugin(1, 2), plugin(2, 1)},
		"capabilities grow":                  {plugin(1), broken2(plugin(1, 2), "capabilities constant")},
		"capabilities grow with the version": {plugin(1), {req: &csi.GetPluginInfoRequest{}, resp: &csi.GetPluginInfoResponse{VendorVersion: "2"}}, plugin(1, 2)},
		"prefix":                             {node("a.com/zone", "1", "rack", "2"), node("a.com/rack", "1")},
		"prefix changes":                     {node("a.com/zone", "1"), broken2(node("b.com/zone", "1"), `accessible_topology.segments["b.com/zone"] topology-prefix`)},
		"two prefixes":                       {broken2(node("a.com/zone", "1", "b.com/zone", "1"), `accessible_topology.segments["b.com/zone"] topology-prefix`)},
	} {
		t.Run(name, func(t *testing.T) {
			var h csispec.History
			for i, c := range calls {
				err := h.Observe(c.req, c.resp)
				if got := broken(err); !slices.Equal(got, c.want) {
					t.Errorf("call %d: got %q, want %q", i, got, c.want)
				}
				if err != nil && strings.Contains(err.Error(), "s3cret") {
					t.Error(err)
				}
			}
		})
	}
}
