package csitest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A volume is one that a rule has created, with the paths that kubelet would use.
type volume struct {
	c              *ruleRun
	made           *csi.CreateVolumeRequest
	created        *csi.Volume
	id             string
	node           string
	publishContext map[string]string
}

// mountCapability and blockCapability are what kubelet makes of a ReadWriteOnce
// claim.
func mountCapability(r *run) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: r.readWriteOnce()},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: r.cfg.FSType}},
	}
}

func blockCapability(r *run) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: r.readWriteOnce()},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func (r *run) requirement() *csi.TopologyRequirement {
	if !volumeTopology.met(r) || len(r.place.GetSegments()) == 0 {
		return nil
	}
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{r.place}, Preferred: []*csi.Topology{r.place}}
}

func (r *run) readWriteOnce() csi.VolumeCapability_AccessMode_Mode {
	if slices.Contains(r.has.Node, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER) {
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// capability is that of the volumes which a rule creates by default: a file
// system, or raw block if the driver has nothing else.
func (c *ruleRun) capability() *csi.VolumeCapability {
	if c.run.offers(mountCapability) || !c.run.offers(blockCapability) {
		return mountCapability(c.run)
	}
	return blockCapability(c.run)
}

// createRequest asks for a new volume of the usual size, for the node if the driver has
// places: that is what external-provisioner does for a pod that was scheduled there.
func (c *ruleRun) createRequest() *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		AccessibilityRequirements: c.run.requirement(),
		Name:                      c.name(),
		CapacityRange:             &csi.CapacityRange{RequiredBytes: c.run.cfg.Size},
		VolumeCapabilities:        []*csi.VolumeCapability{c.capability()},
		Parameters:                maps.Clone(c.run.cfg.Parameters),
	}
}

// A volumeOption changes the request for a volume.
type volumeOption func(*ruleRun, *csi.CreateVolumeRequest)

func block(c *ruleRun, r *csi.CreateVolumeRequest) {
	r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability(c.run)}
}

func withMode(m csi.VolumeCapability_AccessMode_Mode) volumeOption {
	return func(_ *ruleRun, r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode.Mode = m }
}

func from(s *csi.VolumeContentSource) volumeOption {
	return func(_ *ruleRun, r *csi.CreateVolumeRequest) { r.VolumeContentSource = s }
}

// volume makes one.
func (c *ruleRun) volume(opts ...volumeOption) *volume {
	req := c.createRequest()
	for _, o := range opts {
		o(c, req)
	}
	return c.volumeOf(req, step(c, c.Controller.CreateVolume, req).GetVolume())
}

// volumeOf is the volume of an answer to req.
func (c *ruleRun) volumeOf(req *csi.CreateVolumeRequest, made *csi.Volume) *volume {
	return &volume{c: c, made: req, created: made, id: made.GetVolumeId(), node: c.run.nodeID}
}

// step is a call that prepares what a rule is about: it is repeated as a CO does,
// and must succeed before the rule's time is over.
func step[Req, Resp any](c *ruleRun, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) *Resp {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		a := send(c, rpc, req)
		if a.Err == nil || !uncertain(a.Err) {
			return a.ok()
		}
		select {
		case <-c.ctx.Done():
			return a.ok()
		case <-time.After(wait):
		}
	}
}

func (v *volume) capability() *csi.VolumeCapability {
	return proto.CloneOf(v.made.GetVolumeCapabilities()[0])
}

func (v *volume) isBlock() bool { return v.capability().GetBlock() != nil }

// Requests: each as a CO would send it now, to be changed by the rule.

func (v *volume) deleteRequest() *csi.DeleteVolumeRequest {
	return &csi.DeleteVolumeRequest{VolumeId: v.id}
}

func (v *volume) attachRequest() *csi.ControllerPublishVolumeRequest {
	return &csi.ControllerPublishVolumeRequest{
		VolumeId: v.id, NodeId: v.node, VolumeCapability: v.capability(), VolumeContext: v.created.GetVolumeContext(),
	}
}

func (v *volume) detachRequest() *csi.ControllerUnpublishVolumeRequest {
	return &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: v.node}
}

func (v *volume) validateRequest() *csi.ValidateVolumeCapabilitiesRequest {
	return &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: v.id, VolumeContext: v.created.GetVolumeContext(), Parameters: v.made.GetParameters(),
		VolumeCapabilities: []*csi.VolumeCapability{v.capability()},
	}
}

func (v *volume) expandRequest(size int64) *csi.ControllerExpandVolumeRequest {
	return &csi.ControllerExpandVolumeRequest{
		VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: v.capability(),
	}
}

func (v *volume) stageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.stagingPath(), VolumeCapability: v.capability(),
		PublishContext: v.publishContext, VolumeContext: v.created.GetVolumeContext(),
	}
}

func (v *volume) unstageRequest() *csi.NodeUnstageVolumeRequest {
	return &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.stagingPath()}
}

// publishRequest is for the pod of that name. The parent of the target exists.
func (v *volume) publishRequest(pod string) *csi.NodePublishVolumeRequest {
	r := &csi.NodePublishVolumeRequest{
		VolumeId: v.id, TargetPath: v.targetPath(pod), VolumeCapability: v.capability(),
		PublishContext: v.publishContext, VolumeContext: v.created.GetVolumeContext(),
	}
	if v.c.has(stageVolume) {
		r.StagingTargetPath = v.stagingPath()
	}
	return r
}

func (v *volume) unpublishRequest(pod string) *csi.NodeUnpublishVolumeRequest {
	return &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.targetPath(pod)}
}

func (v *volume) statsRequest(pod string) *csi.NodeGetVolumeStatsRequest {
	return &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.targetPath(pod)}
}

func (v *volume) healthRequest(pod string) *csi.NodeGetVolumeHealthRequest {
	return &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, VolumePublishPath: v.targetPath(pod)}
}

func (v *volume) nodeExpandRequest(pod string, size int64) *csi.NodeExpandVolumeRequest {
	r := &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: v.targetPath(pod), VolumeCapability: v.capability(),
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	}
	if v.c.has(stageVolume) {
		r.StagingTargetPath = v.stagingPath()
	}
	return r
}

// Steps, each of which must succeed. Those for which there is no capability do
// nothing.

func (v *volume) attach() *volume {
	if v.c.has(attachVolume) {
		v.publishContext = step(v.c, v.c.Controller.ControllerPublishVolume, v.attachRequest()).GetPublishContext()
	}
	return v
}

func (v *volume) stage() *volume {
	if v.c.has(stageVolume) {
		step(v.c, v.c.Node.NodeStageVolume, v.stageRequest())
	}
	return v
}

func (v *volume) publish(pod string) *volume {
	step(v.c, v.c.Node.NodePublishVolume, v.publishRequest(pod))
	return v
}

// up attaches, stages, and publishes to the pods.
func (v *volume) up(pods ...string) *volume {
	v.attach().stage()
	for _, pod := range pods {
		v.publish(pod)
	}
	return v
}

func (v *volume) unpublish(pod string) *volume {
	step(v.c, v.c.Node.NodeUnpublishVolume, v.unpublishRequest(pod))
	return v
}

func (v *volume) unstage() *volume {
	if v.c.has(stageVolume) {
		step(v.c, v.c.Node.NodeUnstageVolume, v.unstageRequest())
	}
	return v
}

func (v *volume) detach() *volume {
	if v.c.has(attachVolume) {
		step(v.c, v.c.Controller.ControllerUnpublishVolume, v.detachRequest())
	}
	return v
}

func (v *volume) delete() { step(v.c, v.c.Controller.DeleteVolume, v.deleteRequest()) }

// Paths of kubelet. What kubelet creates before it calls is created here.

func (v *volume) stagingPath() string {
	plugins := filepath.Join(v.c.run.dir, "plugins/kubernetes.io/csi")
	if v.isBlock() {
		return v.c.mkdir(filepath.Join(plugins, "volumeDevices/staging", v.pv()))
	}
	handle := sha256.Sum256([]byte(v.id))
	return v.c.mkdir(filepath.Join(plugins, v.c.run.driverDir(), hex.EncodeToString(handle[:]), "globalmount"))
}

// driverDir is the name of the driver as a component of a path: itself, unless it means
// something else there or in a shell.
func (r *run) driverDir() string {
	name := r.info.GetName()
	if plainName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "driver-" + hex.EncodeToString(sum[:8])
}

func (v *volume) targetPath(pod string) string {
	path := filepath.Join(v.c.run.dir, "pods", podUID(pod), "volumes/kubernetes.io~csi", v.pv(), "mount")
	if v.isBlock() {
		path = filepath.Join(v.c.run.dir, "plugins/kubernetes.io/csi/volumeDevices/publish", v.pv(), podUID(pod))
	}
	v.c.mkdir(filepath.Dir(path))
	return path
}

// pv is the name of the PersistentVolume. Rules may use odd names for the volume.
func (v *volume) pv() string {
	sum := sha256.Sum256([]byte(v.made.GetName()))
	return "pvc-" + hex.EncodeToString(sum[:8])
}

func podUID(pod string) string {
	sum := sha256.Sum256([]byte(pod))
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// snapshotRequest asks for a new snapshot of v.
func (v *volume) snapshotRequest() *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{SourceVolumeId: v.id, Name: v.c.name()}
}

// snapshot makes one and waits until it is ready to use.
func (v *volume) snapshot() *csi.Snapshot { return v.c.snapshotOf(v.snapshotRequest()) }

func (c *ruleRun) snapshotOf(req *csi.CreateSnapshotRequest) *csi.Snapshot {
	for {
		s := step(c, c.Controller.CreateSnapshot, req).GetSnapshot()
		if s.GetReadyToUse() {
			return s
		}
		select {
		case <-c.ctx.Done():
			c.fail("ready_to_use within the rule's time", "snapshot %q is still not ready", s.GetSnapshotId())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func snapshotSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func volumeSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

// unknownID is the ID of a deleted volume.
func (c *ruleRun) unknownID() string {
	if c.has(createVolume) {
		v := c.volume()
		v.delete()
		return v.id
	}
	return c.name()
}
