package csitest

import (
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var getCapacity = controllerCap(csi.ControllerServiceCapability_RPC_GET_CAPACITY)

// capacityRequest asks for the capacity for volumes as of createRequest.
func (c *ruleRun) capacityRequest() *csi.GetCapacityRequest {
	return &csi.GetCapacityRequest{
		VolumeCapabilities: []*csi.VolumeCapability{c.capability()}, Parameters: maps.Clone(c.run.cfg.Parameters),
	}
}

// noCapacity demands the answer for volumes that cannot be created: no capacity, or that
// the request is invalid.
func noCapacity(a answer[csi.GetCapacityResponse], because string) {
	if a.Err == nil && a.Resp.GetAvailableCapacity() == 0 || a.is(codes.InvalidArgument, codes.NotFound) {
		return
	}
	a.wrong("available_capacity 0, or INVALID_ARGUMENT: %s", because)
}

var capacityRules = []Rule{
	{
		ID: "controller.capacity.answers", Level: Must, Spec: "GetCapacity",
		Title: "GetCapacity answers with and without volume_capabilities and parameters",
		Why: "Every field is optional. external-provisioner asks with the parameters of every StorageClass once a minute, and creates the " +
			"scheduler's CSIStorageCapacity objects from the answers.",
		Needs: needs(getCapacity),
		check: func(c *ruleRun) {
			send(c, c.Controller.GetCapacity, &csi.GetCapacityRequest{}).ok()
			send(c, c.Controller.GetCapacity, c.capacityRequest()).ok()
		},
	},
	{
		ID: "controller.capacity.unsupported-capability", Level: Must, Spec: "GetCapacity",
		Title: "there is no capacity for volume_capabilities that CreateVolume refuses",
		Why:   "The scheduler sends the pod to where the capacity is, and CreateVolume fails there again and again.",
		Needs: needs(createVolume, getCapacity),
		check: func(c *ruleRun) {
			other := c.createRequest()
			other.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
			if !send(c, c.Controller.CreateVolume, other).is(codes.InvalidArgument) {
				c.excuse("the driver takes every access mode")
			}
			req := c.capacityRequest()
			req.VolumeCapabilities = other.GetVolumeCapabilities()
			noCapacity(send(c, c.Controller.GetCapacity, req), "CreateVolume refuses the volume_capabilities")
		},
	},
	{
		ID: "controller.capacity.bad-parameters", Level: Should, Spec: "GetCapacity",
		Title: "there is no capacity for parameters that CreateVolume refuses",
		Why:   "The scheduler sends the pod to where the capacity is, and CreateVolume fails there again and again.",
		Needs: needs(createVolume, getCapacity),
		check: func(c *ruleRun) {
			req := c.capacityRequest()
			req.Parameters = c.refusedParameters()
			noCapacity(send(c, c.Controller.GetCapacity, req), "CreateVolume refuses the parameters")
		},
	},
	{
		ID: "controller.capacity.limits-agree", Level: Must, Spec: "GetCapacity",
		Title: "minimum_volume_size is not above maximum_volume_size",
		Why:   "Between the two lies every size that a volume may have. The scheduler leaves out nodes whose maximum is too small.",
		Needs: needs(getCapacity),
		check: func(c *ruleRun) {
			a := send(c, c.Controller.GetCapacity, c.capacityRequest())
			least, most := a.ok().GetMinimumVolumeSize(), a.Resp.GetMaximumVolumeSize()
			if least != nil && most != nil && least.GetValue() > most.GetValue() {
				a.wrong("minimum_volume_size of %d at most", most.GetValue())
			}
		},
	},
	{
		ID: "controller.capacity.maximum", Level: Must, Spec: "GetCapacity",
		Title: "a volume above maximum_volume_size is OUT_OF_RANGE",
		Why:   "maximum_volume_size is the largest required_bytes that CreateVolume takes. A driver that takes more has kept pods from nodes that could run them.",
		Needs: needs(createVolume, getCapacity),
		check: func(c *ruleRun) {
			most := send(c, c.Controller.GetCapacity, c.capacityRequest()).ok().GetMaximumVolumeSize()
			if most == nil || most.GetValue() >= 1<<62 {
				c.excuse("GetCapacity returns no maximum_volume_size")
			}
			req := c.createRequest()
			req.CapacityRange = &csi.CapacityRange{RequiredBytes: most.GetValue() + 1}
			send(c, c.Controller.CreateVolume, req).wants(codes.OutOfRange, codes.ResourceExhausted)
		},
	},
	{
		ID: "controller.capacity.minimum", Level: Must, Spec: "GetCapacity",
		Title: "a volume below minimum_volume_size is OUT_OF_RANGE, one of that size is created",
		Why:   "minimum_volume_size is the smallest limit_bytes that CreateVolume takes.",
		Needs: needs(createVolume, getCapacity),
		check: func(c *ruleRun) {
			least := send(c, c.Controller.GetCapacity, c.capacityRequest()).ok().GetMinimumVolumeSize().GetValue()
			if least <= 1 || least > c.run.cfg.Size {
				c.excuse("GetCapacity returns no minimum_volume_size between 1 and the size of the run's volumes")
			}
			req := c.createRequest()
			req.CapacityRange = &csi.CapacityRange{LimitBytes: least - 1}
			send(c, c.Controller.CreateVolume, req).wants(codes.OutOfRange)
			req = c.createRequest()
			req.CapacityRange = &csi.CapacityRange{LimitBytes: least}
			a := send(c, c.Controller.CreateVolume, req)
			if got := a.ok().GetVolume().GetCapacityBytes(); got > least {
				a.wrong("capacity_bytes of %d at most", least)
			}
		},
	},
	{
		ID: "controller.capacity.of-the-node", Level: Should, Spec: "GetCapacity",
		Title: "GetCapacity reports capacity where a volume can be created",
		Why:   "The scheduler never sends a pod to where there is none.",
		Needs: needs(createVolume, getCapacity, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			req := c.createRequest()
			req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{here}}
			if send(c, c.Controller.CreateVolume, req).is(codes.ResourceExhausted) {
				c.excuse("no volume can be created where the node is")
			}
			ask := c.capacityRequest()
			ask.AccessibleTopology = here
			if a := send(c, c.Controller.GetCapacity, ask); a.ok().GetAvailableCapacity() <= 0 {
				a.wrong("available_capacity above 0: a volume was just created there")
			}
		},
	},
	{
		ID: "controller.capacity.empty-topology", Level: Should, Spec: "external-provisioner",
		Title: "an accessible_topology without segments is no restriction",
		Why: "external-provisioner with --enable-capacity sends it to every driver, for nodes whose driver reports no segments. After an error there is no " +
			"CSIStorageCapacity object, and where CSIDriver says storageCapacity: true, every WaitForFirstConsumer claim stays Pending: " +
			"\"node(s) did not have enough free storage\".",
		Needs: needs(getCapacity),
		check: func(c *ruleRun) {
			req := c.capacityRequest()
			all := send(c, c.Controller.GetCapacity, req).ok().GetAvailableCapacity()
			req = c.capacityRequest()
			req.AccessibleTopology = &csi.Topology{}
			if a := send(c, c.Controller.GetCapacity, req); a.ok().GetAvailableCapacity() == 0 && all > 0 {
				a.wrong("available_capacity above 0, as without accessible_topology")
			}
		},
	},
	{
		ID: "controller.capacity.nowhere", Level: Must, Spec: "GetCapacity",
		Title: "there is no capacity in a place that does not exist",
		Why:   "The answer is for volumes accessible from the requested topology. A sum of everything in every answer counts the storage once per place.",
		Needs: needs(createVolume, getCapacity, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			req := c.capacityRequest()
			req.AccessibleTopology = nowhere(c.place())
			create := c.createRequest()
			create.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{req.AccessibleTopology}}
			if send(c, c.Controller.CreateVolume, create).Err == nil {
				c.excuse("volumes are accessible from everywhere")
			}
			noCapacity(send(c, c.Controller.GetCapacity, req), "there is no such place")
		},
	},
	{
		ID: "controller.capacity.kubernetes-parameters", Level: Should, Spec: "external-provisioner",
		Title: "parameters of Kubernetes do not change the capacity",
		Why: "external-provisioner passes all parameters of the StorageClass to GetCapacity, also those of csi.storage.k8s.io that CreateVolume never gets. A driver " +
			"that refuses them has no capacity, and no pod is scheduled.",
		Needs: needs(createVolume, getCapacity),
		check: func(c *ruleRun) {
			req := c.capacityRequest()
			before := send(c, c.Controller.GetCapacity, req).ok().GetAvailableCapacity()
			if req.Parameters == nil {
				req.Parameters = map[string]string{}
			}
			req.Parameters[kubernetesPrefix+"fstype"] = "ext4"
			req.Parameters[kubernetesPrefix+"node-stage-secret-name"] = "none"
			if a := send(c, c.Controller.GetCapacity, req); a.ok().GetAvailableCapacity() == 0 && before > 0 {
				a.wrong("available_capacity as without these parameters: %d", before)
			}
		},
	},
}

// refusedParameters are some with which CreateVolume answers INVALID_ARGUMENT. A
// driver may ignore what it does not know.
func (c *ruleRun) refusedParameters() map[string]string {
	req := c.createRequest()
	if req.Parameters == nil {
		req.Parameters = map[string]string{}
	}
	req.Parameters["csicheck-no-parameter"] = "x"
	if !send(c, c.Controller.CreateVolume, req).is(codes.InvalidArgument) {
		c.excuse("the driver ignores parameters that it does not know")
	}
	return req.Parameters
}
