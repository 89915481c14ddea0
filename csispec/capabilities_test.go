package csispec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
)

func TestCheckCapabilities(t *testing.T) {
	type (
		plugin     = []csi.PluginCapability_Service_Type
		expansion  = []csi.PluginCapability_VolumeExpansion_Type
		controller = []csi.ControllerServiceCapability_RPC_Type
		group      = []csi.GroupControllerServiceCapability_RPC_Type
		node       = []csi.NodeServiceCapability_RPC_Type
	)
	const (
		service      = csi.PluginCapability_Service_CONTROLLER_SERVICE
		groupService = csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
		online       = csi.PluginCapability_VolumeExpansion_ONLINE
		offline      = csi.PluginCapability_VolumeExpansion_OFFLINE
		create       = csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
		attach       = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
		snapshot     = csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT
		clone        = csi.ControllerServiceCapability_RPC_CLONE_VOLUME
		published    = csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES
		grow         = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
		multi        = csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
		listHealth   = csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH
		nodeGrow     = csi.NodeServiceCapability_RPC_EXPAND_VOLUME
		nodeMulti    = csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	)
	missing := func(fields ...string) []string {
		for i := range fields {
			fields[i] += " capability-missing FailedPrecondition"
		}
		return fields
	}
	for _, tt := range []struct {
		name string
		c    csispec.Capabilities
		want []string
	}{
		{"nothing", csispec.Capabilities{}, nil},
		{"all in order", csispec.Capabilities{Plugin: plugin{service, groupService}, Expansion: expansion{online, offline},
			Controller: controller{create, attach, snapshot, clone, published, grow, multi}, Group: group{1}, Node: node{nodeGrow, nodeMulti}}, nil},
		{"services not reported", csispec.Capabilities{Controller: controller{}, Group: group{}, SnapshotMetadata: true},
			missing("plugin.CONTROLLER_SERVICE", "plugin.GROUP_CONTROLLER_SERVICE", "plugin.SNAPSHOT_METADATA_SERVICE")},
		{"services elsewhere", csispec.Capabilities{Plugin: plugin{service, groupService}, Node: node{}}, nil},
		{"controller pairs", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{snapshot, clone, published, listHealth}},
			missing("controller.CREATE_DELETE_SNAPSHOT", "controller.CLONE_VOLUME", "controller.LIST_VOLUMES_PUBLISHED_NODES", "controller.LIST_VOLUME_HEALTH")},
		{"expansion by nobody", csispec.Capabilities{Plugin: plugin{service}, Expansion: expansion{online, offline}, Controller: controller{}, Node: node{}},
			missing("volume_expansion.ONLINE", "volume_expansion.OFFLINE")},
		{"expansion perhaps elsewhere", csispec.Capabilities{Plugin: plugin{service}, Expansion: expansion{online, offline}, Node: node{}}, nil},
		{"online by node", csispec.Capabilities{Expansion: expansion{online}, Node: node{nodeGrow}}, nil},
		{"offline by node", csispec.Capabilities{Expansion: expansion{offline}, Node: node{nodeGrow}}, missing("volume_expansion.OFFLINE")},
		{"online perhaps on the node", csispec.Capabilities{Plugin: plugin{service}, Expansion: expansion{online}, Controller: controller{}}, nil},
		{"way of expansion open", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{grow}, Node: node{nodeGrow}},
			missing("controller.EXPAND_VOLUME", "node.EXPAND_VOLUME")},
		{"multi writer on one side", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{multi}, Node: node{}},
			missing("node.SINGLE_NODE_MULTI_WRITER")},
		{"multi writer perhaps elsewhere", csispec.Capabilities{Plugin: plugin{service}, Node: node{nodeMulti}}, nil},
		{"taken back", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{11}, Node: node{4}},
			[]string{"controller.11 capability-unknown FailedPrecondition", "node.4 capability-unknown FailedPrecondition"}},
		{"unknown and twice", csispec.Capabilities{Plugin: plugin{0}, Node: node{nodeMulti, nodeMulti, 99}},
			[]string{"plugin.UNKNOWN capability-unknown FailedPrecondition", "node.SINGLE_NODE_MULTI_WRITER capability-duplicate FailedPrecondition"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := csispec.CheckCapabilities(tt.c)
			if got := broken(err); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "invalid capabilities: ") {
				t.Error(err)
			}
		})
	}
}
