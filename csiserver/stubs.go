package csiserver

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
)

// The RPCs that a capability requires.
var (
	controllerCalls = map[csi.ControllerServiceCapability_RPC_Type][]string{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:     {"CreateVolume", "DeleteVolume"},
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: {"ControllerPublishVolume", "ControllerUnpublishVolume"},
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES:             {"ListVolumes"},
		csi.ControllerServiceCapability_RPC_GET_CAPACITY:             {"GetCapacity"},
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:   {"CreateSnapshot", "DeleteSnapshot"},
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:           {"ListSnapshots"},
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME:            {"ControllerExpandVolume"},
		csi.ControllerServiceCapability_RPC_GET_VOLUME:               {"ControllerGetVolume"},
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:            {"ControllerModifyVolume"},
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT:             {"GetSnapshot"},
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH:        {"ControllerGetVolumeHealth"},
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:       {"ControllerListVolumeHealth"},
	}
	groupCalls = map[csi.GroupControllerServiceCapability_RPC_Type][]string{
		csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT: {"CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot"},
	}
	nodeCalls = map[csi.NodeServiceCapability_RPC_Type][]string{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: {"NodeStageVolume", "NodeUnstageVolume"},
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:     {"NodeGetVolumeStats"},
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME:        {"NodeExpandVolume"},
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH:    {"NodeGetVolumeHealth"},
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH:   {"NodeGetStorageHealth"},
	}
	metadataCalls = []string{"GetMetadataAllocated", "GetMetadataDelta"}
)

// checkCalls finds capabilities whose RPCs are certainly not implemented, without
// calling them. It is forbidden to report those: the section of each RPC in spec.md says
// that a plugin "MUST implement this RPC call if it has" the capability, in these or
// nearly these words. The sections
// of the SnapshotMetadata service, which is OPTIONAL, do not.
func (c *config) checkCalls(caps csispec.Capabilities) (forbidden, warnings []csispec.Violation) {
	stubs := func(service any, capability string, calls []string, source string) (found []csispec.Violation) {
		for _, call := range calls {
			if isStub(reflect.ValueOf(service), call) {
				found = append(found, csispec.Violation{Field: capability, Rule: "capability-call", Code: codes.FailedPrecondition,
					Text: fmt.Sprintf("promises %[1]s, which is the stub that answers UNIMPLEMENTED: implement it, or drop this"+source, call)})
			}
		}
		return found
	}
	const must = " (spec.md, section %[1]s: a plugin with this capability MUST implement this RPC)"
	for _, t := range caps.Controller {
		forbidden = append(forbidden, stubs(c.controller, "controller."+t.String(), controllerCalls[t], must)...)
	}
	for _, t := range caps.Group {
		forbidden = append(forbidden, stubs(c.group, "group_controller."+t.String(), groupCalls[t], must)...)
	}
	for _, t := range caps.Node {
		forbidden = append(forbidden, stubs(c.node, "node."+t.String(), nodeCalls[t], must)...)
	}
	if c.snapshotMetadata != nil {
		warnings = stubs(c.snapshotMetadata, "plugin.SNAPSHOT_METADATA_SERVICE", metadataCalls, "")
	}
	return forbidden, warnings
}

// isStub reports whether a method of service is promoted from one of the
// Unimplemented servers that every service has to embed. If that cannot be determined,
// the method counts as the driver's own.
func isStub(service reflect.Value, method string) bool {
	_, stub := promoted(service, method)
	return stub
}

// promoted follows a method to the type that declares it, as the compiler
// does: of the embedded fields that have it, the shallowest wins.
func promoted(v reflect.Value, method string) (depth int, stub bool) {
	if !v.IsValid() {
		return 0, false
	}
	t := v.Type()
	switch {
	case t.PkgPath() == csiPackage && strings.HasPrefix(t.Name(), "Unimplemented"):
		return 0, true
	case t.Kind() == reflect.Interface:
		_, stub = promoted(v.Elem(), method)
		return 0, stub
	case t.Kind() == reflect.Pointer:
		if t.Elem().Kind() != reflect.Struct {
			return 0, false
		}
		return promoted(v.Elem(), method)
	case t.Kind() != reflect.Struct, declares(t, method), declares(reflect.PointerTo(t), method):
		return 0, false
	}
	found := false
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.Anonymous || !hasMethod(f.Type, method) {
			continue
		}
		if d, s := promoted(v.Field(i), method); !found || d+1 < depth {
			found, depth, stub = true, d+1, s
		}
	}
	return depth, stub
}

var csiPackage = reflect.TypeFor[csi.UnimplementedNodeServer]().PkgPath()

func hasMethod(t reflect.Type, method string) bool {
	_, ok := t.MethodByName(method)
	if !ok && t.Kind() == reflect.Struct {
		_, ok = reflect.PointerTo(t).MethodByName(method)
	}
	return ok
}

// declares reports whether t declares the method, which then has a line in a file; a
// promoted one is generated by the compiler.
func declares(t reflect.Type, method string) bool {
	m, ok := t.MethodByName(method)
	if !ok {
		return false
	}
	f := runtime.FuncForPC(m.Func.Pointer())
	if f == nil {
		return true
	}
	file, _ := f.FileLine(f.Entry())
	return file != "<autogenerated>"
}
