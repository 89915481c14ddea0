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
// services it serves: the node part of a plugin with a controller reports
// CONTROLLER_SERVICE, too.
type Capabilities struct {
	Plugin     []csi.PluginCapability_Service_Type
	Expansion  []csi.PluginCapability_VolumeExpansion_Type
	Controller []csi.ControllerServiceCapability_RPC_Type
	Group      []csi.GroupControllerServiceCapability_RPC_Type
	Node       []csi.NodeServiceCapability_RPC_Type
	// SnapshotMetadata indicates that this process serves SnapshotMetadata, a
	// service without a list of its own.
	SnapshotMetadata bool
}

// CheckCapabilities returns the combinations of capabilities that a sentence of the
// specification forbids, as a *[Violations] error, or nil. Each violation quotes the
// sentence and says how to repair it. [CapabilityWarnings] returns capabilities that are
// allowed but probably unintended. Capabilities of a later version of CSI pass.
//
// It does not know whether the RPCs that the capabilities promise are implemented:
// csiserver.New checks that.
func CheckCapabilities(c Capabilities) error {
	if forbidden, _ := checkCapabilities(c); len(forbidden) > 0 {
		return &Violations{Subject: "capabilities", All: forbidden}
	}
	return nil
}

// CapabilityWarnings returns allowed but probably unintended capabilities: a capability
// that a CO will not use because another one is missing, and entries of a list that are
// unknown, removed or repeated. It returns nil if there are none.
func CapabilityWarnings(c Capabilities) []Violation {
	_, warnings := checkCapabilities(c)
	return warnings
}

func checkCapabilities(c Capabilities) (forbidden, warnings []Violation) {
	must, should := &checker{}, &checker{}
	checkList(should, "plugin", c.Plugin)
	checkList(should, "volume_expansion", c.Expansion)
	checkList(should, "controller", c.Controller, 11)
	checkList(should, "group_controller", c.Group)
	checkList(should, "node", c.Node, 4)
	warnServices(should, c)
	checkController(must, c.Controller)
	checkExpansion(must, c)
	warnExpansion(should, c)
	warnMultiWriter(should, c)
	return must.found, should.found
}

// warnServices: CONTROLLER_SERVICE "determines whether the CO will attempt to invoke"
// the service, and the others likewise, but plugins SHOULD or MAY report them.
func warnServices(k *checker, c Capabilities) {
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
				"is missing although this process serves it, and COs will not call it: add it")
		}
	}
}

// checkController applies the sentences of csi.proto by which one controller
// capability requires another.
func checkController(k *checker, have []csi.ControllerServiceCapability_RPC_Type) {
	type capability = csi.ControllerServiceCapability_RPC_Type
	for _, r := range []struct {
		one, needs capability
		sentence   string
	}{
		// CREATE_DELETE_VOLUME is how a plugin reports that it creates volumes.
		{csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
			"plugins supporting CREATE_DELETE_SNAPSHOT MUST support creating volume from snapshot."},
		{csi.ControllerServiceCapability_RPC_CLONE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
			"Plugins reporting CLONE_VOLUME capability MUST support creating a volume from another volume."},
		{csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			"The SP MUST also support PUBLISH_UNPUBLISH_VOLUME."},
		{csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
			"A plugin which supports the LIST_VOLUME_HEALTH capability MUST also support the GET_VOLUME_HEALTH capability."},
	} {
		if slices.Contains(have, r.one) && !slices.Contains(have, r.needs) {
			k.add("controller."+r.one.String(), "capability-missing",
				"needs controller.%s: add that, or drop this (csi.proto: %q)", r.needs, r.sentence)
		}
	}
}

// checkExpansion relates the volume_expansion of a plugin to the services that expand
// volumes. A service in another process may have the capability.
func checkExpansion(k *checker, c Capabilities) {
	controller := slices.Contains(c.Controller, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	node := slices.Contains(c.Node, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	controllerElsewhere := c.Controller == nil && slices.Contains(c.Plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	nodeElsewhere := c.Node == nil

	if slices.Contains(c.Expansion, csi.PluginCapability_VolumeExpansion_ONLINE) &&
		!controller && !node && !controllerElsewhere && !nodeElsewhere {
		k.add("volume_expansion.ONLINE", "capability-missing",
			"needs controller.EXPAND_VOLUME or node.EXPAND_VOLUME: add one, or drop this (csi.proto: %q)",
			"When a Plugin implements this capability it MUST implement either the EXPAND_VOLUME controller capability or the EXPAND_VOLUME node capability or both.")
	}
	if slices.Contains(c.Expansion, csi.PluginCapability_VolumeExpansion_OFFLINE) &&
		!controller && !controllerElsewhere {
		k.add("volume_expansion.OFFLINE", "capability-missing",
			"needs controller.EXPAND_VOLUME: add that, or drop this (csi.proto: %q)",
			"When a plugin supports OFFLINE volume expansion it MUST implement either the EXPAND_VOLUME controller capability or both the EXPAND_VOLUME controller capability and the EXPAND_VOLUME node capability.")
	}
}

// warnExpansion: no sentence says that EXPAND_VOLUME requires a volume_expansion,
// from which a CO learns when it may expand.
func warnExpansion(k *checker, c Capabilities) {
	if len(c.Expansion) > 0 {
		return
	}
	for _, side := range []struct {
		name string
		has  bool
	}{
		{"controller", slices.Contains(c.Controller, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)},
		{"node", slices.Contains(c.Node, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)},
	} {
		if side.has {
			k.add(side.name+".EXPAND_VOLUME", "capability-missing",
				"comes without a volume_expansion of the plugin, by which a CO learns when it may expand: report ONLINE or OFFLINE")
		}
	}
}

// warnMultiWriter: both capabilities indicate what "the SP supports", so they should
// agree, but no sentence requires it.
func warnMultiWriter(k *checker, c Capabilities) {
	const (
		controllerSNMW = csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
		nodeSNMW       = csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	)
	if c.Controller != nil && c.Node != nil &&
		slices.Contains(c.Controller, controllerSNMW) != slices.Contains(c.Node, nodeSNMW) {
		k.add("node.SINGLE_NODE_MULTI_WRITER", "capability-missing",
			"and controller.SINGLE_NODE_MULTI_WRITER indicate the same support: report both or neither")
	}
}

type checker struct{ found []Violation }

func (k *checker) add(field, rule, format string, args ...any) {
	k.found = append(k.found, Violation{
		Field: field, Rule: rule, Code: codes.FailedPrecondition, Text: fmt.Sprintf(format, args...),
	})
}

// checkList finds entries that mean nothing to a CO; no sentence forbids them. removed
// are the numbers that csi.proto reserves: those of VOLUME_CONDITION, gone with v1.13,
// which a driver written for an older version may still report.
func checkList[T interface {
	~int32
	String() string
}](k *checker, list string, have []T, removed ...T) {
	for i, c := range have {
		switch {
		case c == 0:
			k.add(list+"."+c.String(), "capability-unknown", "is not a capability: drop it")
		case slices.Contains(removed, c):
			k.add(list+"."+c.String(), "capability-unknown", "is VOLUME_CONDITION, which CSI v1.13 removed: "+
				"drop it, and report GET_VOLUME_HEALTH if there is an RPC for that")
		case slices.Contains(have[:i], c):
			k.add(list+"."+c.String(), "capability-duplicate", "is reported more than once: drop one")
		}
	}
}
