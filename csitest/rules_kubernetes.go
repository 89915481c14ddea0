package csitest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// kubernetesRules are about what kubelet and the sidecars do and the specification does not say.
var kubernetesRules = []Rule{
	{
		ID: "node.connections", Level: Should, Spec: "kubelet",
		Title: "each call for a volume may come over a connection of its own, after NodeGetCapabilities",
		Why: "kubelet makes a connection for each call, and asks for the node's capabilities before nearly every one. Calls fail if the driver keeps " +
			"something by connection, or limits how many there are.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			call := func(method string, req proto.Message) {
				cc := c.dial(c.run.target.Endpoint, "kubelet")
				defer cc.Close()
				to := &conn{to: cc, endpoint: c.run.target.Endpoint, c: c}
				c.invokeOver(to, "/csi.v1.Node/NodeGetCapabilities", &csi.NodeGetCapabilitiesRequest{}, &csi.NodeGetCapabilitiesResponse{}).ok()
				c.invokeOver(to, "/csi.v1.Node/"+method, req, newMessage(method+"Response")).ok()
			}
			if c.has(stageVolume) {
				call("NodeStageVolume", v.stageRequest())
			}
			call("NodePublishVolume", v.publishRequest("a"))
			if c.has(volumeStats) {
				call("NodeGetVolumeStats", v.statsRequest("a"))
			}
			call("NodeUnpublishVolume", v.unpublishRequest("a"))
			if c.has(stageVolume) {
				call("NodeUnstageVolume", v.unstageRequest())
			}
		},
	},
	{
		ID: "node.staging-path-unused", Level: Should, Spec: "kubelet",
		Title: "a driver without STAGE_UNSTAGE_VOLUME takes a staging_target_path that it does not need",
		Why:   "kubelet sends one with NodePublishVolume of a raw block volume and with NodeExpandVolume, whatever the driver's capabilities.",
		Needs: needs(createVolume, nodeService, without(stageVolume)),
		check: func(c *ruleRun) {
			for _, a := range []struct {
				offers func(*run) *csi.VolumeCapability
				opts   []volumeOption
			}{{mountCapability, nil}, {blockCapability, []volumeOption{block}}} {
				if !c.run.offers(a.offers) {
					continue
				}
				v := c.volume(a.opts...).attach()
				req := v.publishRequest("a")
				if v.isBlock() {
					req.StagingTargetPath = v.stagingPath()
				}
				send(c, c.Node.NodePublishVolume, req).ok()
				if c.has(nodeExpandVolume) && !c.has(offlineExpansionOnly) {
					req := v.nodeExpandRequest("a", c.run.cfg.Size)
					req.StagingTargetPath = v.stagingPath()
					send(c, c.Node.NodeExpandVolume, req).ok()
				}
			}
		},
	},
	{
		ID: "node.expand.block-without-staging-path", Level: Should, Spec: "kubelet",
		Title: "a raw block volume that is staged is expanded without staging_target_path",
		Why:   "The field is OPTIONAL, and kubelet leaves it empty for raw block volumes. An error keeps the claim in FileSystemResizePending.",
		Needs: needs(createVolume, stageVolume, nodeExpandVolume, blockAccess, without(offlineExpansionOnly)),
		check: func(c *ruleRun) {
			v := c.volume(block).up("a")
			req := v.nodeExpandRequest("a", c.run.cfg.Size)
			req.StagingTargetPath = ""
			send(c, c.Node.NodeExpandVolume, req).ok()
		},
	},
	{
		ID: "node.stats.block-at-kubelet", Level: Should, Spec: "kubelet",
		Title: "NodeGetVolumeStats of a raw block volume is OK at kubelet's own bind mount of the device",
		Why:   "kubelet binds the device that was published to a path of its own, and asks for the statistics there. A driver that knows only its own paths has no metrics for raw block volumes.",
		Needs: needs(createVolume, volumeStats, blockAccess, kernelView, driverProcess),
		check: func(c *ruleRun) {
			v := c.volume(block).up("a")
			path := filepath.Join(c.mkdir(filepath.Join(c.run.dir, "plugins/kubernetes.io/csi/volumeDevices", v.pv(), "dev")), podUID("a"))
			unbind, err := bindFile(v.targetPath("a"), path)
			if err != nil {
				c.excuse("the published device cannot be bound to another path: %v", err)
			}
			defer unbind()
			for _, pid := range c.run.pids() {
				if info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, path)); err != nil || info.Mode()&os.ModeDevice == 0 {
					c.excuse("the driver's mount namespace does not have csicheck's mounts")
				}
			}
			send(c, c.Node.NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: path}).ok()
		},
	},
	{
		ID: "node.publish.inline", Level: Should, Spec: "kubelet",
		Title: "an inline volume is published, again, and removed by NodeUnpublishVolume",
		Why: "For a volume in a pod's own manifest kubelet calls only NodePublishVolume, with an ID that no controller has made, and NodeUnpublishVolume. " +
			"What remains after that is never removed. A driver that refuses such a volume does not have them.",
		Needs: needs(nodeService),
		check: func(c *ruleRun) {
			sum := sha256.Sum256([]byte(c.name()))
			id := "csi-" + hex.EncodeToString(sum[:])
			pod := c.mkdir(filepath.Join(c.run.dir, "pods", podUID(id), "volumes/kubernetes.io~csi/inline"))
			capability := mountCapability(c.run)
			capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
			req := &csi.NodePublishVolumeRequest{
				VolumeId: id, TargetPath: filepath.Join(pod, "mount"), VolumeCapability: capability,
				VolumeContext: map[string]string{
					kubernetesPrefix + "ephemeral": "true", kubernetesPrefix + "pod.name": "csicheck", kubernetesPrefix + "pod.namespace": "default",
					kubernetesPrefix + "pod.uid": podUID(id), kubernetesPrefix + "serviceAccount.name": "default",
				},
			}
			if a := send(c, c.Node.NodePublishVolume, req); a.Err != nil {
				c.excuse("it has no inline volumes, or none without volumeAttributes: %s", a.responseText())
			}
			send(c, c.Node.NodePublishVolume, req).ok()
			for range 2 {
				send(c, c.Node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: req.GetTargetPath()}).ok()
				if info, err := os.Lstat(req.GetTargetPath()); !os.IsNotExist(err) {
					c.fail("nothing at the target path", "%v", orMode(info, err))
				}
			}
			if c.has(listVolumes) && slices.ContainsFunc(c.list(0), func(e *csi.ListVolumesResponse_Entry) bool { return strings.Contains(e.GetVolume().GetVolumeId(), id) }) {
				c.fail("no inline volume after NodeUnpublishVolume", "%s is in the list", id)
			}
		},
	},
	{
		ID: "controller.unpublish.node-dead", Level: Should, Spec: "external-attacher",
		Title: "a volume that is still staged and published is unpublished from its node, and the node can clean up later",
		Why: "A dead node calls neither NodeUnpublishVolume nor NodeUnstageVolume. Six minutes later, or at once with the taint out-of-service, the volume is detached all the same, " +
			"so that a pod on another node can have it. When the node is back, kubelet cleans up there.",
		Needs: needs(createVolume, attachVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			send(c, c.Controller.ControllerUnpublishVolume, v.detachRequest()).ok()
			if c.has(secondNode) {
				other := *v
				other.node = c.run.target.SecondNode
				other.attach().detach()
			}
			v.unpublish("a").unstage().detach()
		},
	},
	{
		ID: "identity.probe.while-working", Level: Should, Spec: "livenessprobe",
		Title: "Probe is answered while calls for volumes are in flight",
		Why:   "livenessprobe waits a few seconds, and kubelet restarts the driver after three failures: a driver that works is killed because it works.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			cc := c.dial(c.run.target.Endpoint, "livenessprobe")
			defer cc.Close()
			done := make(chan struct{})
			c.parallel(5, func(i int) {
				if i > 0 {
					c.workUntil(done)
					return
				}
				defer close(done)
				for range 20 {
					if call := c.probe(&conn{to: cc, endpoint: c.run.target.Endpoint, c: c}); call != nil {
						c.breach(call, "OK within one of three tries of 3 s", call.responseText())
						return
					}
				}
			})
		},
	},
	{
		ID: "controller.modify.kubernetes-parameters", Level: Should, Spec: "external-resizer",
		Title: "mutable parameters of Kubernetes are ignored: ControllerModifyVolume with csi.storage.k8s.io/… is OK",
		Why:   "external-resizer with --extra-modify-metadata adds the names of the claim and the volume. A driver that refuses what it does not know changes nothing then.",
		Needs: needs(createVolume, modifyVolume, mutable),
		check: func(c *ruleRun) {
			p := maps.Clone(c.run.cfg.MutableParameters)
			for _, key := range []string{"pvc/name", "pvc/namespace", "pv/name"} {
				p[kubernetesPrefix+key] = c.name()
			}
			send(c, c.Controller.ControllerModifyVolume, c.volume().modifyRequest(p)).ok()
		},
	},
}

// workUntil takes a volume through its life again and again.
func (c *ruleRun) workUntil(done chan struct{}) {
	for {
		v := c.volume()
		select {
		case <-done:
			return // cleaning up deletes it
		default:
		}
		if c.has(nodeService) {
			v.up("a").unpublish("a").unstage().detach()
		}
		v.delete()
	}
}

// probe tries three times, and returns the last call if none is answered in time.
func (c *ruleRun) probe(to *conn) *Call {
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
		ctx, call := withCall(ctx)
		err := to.Invoke(ctx, "/csi.v1.Identity/Probe", &csi.ProbeRequest{}, &csi.ProbeResponse{})
		cancel()
		if err == nil {
			return nil
		}
		if try == 3 || code(err) == codes.Unimplemented {
			return *call
		}
	}
}
