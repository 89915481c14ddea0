package csispec

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// Capabilities are those that one process of a plugin reports. A nil list
// means that the service is not in this process, and rules that would need it
// are skipped; a service without capabilities has an empty list.
//
// Every process of a plugin reports the same Plugin and Expansion, whichever
// services it serves: the node part of a plugin with a controller says
// CONTROLLER_SERVICE, too.
type Capabilities struct {
	Plugin     []csi.PluginCapability_Service_Type
	Expansion  []csi.PluginCapability_VolumeExpansion_Type
	Controller []csi.ControllerServiceCapability_RPC_Type
	Group      []csi.GroupControllerServiceCapability_RPC_Type
	Node       []csi.NodeServiceCapability_RPC_Type
	// SnapshotMetadata tells that this process serves SnapshotMetadata, a
	// service without a list of its own.
	SnapshotMetadata bool
}

// CheckCapabilities reports every contradiction among the capabilities of a
// plugin, as a *[Violations] error that says how to mend each, or nil.
// Capabilities of a later version of CSI pass.
//
// Whether the calls that the capabilities promise are there is not visible
// here: a server sees its own stubs.
func CheckCapabilities(c Capabilities) error {
	k := &checker{}
	checkList(k, "plugin", c.Plugin)
	checkList(k, "volume_expansion", c.Expansion)
	checkList(k, "controller", c.Controller, 11)
	checkList(k, "group_controller", c.Group)
	checkList(k, "node", c.Node, 4)

	hasController := slices.Contains(c.Plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	for _, s := range []struct {
		served bool
		needs  csi.PluginCapability_Service_Type
	}{
		{c.Controller != nil, csi.PluginCapability_Service_CONTROLLER_SERVICE},
		{c.Group != nil, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE},
		{c.SnapshotMetadata, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE},
	} {
		if s.served && !slices.Contains(c.Plugin, s.needs) {
			k.add("plugin."+s.needs.String(), "capability-missing",
				"is missing although this process serves it: add it")
		}
	}
	checkController(k, c.Controller)
	checkExpansion(k, c, hasController)

	const (
		controllerSNMW = csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
		nodeSNMW       = csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	)
	if c.Controller != nil && c.Node != nil &&
		slices.Contains(c.Controller, controllerSNMW) != slices.Contains(c.Node, nodeSNMW) {
		k.add("node.SINGLE_NODE_MULTI_WRITER", "capability-missing",
			"and controller.SINGLE_NODE_MULTI_WRITER need each other: report both or neither")
	}
	if len(k.found) == 0 {
		return nil
	}
	return &Violations{Subject: "capabilities", All: k.found}
}

// checkController knows which controller capability is of no use without which.
func checkController(k *checker, have []csi.ControllerServiceCapability_RPC_Type) {
	type capability = csi.ControllerServiceCapability_RPC_Type
	for _, r := range []struct{ one, needs capability }{
		{csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{csi.ControllerServiceCapability_RPC_CLONE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		{csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH},
	} {
		if slices.Contains(have, r.one) && !slices.Contains(have, r.needs) {
			k.add("controller."+r.one.String(), "capability-missing",
				"needs controller.%s: add that, or drop this", r.needs)
		}
	}
}

// checkExpansion relates the way a plugin expands volumes to the services that
// do it. What another process may serve is given the benefit of the doubt.
func checkExpansion(k *checker, c Capabilities, hasController bool) {
	controller := slices.Contains(c.Controller, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	node := slices.Contains(c.Node, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	controllerElsewhere := hasController && c.Controller == nil
	nodeElsewhere := c.Node == nil

	if slices.Contains(c.Expansion, csi.PluginCapability_VolumeExpansion_ONLINE) &&
		!controller && !node && !controllerElsewhere && !nodeElsewhere {
		k.add("volume_expansion.ONLINE", "capability-missing",
			"needs controller.EXPAND_VOLUME or node.EXPAND_VOLUME: add one, or drop this")
	}
	if slices.Contains(c.Expansion, csi.PluginCapability_VolumeExpansion_OFFLINE) &&
		!controller && !controllerElsewhere {
		k.add("volume_expansion.OFFLINE", "capability-missing",
			"needs controller.EXPAND_VOLUME: add that, or drop this")
	}
	if len(c.Expansion) > 0 {
		return
	}
	for _, side := range []struct {
		name string
		has  bool
	}{{"controller", controller}, {"node", node}} {
		if side.has {
			k.add(side.name+".EXPAND_VOLUME", "capability-missing",
				"needs a volume_expansion of the plugin: report ONLINE or OFFLINE, or drop this")
		}
	}
}

type checker struct{ found []Violation }

func (k *checker) add(field, rule, format string, args ...any) {
	k.found = append(k.found, Violation{
		Field: field, Rule: rule, Code: codes.FailedPrecondition, Text: fmt.Sprintf(format, args...),
	})
}

// checkList finds what no list may hold. The numbers that CSI has taken back are
// those of VOLUME_CONDITION, gone with v1.13.
func checkList[T interface {
	~int32
	String() string
}](k *checker, list string, have []T, removed ...T) {
	for i, c := range have {
		switch {
		case c == 0:
			k.add(list+"."+c.String(), "capability-unknown", "is not a capability: drop it")
		case slices.Contains(removed, c):
			k.add(list+"."+c.String(), "capability-unknown", "is VOLUME_CONDITION, which CSI v1.13 does not have any more: "+
				"drop it, and report GET_VOLUME_HEALTH if there is a call for that")
		case slices.Contains(have[:i], c):
			k.add(list+"."+c.String(), "capability-duplicate", "is reported more than once: drop one")
		}
	}
}
