package csitest

import (
	"runtime"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// A Need is a precondition of a rule: a capability of the driver, without which the rule
// does not apply, or a facility of the run, without which it is not run.
type Need struct {
	Text     string   // "controller.LIST_VOLUMES", "the driver's log"
	Facility Facility // empty for a capability
	met      func(*run) bool
}

// A Facility is what the caller of Check provides for a run, in Target or Config.
type Facility string

// The facilities, and the fields that provide them.
const (
	FacilityControllerEndpoint Facility = "controller endpoint" // Target.ControllerEndpoint
	FacilityDir                Facility = "directory"           // Config.Dir, a directory whose path has no shell characters
	FacilityInventory          Facility = "inventory"           // Target.Inventory
	FacilityKernel             Facility = "kernel"              // Config.CheckMounts
	FacilityLocalSocket        Facility = "local socket"        // Target.Endpoint, for a unix socket of this node
	FacilityLog                Facility = "log"                 // Target.Start or Target.Log
	FacilityMutableParameters  Facility = "mutable parameters"  // Config.MutableParameters
	FacilityOtherRules         Facility = "other rules"         // Config.Rules, which must also select rules that make calls
	FacilityRestart            Facility = "restart"             // Target.Start or Target.Restart
	FacilitySecrets            Facility = "secrets"             // Config.Secrets
	FacilitySecondNode         Facility = "second node"         // Target.SecondNode
	FacilitySecondTopology     Facility = "second topology"     // Target.SecondTopology
)

func needs(n ...Need) []Need { return n }

// Capabilities.
var (
	controllerService = Need{Text: "the controller service", met: func(r *run) bool { return r.has.Controller != nil }}
	nodeService       = Need{Text: "the node service", met: func(r *run) bool { return r.has.Node != nil }}
	groupService      = groupCap(csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT)

	createVolume   = controllerCap(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	attachVolume   = controllerCap(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	attachReadonly = controllerCap(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	listVolumes    = controllerCap(csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	publishedNodes = controllerCap(csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	getVolume      = controllerCap(csi.ControllerServiceCapability_RPC_GET_VOLUME)
	expandVolume   = controllerCap(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	createSnapshot = controllerCap(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
	listSnapshots  = controllerCap(csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	getSnapshot    = controllerCap(csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
	cloneVolume    = controllerCap(csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	modifyVolume   = controllerCap(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)

	stageVolume      = nodeCap(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	volumeStats      = nodeCap(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	nodeExpandVolume = nodeCap(csi.NodeServiceCapability_RPC_EXPAND_VOLUME)

	nodeVolumeHealth  = nodeCap(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	nodeStorageHealth = nodeCap(csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH)
)

// Facilities.
var (
	twoEndpoints = Need{"a controller plugin with its own endpoint", FacilityControllerEndpoint, func(r *run) bool { return r.target.ControllerEndpoint != "" }}
	secondNode   = Need{"a second node", FacilitySecondNode, func(r *run) bool { return r.target.SecondNode != "" }}
	restartable  = Need{"a way to kill and start the driver", FacilityRestart, func(r *run) bool { return len(r.processes) > 0 || r.target.Restart != nil }}
	driverLog    = Need{"the driver's log", FacilityLog, func(r *run) bool {
		if len(r.processes) == 0 {
			return r.target.Log != ""
		}
		return !slices.ContainsFunc(r.processes, func(p *process) bool { return !p.logs() })
	}}
	// plainDir: nothing in the paths below csicheck's directory has a meaning in a shell.
	plainDir = Need{"a directory whose path consists only of letters, digits, dots, underscores and hyphens", FacilityDir, func(r *run) bool { return plainPath.MatchString(r.dir) }}
	// kernelView: the mounts that the driver makes show in this process's table.
	kernelView = Need{"root on the driver's node, in a mount namespace that sees its mounts", FacilityKernel, func(r *run) bool {
		return r.cfg.CheckMounts && runtime.GOOS == "linux"
	}}
)

// What the driver offers, found out by trying.
var (
	mountAccess = Need{Text: "file system volumes", met: func(r *run) bool { return r.offers(mountCapability) }}
	blockAccess = Need{Text: "raw block volumes", met: func(r *run) bool { return r.offers(blockCapability) }}
)

func controllerCap(c csi.ControllerServiceCapability_RPC_Type) Need {
	return Need{Text: "controller." + c.String(), met: func(r *run) bool { return slices.Contains(r.has.Controller, c) }}
}

func nodeCap(c csi.NodeServiceCapability_RPC_Type) Need {
	return Need{Text: "node." + c.String(), met: func(r *run) bool { return slices.Contains(r.has.Node, c) }}
}

func groupCap(c csi.GroupControllerServiceCapability_RPC_Type) Need {
	return Need{Text: "group." + c.String(), met: func(r *run) bool { return slices.Contains(r.has.Group, c) }}
}

func pluginCap(c csi.PluginCapability_Service_Type) Need {
	return Need{Text: "plugin." + c.String(), met: func(r *run) bool { return slices.Contains(r.has.Plugin, c) }}
}
