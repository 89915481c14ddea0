package csitest

import (
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A rule of this table sends a request that would succeed, once without each of its
// required fields. mutable_parameters and snapshot_ids are not among them: csi-sanity leaves
// them out and expects another answer (csispec.WithCSISanity), which rules of their own accept.
var requiredRules = []Rule{
	required("controller.create", "CreateVolume", func(c *ruleRun) proto.Message { return c.createRequest() },
		[]string{"name", "volume_capabilities"}, createVolume),
	required("controller.delete", "DeleteVolume", func(c *ruleRun) proto.Message { return c.volume().deleteRequest() },
		[]string{"volume_id"}, createVolume),
	required("controller.publish", "ControllerPublishVolume", func(c *ruleRun) proto.Message { return c.volume().attachRequest() },
		[]string{"volume_id", "node_id", "volume_capability"}, createVolume, attachVolume),
	required("controller.unpublish", "ControllerUnpublishVolume", func(c *ruleRun) proto.Message { return c.volume().attach().detachRequest() },
		[]string{"volume_id"}, createVolume, attachVolume),
	required("controller.validate", "ValidateVolumeCapabilities", func(c *ruleRun) proto.Message { return c.volume().validateRequest() },
		[]string{"volume_id", "volume_capabilities"}, createVolume),
	required("controller.expand", "ControllerExpandVolume", func(c *ruleRun) proto.Message { return c.volume().expandRequest(2 * c.run.cfg.Size) },
		[]string{"volume_id", "capacity_range"}, createVolume, expandVolume),
	required("controller.snapshot.create", "CreateSnapshot", func(c *ruleRun) proto.Message { return c.volume().snapshotRequest() },
		[]string{"name", "source_volume_id"}, createVolume, createSnapshot),
	required("controller.snapshot.delete", "DeleteSnapshot", func(c *ruleRun) proto.Message { return &csi.DeleteSnapshotRequest{SnapshotId: c.name()} },
		[]string{"snapshot_id"}, createSnapshot),
	required("controller.modify", "ControllerModifyVolume", func(c *ruleRun) proto.Message {
		return &csi.ControllerModifyVolumeRequest{VolumeId: c.volume().id, MutableParameters: map[string]string{"key": "value"}}
	}, []string{"volume_id"}, createVolume, modifyVolume),
	required("controller.get", "ControllerGetVolume", func(c *ruleRun) proto.Message { return &csi.ControllerGetVolumeRequest{VolumeId: c.name()} },
		[]string{"volume_id"}, getVolume),
	required("controller.snapshot.get", "GetSnapshot", func(c *ruleRun) proto.Message { return &csi.GetSnapshotRequest{SnapshotId: c.name()} },
		[]string{"snapshot_id"}, getSnapshot),
	required("group.create", "CreateVolumeGroupSnapshot", func(c *ruleRun) proto.Message {
		return &csi.CreateVolumeGroupSnapshotRequest{Name: c.name(), SourceVolumeIds: []string{c.volume().id}}
	}, []string{"name", "source_volume_ids"}, createVolume, groupService),
	required("group.delete", "DeleteVolumeGroupSnapshot", func(c *ruleRun) proto.Message {
		return &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: c.name(), SnapshotIds: []string{c.name()}}
	}, []string{"group_snapshot_id"}, groupService),
	required("group.get", "GetVolumeGroupSnapshot", func(c *ruleRun) proto.Message {
		return &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: c.name(), SnapshotIds: []string{c.name()}}
	}, []string{"group_snapshot_id"}, groupService),
	required("node.stage", "NodeStageVolume", func(c *ruleRun) proto.Message { return c.volume().attach().stageRequest() },
		[]string{"volume_id", "staging_target_path", "volume_capability"}, createVolume, stageVolume),
	required("node.unstage", "NodeUnstageVolume", func(c *ruleRun) proto.Message { return c.volume().attach().stage().unstageRequest() },
		[]string{"volume_id", "staging_target_path"}, createVolume, stageVolume),
	required("node.publish", "NodePublishVolume", func(c *ruleRun) proto.Message { return c.volume().attach().stage().publishRequest("a") },
		[]string{"volume_id", "target_path", "volume_capability"}, createVolume, nodeService),
	required("node.unpublish", "NodeUnpublishVolume", func(c *ruleRun) proto.Message { return c.volume().up("a").unpublishRequest("a") },
		[]string{"volume_id", "target_path"}, createVolume, nodeService),
	required("node.stats", "NodeGetVolumeStats", func(c *ruleRun) proto.Message { return c.volume().up("a").statsRequest("a") },
		[]string{"volume_id", "volume_path"}, createVolume, nodeService, volumeStats),
	required("node.expand", "NodeExpandVolume", func(c *ruleRun) proto.Message { return c.volume().up("a").nodeExpandRequest("a", c.run.cfg.Size) },
		[]string{"volume_id", "volume_path"}, createVolume, nodeService, nodeExpandVolume),
	required("node.health", "NodeGetVolumeHealth", func(c *ruleRun) proto.Message { return c.volume().up("a").healthRequest("a") },
		[]string{"volume_id"}, createVolume, nodeService, nodeVolumeHealth),
}

func required(area, method string, request func(*ruleRun) proto.Message, fields []string, need ...Need) Rule {
	return Rule{
		ID: area + ".required-fields", Level: Must, Spec: method,
		Title: method + " without a required field is INVALID_ARGUMENT",
		Why: "The CO learns from INVALID_ARGUMENT that the request itself is wrong and must change. A driver that guesses acts on the " +
			"wrong object. Each required field is left out of an otherwise valid request, unless the driver deletes files by the path in that field without " +
			"having created them: an empty one could name the root directory.",
		Needs: need,
		check: func(c *ruleRun) {
			service := "Controller"
			for _, r := range rpcs {
				if r.method == method {
					service = r.service
				}
			}
			good := request(c)
			path := "/csi.v1." + service + "/" + method
			var dangerous []string
			for _, f := range fields {
				if !c.mayOmit(path, good, protoreflect.Name(f)) {
					dangerous = append(dangerous, f)
					continue
				}
				req := proto.Clone(good)
				req.ProtoReflect().Clear(req.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(f)))
				a := c.invoke(path, req, newMessage(method+"Response"))
				if !a.is(codes.InvalidArgument) {
					c.breach(a.Call, fmt.Sprintf("InvalidArgument: %s is missing", f), a.responseText())
				}
			}
			if len(dangerous) > 0 {
				c.excuse("%s without %s was not sent: the driver changed files that %s led to and that it had not created", method, strings.Join(dangerous, ", "), dangerous[0])
			}
		},
	}
}

// mayOmit reports whether a request without the field is safe. A driver that runs something
// like "rm -rf $target_path/*" without a check would delete everything on the node. With the
// path of a canary such a driver shows itself.
func (c *ruleRun) mayOmit(path string, good proto.Message, field protoreflect.Name) bool {
	isPath := strings.HasSuffix(string(field), "_path")
	if !isPath && field != "volume_id" && field != "snapshot_id" && field != "group_snapshot_id" {
		return true
	}
	k := c.plantCanary()
	defer k.remove()
	req := proto.Clone(good).ProtoReflect()
	fields := req.Descriptor().Fields()
	req.Set(fields.ByName(field), protoreflect.ValueOfString(k.tree))
	var undo func() // a driver that needs only volume_context mounts an unknown volume, and may
	if isPath {
		id := c.name() // else any driver would mount there
		switch {
		case strings.HasSuffix(path, "/NodeStageVolume"):
			req.Set(fields.ByName("volume_id"), protoreflect.ValueOfString(id))
			undo = func() {
				send(c, c.Node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: k.tree})
			}
		case strings.HasSuffix(path, "/NodePublishVolume"):
			req.Set(fields.ByName("volume_id"), protoreflect.ValueOfString(id))
			undo = func() {
				send(c, c.Node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: k.tree})
			}
		}
	}
	c.invoke(path, req.Interface(), newMessage(strings.TrimSuffix(string(req.Descriptor().Name()), "Request")+"Response"))
	if undo != nil && c.run.mountBelow(k.tree) != "" {
		undo()
	}
	return k.harm() == ""
}
