package csitest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	tokensKey  = "csi.storage.k8s.io/serviceAccount.tokens"
	plantedKey = "csicheck-planted"
)

// Each plants a secret in requests of every RPC that has a field for one, and searches for
// it where it must not be.
var secretRules = []Rule{
	{
		ID: "secrets.not-logged", Level: Should, Spec: "Secrets Requirements",
		Title: "secrets and service-account tokens of requests are not in the log",
		Why: "Logs go where secrets must not: to files, collectors, support cases. Tokens come in volume_context, which no field option marks " +
			"(CVE-2023-2878, CVE-2024-3744).",
		Needs: needs(createVolume, driverLog),
		check: func(c *ruleRun) {
			planted := c.plant()
			c.sendSecrets()
			for line := range bytes.Lines(c.log()) {
				if bytes.Contains(line, []byte(planted)) {
					c.fail("no secret in the log", "%s", masked(string(line), planted))
				}
			}
		},
	},
	{
		ID: "secrets.not-in-errors", Level: Must, Spec: "Error Scheme",
		Title: "a secret of a request is not in the message of its error",
		Why:   "COs show messages to users, and keep them in events that many may read.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			planted := c.plant()
			c.sendSecrets()
			for _, call := range c.run.record.all() {
				if call.Rule == c.rule.ID && strings.Contains(call.Status.Message(), planted) {
					c.breach(call, "a message without the secret", masked(call.responseText(), planted))
					return
				}
			}
		},
	},
	{
		ID: "secrets.not-in-arguments", Level: Must, Spec: "Secrets Requirements",
		Title: "secrets are not in the arguments of the programs that the driver runs",
		Why:   "Every user of the node can read them in /proc, ps and audit logs. mount(8), cryptsetup and similar programs take secrets from a file descriptor.",
		Needs: needs(createVolume, nodeService, kernelView, driverProcess),
		check: func(c *ruleRun) {
			planted := c.plant()
			stop, found := make(chan struct{}), make(chan string, 1)
			go func() { found <- c.run.watchArguments(planted, stop) }()
			func() {
				defer close(stop) // also if a call ends the rule
				c.sendSecrets()
			}()
			if line := <-found; line != "" {
				c.fail("no secret in the arguments of a process", "%s", masked(line, planted))
			}
		},
	},
	{
		ID: "secrets.not-in-files", Level: Should, Spec: "Secrets Requirements",
		Title: "secrets are not in files that the driver writes",
		Why: "Files outlive the pod, are backed up and read by others. Searched are the directories of kubelet and of the socket, and files that the driver has open " +
			"for writing.",
		Needs: needs(createVolume, nodeService, kernelView, driverProcess),
		check: func(c *ruleRun) {
			planted := c.plant()
			c.sendSecrets()
			for _, path := range c.run.written() {
				if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(planted)) {
					c.error("no secret in a file", "%s", path)
				}
			}
		},
	},
	{
		ID: "secrets.not-in-responses", Level: Should, Spec: "Volume",
		Title: "secrets of requests are in no answer",
		Why: "volume_context, publish_context and the IDs are kept in PersistentVolumes and VolumeAttachments, which far more users may read than secrets. " +
			"COs log the answers, too.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			planted := c.plant()
			c.sendSecrets()
			for _, call := range c.run.record.all() {
				if call.Rule != c.rule.ID || call.Response == nil {
					continue
				}
				if text := requestJSON(call.Response); strings.Contains(text, planted) {
					c.breach(call, "an answer without the secret", masked(text, planted))
					return
				}
			}
		},
	},
	{
		ID: "secrets.wrong", Level: Must, Spec: "Secrets Requirements",
		Title: "secrets that are not valid for authentication are UNAUTHENTICATED",
		Why: "The code tells the operator to mend the secrets. Sent are those of the run with other values, once with each RPC; OK is accepted, since a driver need not " +
			"authenticate with them, and so are PERMISSION_DENIED and, for a value that cannot be one, INVALID_ARGUMENT.",
		Needs: needs(createVolume, secretsGiven),
		check: func(c *ruleRun) {
			wrong := map[string]string{}
			for k := range c.run.cfg.Secrets {
				wrong[k] = "wrong-" + rand.Text()
			}
			c.withEachSecret(func(r rpc, req proto.Message) {
				req.ProtoReflect().Set(req.ProtoReflect().Descriptor().Fields().ByName("secrets"), secretsOf(wrong))
				a := c.invoke(r.path(), req, r.response())
				if !a.is(codes.OK, codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument) {
					c.breach(a.Call, "Unauthenticated: the secrets are wrong", a.responseText())
				}
			})
		},
	},
}

var secretsGiven = Need{"secrets", FacilitySecrets, func(r *run) bool { return len(r.cfg.Secrets) > 0 }}

// withEachSecret calls do with a request of each RPC that has secrets and is about volumes,
// with which nothing is wrong.
func (c *ruleRun) withEachSecret(do func(rpc, proto.Message)) {
	try := func(requests ...proto.Message) {
		for _, req := range requests {
			i := slices.IndexFunc(rpcs, func(r rpc) bool { return r.method+"Request" == string(req.ProtoReflect().Descriptor().Name()) })
			if rpcs[i].promised(c) {
				do(rpcs[i], req)
			}
		}
	}
	try(c.createRequest())
	if c.has(createSnapshot) { // of a volume of its own: one in use may have none, and one with snapshots may have to stay
		try(c.volume().snapshotRequest())
	}
	v := c.volume().attach().stage()
	try(v.validateRequest(), v.attachRequest(), v.stageRequest(), v.publishRequest("a"))
	if c.has(mutable) {
		try(v.modifyRequest(c.run.cfg.MutableParameters))
	}
	if c.has(nodeService) {
		v.publish("a")
	}
	if !c.has(offlineExpansionOnly) {
		try(v.expandRequest(c.run.cfg.Size), v.nodeExpandRequest("a", c.run.cfg.Size))
	}
	if c.has(nodeService) {
		v.unpublish("a").unstage()
	}
	try(v.detachRequest())
	v.detach()
	try(v.deleteRequest())
}

func secretsOf(m map[string]string) protoreflect.Value {
	r := (&csi.CreateVolumeRequest{Secrets: m}).ProtoReflect()
	return r.Get(r.Descriptor().Fields().ByName("secrets"))
}

func masked(text, secret string) string { return strings.ReplaceAll(text, secret, "<THE SECRET>") }

// plant makes a secret, which goes into every request from now on.
func (c *ruleRun) plant() string {
	c.planted = "planted-" + rand.Text()
	return c.planted
}

// withSecrets is the request with the run's secrets, unless it has its own, and the planted
// one. What the rule has is not changed: it may be sending the same at the same time.
func (c *ruleRun) withSecrets(req any) any {
	m, ok := req.(proto.Message)
	if !ok || len(c.run.cfg.Secrets) == 0 && c.planted == "" {
		return req
	}
	f := m.ProtoReflect().Descriptor().Fields().ByName("secrets")
	if f == nil {
		return req
	}
	m = proto.Clone(m)
	set := func(key, value string) {
		m.ProtoReflect().Mutable(f).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
	}
	if !m.ProtoReflect().Has(f) {
		for k, v := range c.run.cfg.Secrets {
			set(k, v)
		}
	}
	if c.planted != "" {
		set(plantedKey, c.planted)
	}
	return m
}

// sendSecrets makes every call that has a field for secrets: once in the life of a
// volume, whose last part is left to the cleaning up, and once for what does not exist.
func (c *ruleRun) sendSecrets() {
	v := c.volume()
	send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest())
	if c.has(createSnapshot) {
		c.sendSnapshotSecrets(v)
	}
	if c.has(groupService) {
		g := c.group(v)
		send(c, c.Group.GetVolumeGroupSnapshot, getGroupRequest(g))
		send(c, c.Group.DeleteVolumeGroupSnapshot, deleteGroupRequest(g))
	}
	if v.attach(); c.has(nodeService) {
		c.sendNodeSecrets(v.stage())
	}
	if c.has(modifyVolume) && c.has(mutable) { // after the node's: it may not have what these ask for
		send(c, c.Controller.ControllerModifyVolume, v.modifyRequest(c.run.cfg.MutableParameters))
	}
	for _, r := range rpcs {
		if req := r.request(); r.promised(c) && req.ProtoReflect().Descriptor().Fields().ByName("secrets") != nil {
			c.invoke(r.path(), c.filled(req), r.response())
		}
	}
	send(c, c.Controller.CreateVolume, &csi.CreateVolumeRequest{Name: c.name()}) // what filled asks for is made
}

func (c *ruleRun) sendSnapshotSecrets(v *volume) {
	id := v.snapshot().GetSnapshotId()
	if c.has(listSnapshots) {
		send(c, c.Controller.ListSnapshots, &csi.ListSnapshotsRequest{SnapshotId: id})
	}
	if c.has(getSnapshot) {
		send(c, c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: id})
	}
	if c.has(snapshotMetadata) { // whose errors matter as little as the others'
		_, _ = c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: id})
		_, _ = c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: id, TargetSnapshotId: id})
		_, _ = c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: c.name()})
		_, _ = c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: c.name(), TargetSnapshotId: id})
	}
	c.deleteSnapshot(id)
}

// sendNodeSecrets publishes a volume that is staged, with a pod's tokens, and expands it.
func (c *ruleRun) sendNodeSecrets(v *volume) {
	req := v.publishRequest("a")
	req.VolumeContext = maps.Clone(req.GetVolumeContext())
	if req.VolumeContext == nil {
		req.VolumeContext = map[string]string{}
	}
	req.VolumeContext[tokensKey] = fmt.Sprintf(`{"":{"token":%q}}`, c.planted)
	send(c, c.Node.NodePublishVolume, req)
	if c.has(expandVolume) {
		send(c, c.Controller.ControllerExpandVolume, v.expandRequest(2*c.run.cfg.Size))
	}
	if c.has(nodeExpandVolume) {
		send(c, c.Node.NodeExpandVolume, v.nodeExpandRequest("a", 2*c.run.cfg.Size))
	}
}
