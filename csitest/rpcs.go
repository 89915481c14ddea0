package csitest

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// An rpc is one that depends on a capability.
type rpc struct {
	service, method string
	by              []Need // any of which promises it
	because         string
}

var rpcs = []rpc{
	promise("Controller", "CreateVolume", createVolume),
	promise("Controller", "DeleteVolume", createVolume),
	promise("Controller", "ControllerPublishVolume", attachVolume),
	promise("Controller", "ControllerUnpublishVolume", attachVolume),
	promise("Controller", "ValidateVolumeCapabilities", controllerService),
	promise("Controller", "ListVolumes", listVolumes),
	promise("Controller", "GetCapacity", controllerCap(csi.ControllerServiceCapability_RPC_GET_CAPACITY)),
	promise("Controller", "CreateSnapshot", createSnapshot),
	promise("Controller", "DeleteSnapshot", createSnapshot),
	promise("Controller", "ListSnapshots", listSnapshots),
	promise("Controller", "GetSnapshot", getSnapshot),
	promise("Controller", "ControllerExpandVolume", expandVolume),
	promise("Controller", "ControllerGetVolume", getVolume),
	promise("Controller", "ControllerModifyVolume", modifyVolume),
	promise("Controller", "ControllerListVolumeHealth", controllerCap(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)),
	promise("Controller", "ControllerGetVolumeHealth", controllerCap(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH),
		controllerCap(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)),
	promise("GroupController", "CreateVolumeGroupSnapshot", groupService),
	promise("GroupController", "DeleteVolumeGroupSnapshot", groupService),
	promise("GroupController", "GetVolumeGroupSnapshot", groupService),
	promise("Node", "NodeStageVolume", stageVolume),
	promise("Node", "NodeUnstageVolume", stageVolume),
	promise("Node", "NodePublishVolume", nodeService),
	promise("Node", "NodeUnpublishVolume", nodeService),
	promise("Node", "NodeGetVolumeStats", volumeStats, nodeCap(conditionOfNode)), // of v1.12
	promise("Node", "NodeExpandVolume", nodeExpandVolume),
	promise("Node", "NodeGetVolumeHealth", nodeVolumeHealth),
	promise("Node", "NodeGetStorageHealth", nodeStorageHealth),
}

func promise(service, method string, by ...Need) rpc {
	return rpc{service: service, method: method, by: by, because: by[0].Text}
}

func (r rpc) path() string { return "/csi.v1." + r.service + "/" + r.method }

func (r rpc) promised(c *ruleRun) bool { return slices.ContainsFunc(r.by, c.has) }

// served reports whether the driver has the RPC's service.
func (r rpc) served(c *ruleRun) bool {
	switch r.service {
	case "Controller":
		return c.run.has.Controller != nil
	case "GroupController":
		return c.run.has.Group != nil
	}
	return c.run.has.Node != nil
}

// request is an empty one.
func (r rpc) request() proto.Message  { return newMessage(r.method + "Request") }
func (r rpc) response() proto.Message { return newMessage(r.method + "Response") }

// named sets the IDs and paths of a request, so that it names what does not exist. Empty,
// they could mean all that there is.
func (c *ruleRun) named(m proto.Message) proto.Message {
	r := m.ProtoReflect()
	for i := range r.Descriptor().Fields().Len() {
		f := r.Descriptor().Fields().Get(i)
		switch name := string(f.Name()); {
		case f.IsList() || f.Kind() != protoreflect.StringKind:
		case strings.HasSuffix(name, "_path"):
			r.Set(f, protoreflect.ValueOfString(filepath.Join(c.run.dir, c.name())))
		case strings.HasSuffix(name, "_id"):
			r.Set(f, protoreflect.ValueOfString(c.name()))
		}
	}
	return m
}

// filled sets the fields of a request that may be required, so that nothing is wrong
// with it but that what it names does not exist.
func (c *ruleRun) filled(m proto.Message) proto.Message {
	r := m.ProtoReflect()
	for i := range r.Descriptor().Fields().Len() {
		f := r.Descriptor().Fields().Get(i)
		switch name := string(f.Name()); {
		case name == "volume_capability":
			r.Set(f, protoreflect.ValueOfMessage(c.capability().ProtoReflect()))
		case name == "volume_capabilities":
			r.Mutable(f).List().Append(protoreflect.ValueOfMessage(c.capability().ProtoReflect()))
		case name == "capacity_range":
			r.Set(f, protoreflect.ValueOfMessage((&csi.CapacityRange{RequiredBytes: c.run.cfg.Size}).ProtoReflect()))
		case name == "mutable_parameters" && strings.HasPrefix(string(r.Descriptor().Name()), "ControllerModify"):
			r.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			r.Mutable(f).List().Append(protoreflect.ValueOfString(c.name()))
		case f.IsMap() || f.IsList() || f.Kind() != protoreflect.StringKind || name == "starting_token":
		case strings.HasSuffix(name, "_path"):
			r.Set(f, protoreflect.ValueOfString(filepath.Join(c.run.dir, c.name())))
		default:
			r.Set(f, protoreflect.ValueOfString(c.name()))
		}
	}
	return m
}

func newMessage(name string) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("csi.v1." + name))
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

func code(err error) codes.Code { return status.Code(err) }
