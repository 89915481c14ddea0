package csitest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Rules about input that no honest CO sends, and about what a driver leaves on the node.
var hostileRules = []Rule{
	{
		ID: "hostile.ids", Level: Must, Spec: "Error Scheme",
		Title: "a volume ID is not used as a path, in a command or in a pattern: an unknown one is answered with the same code whatever it contains, or with INVALID_ARGUMENT; one with a slash is an error",
		Why: "IDs come from PersistentVolumes, which every user with the right to create them can fill in. A driver that uses an unchecked ID as a path or in a " +
			"command reads and deletes files that are not its own. Every path sent here leads to a canary, a few files in csicheck's own directory, and every " +
			"shell fragment creates a file there: a canary that is removed or changed is the finding.",
		Needs: needs(createVolume, plainDir),
		check: func(c *ruleRun) {
			for _, r := range rpcs {
				if r.promised(c) && r.request().ProtoReflect().Descriptor().Fields().ByName("volume_id") != nil {
					c.hostileIDs(r)
				}
			}
		},
	},
	{
		ID: "hostile.paths", Level: Should, Spec: "NodePublishVolume",
		Title: "a path that is relative, contains a NUL or is longer than the system allows is refused",
		Why:   "A relative path would lead to the driver's working directory, which the CO does not know. A retry cannot succeed.",
		Needs: needs(createVolume, nodeService),
		check: func(c *ruleRun) {
			v := c.volume().attach().stage()
			k := c.plantCanary()
			defer k.remove()
			for _, bad := range k.paths() {
				req := v.publishRequest("a")
				req.TargetPath = bad
				a := send(c, c.Node.NodePublishVolume, req)
				if harm := k.harm(); harm != "" {
					c.breach(a.Call, "a refusal, and nothing created", fmt.Sprintf("NodePublishVolume %s", harm))
					return
				}
				if a.is(codes.OK, codes.Internal) || uncertain(a.Err) {
					a.wrong("InvalidArgument, or another final code that names the problem")
				}
			}
		},
	},
	{
		ID: "hostile.large", Level: Must, Spec: "Size Limits",
		Title: "a request that is far too large is answered with a proper code",
		Why:   "One broken client must not take down the driver of a node. gRPC itself answers RESOURCE_EXHAUSTED.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			for _, n := range []int{5 << 10, 1 << 20, 5 << 20} {
				req := c.createRequest()
				req.Parameters = map[string]string{"csicheck": strings.Repeat("x", n)}
				a := send(c, c.Controller.CreateVolume, req)
				if a.is(codes.Internal, codes.Unknown, codes.Unavailable) {
					a.wrong("OK, INVALID_ARGUMENT or another code that says what is wrong with %d bytes of parameters", n)
				}
			}
		},
	},
	{
		ID: "hostile.enum", Level: Must, Spec: "VolumeCapability",
		Title: "an access mode that the driver does not know is refused by the node and by the controller, also as the second of several",
		Why: "A newer CO sends it, and means something that the driver would not do. The kinds of volumes that it does not know are not confirmed by " +
			"ValidateVolumeCapabilities, and have no capacity in GetCapacity.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			unknown := v.capability()
			unknown.AccessMode.Mode = unknownMode
			both := []*csi.VolumeCapability{v.capability(), unknown}
			refused := []codes.Code{codes.InvalidArgument, codes.FailedPrecondition}
			create := c.createRequest()
			create.VolumeCapabilities = both
			send(c, c.Controller.CreateVolume, create).wants(codes.InvalidArgument)
			validate := v.validateRequest()
			validate.VolumeCapabilities = both
			if a := send(c, c.Controller.ValidateVolumeCapabilities, validate); a.Err == nil && a.Resp.GetConfirmed() != nil || !a.is(codes.OK, codes.InvalidArgument) {
				a.wrong("INVALID_ARGUMENT, or OK without confirmed")
			}
			if c.has(getCapacity) {
				req := c.capacityRequest()
				req.VolumeCapabilities = both
				noCapacity(send(c, c.Controller.GetCapacity, req), "a mode is not known")
			}
			if c.has(attachVolume) {
				req := v.attachRequest()
				req.VolumeCapability = unknown
				send(c, c.Controller.ControllerPublishVolume, req).wants(refused...)
			}
			if !c.has(nodeService) {
				return
			}
			if v.attach(); c.has(stageVolume) {
				req := v.stageRequest()
				req.VolumeCapability = unknown
				send(c, c.Node.NodeStageVolume, req).wants(refused...)
				v.stage()
			}
			req := v.publishRequest("a")
			req.VolumeCapability = unknown
			send(c, c.Node.NodePublishVolume, req).wants(refused...)
		},
	},
	{
		ID: "hostile.utf8", Level: Must, Spec: "Error Scheme",
		Title: "a string that is not UTF-8 is refused",
		Why:   "gRPC libraries that do not check pass the bytes on, to file names and to logs that programs parse.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			raw := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), c.name()+"\xff\xfe")
			if err := c.raw("/csi.v1.Controller/DeleteVolume", raw); err == nil {
				c.fail("an error to a volume_id that ends in ff fe", "OK")
			}
		},
	},
	{
		ID: "hostile.unknown-fields", Level: Must, Spec: "Versioning",
		Title: "fields that the driver does not know are ignored",
		Why:   "A CO that speaks a newer minor version of CSI sends them, and the driver is not rebuilt for every Kubernetes.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			req := c.createRequest()
			req.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 12345, protowire.VarintType), 1))
			send(c, c.Controller.CreateVolume, req).ok()
		},
	},
	{
		ID: "socket.directory", Level: Must, Spec: "Supervised Lifecycle Management",
		Title: "nothing else is created in the directory of the socket",
		Why:   "The directory is the CO's, and sidecars watch it. What the driver keeps there is gone with the pod, or left behind on the node.",
		Needs: needs(driverProcess),
		check: func(c *ruleRun) {
			for dir, before := range c.run.siblings {
				for _, name := range siblings(dir) {
					if !slices.Contains(before, name) && filepath.Join(dir, name) != c.run.dir {
						c.error("nothing but the socket", "%s", filepath.Join(dir, name))
					}
				}
			}
		},
	},
	{
		ID: "leaks.node", Level: Must, Spec: "NodeUnstageVolume",
		Title: "repeated volume lifecycles leave no mounts, devices and files on the node",
		Why:   "What every volume leaves behind exhausts the node some day: no free loop device, a mount table that takes seconds to read, a full disk.",
		Needs: needs(createVolume, nodeService, kernelView),
		check: func(c *ruleRun) {
			c.cycle() // what is made once stays
			mountsBefore, filesBefore := c.run.mounted(), len(c.run.files())
			var devices []device
			for range leakCycles {
				devices = append(devices, c.cycle())
			}
			c.mustGo(devices...)
			c.leftOnNode(mountsBefore, filesBefore, leakCycles)
		},
	},
	{
		ID: "leaks.after-kill", Level: Must, Spec: "NodeUnstageVolume",
		Title: "volumes whose driver is killed between any two calls leave no mounts, devices and files on the node",
		Why:   "A driver that keeps its mounts only in memory orphans them with each crash and each upgrade.",
		Needs: needs(createVolume, nodeService, kernelView, restartable), Timeout: 5 * time.Minute,
		check: func(c *ruleRun) {
			kill := func() { c.restart() }
			c.cycle(kill) // what is made once stays
			mountsBefore, filesBefore := c.run.mounted(), len(c.run.files())
			var devices []device
			for range killCycles {
				devices = append(devices, c.cycle(kill))
			}
			c.mustGo(devices...)
			c.leftOnNode(mountsBefore, filesBefore, killCycles)
		},
	},
	{
		ID: "leaks.process", Level: Must, Spec: "Interoperability",
		Title: "repeated volume lifecycles leave no descriptors, threads and processes in the driver",
		Why:   "A driver that loses one with every volume fails after weeks, on the busiest nodes first, and its device is busy meanwhile.",
		Needs: needs(createVolume, kernelView, driverProcess), Timeout: 3 * time.Minute,
		check: func(c *ruleRun) {
			c.cycle()
			if !c.run.foreign() {
				c.excuse("the driver runs in this very process")
			}
			// A leak adds to each of the rounds. What a busy driver starts more of, and keeps for the next
			// call, such as threads for system calls that block, adds to one.
			var grown string
			before := c.run.inventory()
			for range leakRounds {
				for range leakCycles + leakSpare {
					c.cycle()
				}
				after := c.run.inventory()
				for range 20 { // what ends soon is no leak
					if grown = after.grownSince(before, leakCycles); grown == "" {
						return
					}
					time.Sleep(100 * time.Millisecond)
					after = c.run.inventory()
				}
				before = after
			}
			c.fail("as many as before", "%s after %d volume lifecycles", grown, leakCycles+leakSpare)
		},
	},
	{
		ID: "leaks.refused-calls", Level: Must, Spec: "Error Scheme",
		Title: "calls that are refused leave no volumes, snapshots, mounts and files",
		Why: "The answer has no ID with which the CO could delete what was made before the error, and kubelet does not undo a call whose error is final. " +
			"Each call is made several times: what every refusal leaves behind is counted.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			if !c.has(listVolumes) && !(c.has(nodeService) && c.has(kernelView)) {
				c.excuse("neither ListVolumes nor the node shows what is left")
			}
			if c.has(listVolumes) {
				c.refusedVolumes()
			}
			if c.has(createSnapshot) && c.has(listSnapshots) {
				taken := v.snapshotRequest()
				c.snapshotOf(taken)
				other := c.volume()
				taken.SourceVolumeId = other.id
				send(c, c.Controller.CreateSnapshot, taken)
				if left := c.listSnapshots(&csi.ListSnapshotsRequest{SourceVolumeId: other.id}); len(left) > 0 {
					c.fail("no snapshot after CreateSnapshot was refused", "%s", requestJSON(left[0]))
				}
			}
			if c.has(nodeService) && c.has(kernelView) {
				c.refusedOnNode(v.attach())
			}
		},
	},
	{
		// The specification lets the CO unstage what failed. kubelet does not if the error is final.
		ID: "leaks.failed-stage", Level: Should, Spec: "kubelet",
		Title: "NodeStageVolume that fails with a code that is final to kubelet leaves no loop device and no mapping",
		Why: "No NodeUnstageVolume comes: the device stays until the node is restarted, and keeps the volume busy. The rule fails the call with a " +
			"mount option that does not exist, which shows when the device is there already.",
		Needs: needs(createVolume, nodeService, stageVolume, mountAccess, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			d := c.deviceBelow(v.targetPath("a"))
			behind := d.layers()
			v.unpublish("a").unstage()
			switch {
			case len(behind) == 0:
				c.excuse("the volume is on no loop device and no mapping")
			case len(remaining(d)) > 0:
				c.excuse("the device stays after NodeUnstageVolume") // until DeleteVolume, or for leaks.node to find
			}
			req := v.stageRequest()
			req.VolumeCapability.GetMount().MountFlags = []string{noMountFlag}
			a := send(c, c.Node.NodeStageVolume, req)
			if a.Err == nil {
				c.excuse("a mount option that does not exist is no error of NodeStageVolume")
			}
			if uncertain(a.Err) && !a.is(codes.Unknown) || a.is(codes.ResourceExhausted) { // not final: kubelet unstages
				v.unstage()
			}
			for _, left := range remaining(devicesOf(behind)...) {
				a.wrong("no device after the call has failed; there is %s", left)
			}
		},
	},
	{
		ID: "leaks.after-cancel", Level: Must, Spec: "Timeouts",
		Title: "volumes whose calls were cancelled and repeated leave no mounts, devices and files on the node",
		Why:   "kubelet's calls end after two minutes, whatever the driver has done by then. A retry that does not find what the first call made makes it twice.",
		Needs: needs(createVolume, nodeService, kernelView), Timeout: 3 * time.Minute,
		check: func(c *ruleRun) {
			c.cycle() // what is made once stays
			mountsBefore, filesBefore := c.run.mounted(), len(c.run.files())
			var devices []device
			for i := range cancelCycles {
				devices = append(devices, c.cancelledCycle(time.Duration(i+1)*5*time.Millisecond))
			}
			c.mustGo(devices...)
			c.leftOnNode(mountsBefore, filesBefore, cancelCycles/2) // a call may end before it is cancelled
		},
	},
}

// noMountFlag is an option that no file system has.
const noMountFlag = "csicheck-none"

// unknownMode is an access mode that no version of CSI has.
const unknownMode csi.VolumeCapability_AccessMode_Mode = 999

// How many volumes come and go; a leak shows that often. Some more do where the driver
// may have had something open at first that was about to be closed: that hides as many.
// killCycles are fewer, since the driver is killed several times in each.
const (
	leakCycles = 8
	leakSpare  = 4
	leakRounds = 3
	killCycles = 2
	// cancelCycles are few: each has a call that is cancelled before every other one.
	cancelCycles = 4
	// leakRefusals of each kind are brought about: other users may create volumes meanwhile.
	leakRefusals = 3
)

// leftOnNode fails the rule if each of the volumes left something.
func (c *ruleRun) leftOnNode(mountsBefore, filesBefore, volumes int) {
	if n := c.run.mounted() - mountsBefore; n >= volumes {
		c.fail("as many mounts as before", "%d more after %d volume lifecycles", n, volumes)
	}
	if n := len(c.run.files()) - filesBefore; n >= volumes {
		c.fail("as many files as before", "%d more after %d volume lifecycles", n, volumes)
	}
}

// refusedVolumes asks for volumes that there cannot be.
func (c *ruleRun) refusedVolumes() {
	ids := func() map[string]bool {
		all := map[string]bool{}
		for _, e := range c.list(0) {
			all[e.GetVolume().GetVolumeId()] = true
		}
		return all
	}
	for _, change := range []struct {
		what string
		do   func(*csi.CreateVolumeRequest)
	}{
		{"an unknown access mode", func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode.Mode = unknownMode }},
		{"a snapshot that does not exist", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = snapshotSource(c.name()) }},
		{"a source volume that does not exist", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = volumeSource(c.name()) }},
		{"a size beyond all storage", func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1 << 60} }},
	} {
		before, refused := ids(), 0
		for range leakRefusals {
			req := c.createRequest()
			change.do(req)
			if send(c, c.Controller.CreateVolume, req).Err != nil {
				refused++
			}
		}
		if refused < leakRefusals { // for another rule to find
			continue
		}
		var left []string
		for id := range ids() {
			if !before[id] {
				left = append(left, id)
			}
		}
		if len(left) >= leakRefusals { // fewer may be those of other users
			c.fail("no volume after CreateVolume for "+change.what+" was refused", "%d times it left one: %s", len(left), left[0])
		}
	}
}

// refusedOnNode stages and publishes as the driver must not, and restores kubelet's
// directories.
func (c *ruleRun) refusedOnNode(v *volume) {
	unknown := v.capability()
	unknown.AccessMode.Mode = unknownMode
	stage, publish := v.stageRequest(), v.publishRequest("a")
	mountsBefore, filesBefore := c.run.mounted(), len(c.run.files())
	stage.VolumeCapability, publish.VolumeCapability = unknown, unknown
	for range leakRefusals {
		if c.has(stageVolume) {
			a := send(c, c.Node.NodeStageVolume, stage)
			if a.Err == nil { // for hostile.enum to find
				return
			}
			if files, err := os.ReadDir(stage.GetStagingTargetPath()); err == nil && len(files) > 0 {
				a.wrong("an empty staging path after the refusal, without %s", files[0].Name())
			}
		}
		a := send(c, c.Node.NodePublishVolume, publish)
		if a.Err == nil {
			return
		}
		if _, err := os.Lstat(publish.GetTargetPath()); err == nil {
			a.wrong("nothing at the target path after the refusal")
		}
	}
	c.leftOnNode(mountsBefore, filesBefore, 1)
}

// cycle takes a volume through its lifecycle, with something between the calls, and returns
// the device that it was on.
func (c *ruleRun) cycle(between ...func()) (d device) {
	then := func() {
		for _, f := range between {
			f()
		}
	}
	v := c.volume()
	if c.has(nodeService) {
		v.attach().stage()
		then()
		v.publish("a")
		then()
		d = c.deviceBelow(v.targetPath("a"))
		v.unpublish("a")
		then()
		v.unstage()
		then()
		v.detach()
	}
	v.delete()
	c.removeDirs(v)
	return d
}

// cancelledCycle is cycle with every call on the node cancelled once, after some time.
func (c *ruleRun) cancelledCycle(after time.Duration) (d device) {
	v := c.volume().attach()
	if c.has(stageVolume) {
		cancelled(c, after, c.Node.NodeStageVolume, v.stageRequest())
		v.stage()
	}
	cancelled(c, after, c.Node.NodePublishVolume, v.publishRequest("a"))
	v.publish("a")
	d = c.deviceBelow(v.targetPath("a"))
	cancelled(c, after, c.Node.NodeUnpublishVolume, v.unpublishRequest("a"))
	v.unpublish("a")
	if c.has(stageVolume) {
		cancelled(c, after, c.Node.NodeUnstageVolume, v.unstageRequest())
		v.unstage()
	}
	v.detach().delete()
	c.removeDirs(v)
	return d
}

// removeDirs removes kubelet's directories, as kubelet does. Never recursively: a driver may
// have left the volume mounted.
func (c *ruleRun) removeDirs(v *volume) {
	_ = c.run.rmdir(v.stagingPath())
	_ = c.run.rmdir(filepath.Dir(v.stagingPath()))
	_ = c.run.rmdir(filepath.Dir(v.targetPath("a")))
}

// hostileIDs calls the RPC with every hostile ID. The first finding is reported, and the
// other IDs are sent nevertheless, with a new canary.
func (c *ruleRun) hostileIDs(r rpc) {
	k := c.plantCanary()
	defer func() { k.remove() }()
	plain := c.invoke(r.path(), c.filled(r.request()), r.response()).Code()
	undo := strings.Contains(r.method, "Delete") || strings.Contains(r.method, "Unpublish") || strings.Contains(r.method, "Unstage")
	found := false
	report := func(call *Call, want, got string) {
		if !found {
			c.breach(call, want, got)
		}
		found = true
	}
	for i := range k.ids() {
		bad := k.ids()[i]
		req := c.filled(r.request())
		m := req.ProtoReflect()
		m.Set(m.Descriptor().Fields().ByName("volume_id"), protoreflect.ValueOfString(bad.id))
		a := c.invoke(r.path(), req, r.response())
		switch harm := k.harm(); {
		case harm != "":
			report(a.Call, "an ID that leads nowhere", fmt.Sprintf("volume_id %q was used %s: %s %s", bad.id, bad.takenFor, r.method, harm))
			k.remove()
			k = c.plantCanary()
		case strings.Contains(a.responseText(), k.secret):
			report(a.Call, "an ID that leads nowhere", fmt.Sprintf("volume_id %q was used %s: %s returned the content of %s", bad.id, bad.takenFor, r.method, k.file))
		// The first component may name a server, as in IDs of network storage, which cannot be reached.
		case strings.Contains(bad.id, "/") && a.Err != nil:
		case !a.is(plain, codes.NotFound, codes.InvalidArgument) && (!undo || !a.is(codes.OK)):
			report(a.Call, fmt.Sprintf("%s, NotFound or InvalidArgument", plain), a.responseText())
		}
	}
}

// raw calls with bytes that no library of protobuf would send.
func (c *ruleRun) raw(method string, request []byte) error {
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	var resp []byte
	return c.run.controller.Invoke(ctx, method, &request, &resp, grpc.ForceCodec(rawCodec{}))
}

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}
func (rawCodec) Name() string { return "proto" }
