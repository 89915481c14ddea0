package csispec

import (
	"math/bits"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// features are the capabilities on which fields depend, as bits: the generated
// code checks one for each such field.
type features uint16

const (
	volumeTopology features = 1 << iota
	snapshotTopology
	attach
	attachReadonly
	publishedNodes
	createSnapshot
	cloneVolume
	modifyVolume
	controllerMultiWriter
	mountGroup
	nodeMultiWriter
	stageUnstage
)

const (
	controllerFeatures = attach | attachReadonly | publishedNodes | createSnapshot | cloneVolume | modifyVolume | controllerMultiWriter
	nodeFeatures       = mountGroup | nodeMultiWriter | stageUnstage
)

// featureNames are in the order of their bits.
var featureNames = [...]string{
	"plugin.VOLUME_ACCESSIBILITY_CONSTRAINTS",
	"plugin.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
	"controller.PUBLISH_UNPUBLISH_VOLUME",
	"controller.PUBLISH_READONLY",
	"controller.LIST_VOLUMES_PUBLISHED_NODES",
	"controller.CREATE_DELETE_SNAPSHOT",
	"controller.CLONE_VOLUME",
	"controller.MODIFY_VOLUME",
	"controller.SINGLE_NODE_MULTI_WRITER",
	"node.VOLUME_MOUNT_GROUP",
	"node.SINGLE_NODE_MULTI_WRITER",
	"node.STAGE_UNSTAGE_VOLUME",
}

// split returns the features that a plugin has and those that it certainly lacks. For a
// service in another process neither is known.
func (c Capabilities) split() (present, absent features) {
	absent = volumeTopology | snapshotTopology
	if c.Controller != nil || !slices.Contains(c.Plugin, csi.PluginCapability_Service_CONTROLLER_SERVICE) {
		absent |= controllerFeatures
	}
	if c.Node != nil {
		absent |= nodeFeatures
	}
	for _, s := range c.Plugin {
		switch s {
		case csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			present |= volumeTopology
		case csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS:
			present |= snapshotTopology
		}
	}
	for _, s := range c.Controller {
		switch s {
		case csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:
			present |= attach
		case csi.ControllerServiceCapability_RPC_PUBLISH_READONLY:
			present |= attachReadonly
		case csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES:
			present |= publishedNodes
		case csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:
			present |= createSnapshot
		case csi.ControllerServiceCapability_RPC_CLONE_VOLUME:
			present |= cloneVolume
		case csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:
			present |= modifyVolume
		case csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			present |= controllerMultiWriter
		}
	}
	for _, s := range c.Node {
		switch s {
		case csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			present |= mountGroup
		case csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			present |= nodeMultiWriter
		case csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			present |= stageUnstage
		}
	}
	return present, absent &^ present
}

// gated reports a field that must not be set without a feature.
func (w *walker) gated(field string, f features) {
	const ofVolume = controllerMultiWriter | nodeMultiWriter | mountGroup
	if _, asks := w.subject.(*csi.ValidateVolumeCapabilitiesRequest); asks && f&ofVolume != 0 {
		return // not an error: the response is OK, without confirmed
	}
	w.add(field, "capability", "is set, but this plugin does not have the capability %s", featureNames[bits.TrailingZeros16(uint16(f))])
}
