package csispec_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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
		name      string
		c         csispec.Capabilities
		forbidden []string
		warnings  []string
	}{
		{"nothing", csispec.Capabilities{}, nil, nil},
		{"all in order", csispec.Capabilities{Plugin: plugin{service, groupService}, Expansion: expansion{online, offline},
			Controller: controller{create, attach, snapshot, clone, published, grow, multi}, Group: group{1}, Node: node{nodeGrow, nodeMulti}}, nil, nil},
		{"services not reported", csispec.Capabilities{Controller: controller{}, Group: group{}, SnapshotMetadata: true}, nil,
			missing("plugin.CONTROLLER_SERVICE", "plugin.GROUP_CONTROLLER_SERVICE", "plugin.SNAPSHOT_METADATA_SERVICE")},
		{"services elsewhere", csispec.Capabilities{Plugin: plugin{service, groupService}, Node: node{}}, nil, nil},
		{"controller pairs", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{snapshot, clone, published, listHealth}},
			missing("controller.CREATE_DELETE_SNAPSHOT", "controller.CLONE_VOLUME", "controller.LIST_VOLUMES_PUBLISHED_NODES", "controller.LIST_VOLUME_HEALTH"), nil},
		{"expansion without a service", csispec.Capabilities{Plugin: plugin{service}, Expansion: expansion{online, offline}, Controller: controller{}, Node: node{}},
			missing("volume_expansion.ONLINE", "volume_expansion.OFFLINE"), nil},
		{"expansion perhaps elsewhere", csispec.Capabilities{Plugin: plugin{service}, Expansion: expansion{online, offline}, Node: node{}}, nil, nil},
		{"online by node", csispec.Capabilities{Expansion: expansion{online}, Node: node{nodeGrow}}, nil, nil},
		{"offline by node", csispec.Capabilities{Expansion: expansion{offline}, Node: node{nodeGrow}}, missing("volume_expansion.OFFLINE"), nil},
		{"online perhaps on the node", csispec.Capabilities{Plugin: plugin{service}, Expansion: expansion{online}, Controller: controller{}}, nil, nil},
		{"no volume_expansion", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{grow}, Node: node{nodeGrow}}, nil,
			missing("controller.EXPAND_VOLUME", "node.EXPAND_VOLUME")},
		{"multi writer on one side", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{multi}, Node: node{}}, nil,
			missing("node.SINGLE_NODE_MULTI_WRITER")},
		{"multi writer perhaps elsewhere", csispec.Capabilities{Plugin: plugin{service}, Node: node{nodeMulti}}, nil, nil},
		{"removed", csispec.Capabilities{Plugin: plugin{service}, Controller: controller{11}, Node: node{4}}, nil,
			[]string{"controller.11 capability-unknown FailedPrecondition", "node.4 capability-unknown FailedPrecondition"}},
		{"unknown and twice", csispec.Capabilities{Plugin: plugin{0}, Node: node{nodeMulti, nodeMulti, 99}}, nil,
			[]string{"plugin.UNKNOWN capability-unknown FailedPrecondition", "node.SINGLE_NODE_MULTI_WRITER capability-duplicate FailedPrecondition"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := csispec.CheckCapabilities(tt.c)
			if got := broken(err); !slices.Equal(got, tt.forbidden) {
				t.Errorf("forbidden: got  %q\nwant %q", got, tt.forbidden)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "invalid capabilities: ") {
				t.Error(err)
			}
			warnings := &csispec.Violations{All: csispec.CapabilityWarnings(tt.c)}
			if got := broken(warnings); !slices.Equal(got, tt.warnings) {
				t.Errorf("warnings: got  %q\nwant %q", got, tt.warnings)
			}
		})
	}
}

// What is forbidden is forbidden by a sentence that stands in csi.proto.
func TestForbiddenCapabilitiesQuoteTheSpecification(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	proto, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "csi.proto"))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(strings.ReplaceAll(string(proto), "//", "")), " ")
	err = csispec.CheckCapabilities(csispec.Capabilities{
		Expansion: []csi.PluginCapability_VolumeExpansion_Type{csi.PluginCapability_VolumeExpansion_ONLINE, csi.PluginCapability_VolumeExpansion_OFFLINE},
		Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH},
		Node: []csi.NodeServiceCapability_RPC_Type{},
	})
	v, _ := errors.AsType[*csispec.Violations](err)
	if v == nil || len(v.All) != 6 {
		t.Fatalf("got %v, want 6 violations", err)
	}
	for _, x := range v.All {
		_, quoted, _ := strings.Cut(x.Text, `(csi.proto: "`)
		sentence := strings.TrimSuffix(quoted, `")`)
		if sentence == "" || !strings.Contains(words, sentence) {
			t.Errorf("%s: no such sentence in csi.proto: %q", x.Field, sentence)
		}
	}
}
