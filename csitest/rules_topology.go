package csitest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var (
	volumeTopology   = pluginCap(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	snapshotTopology = pluginCap(csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
	secondTopology   = Need{"another place where volumes can be made", FacilitySecondTopology, func(r *run) bool { return len(r.target.SecondTopology) > 0 }}
)

// place is where the node is.
func (c *ruleRun) place() *csi.Topology {
	t := send(c, c.Node.NodeGetInfo, &csi.NodeGetInfoRequest{}).ok().GetAccessibleTopology()
	if len(t.GetSegments()) == 0 {
		c.excuse("NodeGetInfo has no accessible_topology")
	}
	return t
}

// nowhere is a place of the same kind that there is not.
func nowhere(t *csi.Topology) *csi.Topology {
	t = proto.CloneOf(t)
	for k := range t.GetSegments() {
		t.Segments[k] = "csicheck-nowhere"
	}
	return t
}

// within reports whether every segment of the volume's topology is one of the place.
func within(volume, place *csi.Topology) bool {
	for k, v := range volume.GetSegments() {
		if place.GetSegments()[k] != v {
			return false
		}
	}
	return true
}

// accessible reports whether v can be reached from the place. No topology means that it
// can from everywhere.
func accessible(v *csi.Volume, place *csi.Topology) bool {
	all := v.GetAccessibleTopology()
	return len(all) == 0 || slices.ContainsFunc(all, func(t *csi.Topology) bool { return within(t, place) })
}

// usable reports whether s can be restored in the place. No topology means everywhere.
func usable(s *csi.Snapshot, place *csi.Topology) bool {
	return accessible(&csi.Volume{AccessibleTopology: s.GetAccessibleTopology()}, place)
}

// reaches is from how many of the places v is accessible.
func reaches(v *csi.Volume, places []*csi.Topology) (n int) {
	for _, p := range places {
		if accessible(v, p) {
			n++
		}
	}
	return n
}

func topologyText(places []*csi.Topology) string {
	all := make([]string, len(places))
	for i, p := range places {
		all[i] = requestJSON(p)
	}
	return strings.Join(all, " and ")
}

func placed(requisite, preferred []*csi.Topology) volumeOption {
	return func(_ *ruleRun, r *csi.CreateVolumeRequest) {
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: requisite, Preferred: preferred}
	}
}

var topologyRules = []Rule{
	{
		ID: "topology.node-place", Level: Should, Spec: "NodeGetInfo",
		Title: "NodeGetInfo returns the topology of the node",
		Why:   "A CO compares the node's accessible_topology with the volume's. Without it every node, or none, suits a volume that is in one place.",
		Needs: needs(volumeTopology, nodeService),
		check: func(c *ruleRun) {
			if a := send(c, c.Node.NodeGetInfo, &csi.NodeGetInfoRequest{}); len(a.ok().GetAccessibleTopology().GetSegments()) == 0 {
				a.wrong("accessible_topology: the plugin reports VOLUME_ACCESSIBILITY_CONSTRAINTS")
			}
		},
	},
	{
		ID: "topology.create.no-requirement", Level: Must, Spec: "CreateVolume",
		Title: "a volume without accessibility_requirements can be published to every node that its accessible_topology allows",
		Why:   "The field is optional. The CO schedules the pod by the accessible_topology in the answer; without one the volume is taken to be everywhere.",
		Needs: needs(createVolume, attachVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			v := c.volume(func(_ *ruleRun, r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = nil })
			if accessible(v.created, c.place()) {
				v.attach()
			}
		},
	},
	{
		ID: "topology.create.requisite", Level: Must, Spec: "TopologyRequirement",
		Title: "a volume that is requested for the topology of the node is accessible from it",
		Why:   "The pod was scheduled first and the volume created for it. A volume elsewhere leaves the pod pending forever.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			for _, r := range [][2][]*csi.Topology{{{here}, nil}, {{here}, {here}}, {nil, {here}}} {
				if v := c.volume(placed(r[0], r[1])); !accessible(v.created, here) {
					c.fail("accessible_topology that has "+requestJSON(here), "%s", requestJSON(v.created))
				}
			}
		},
	},
	{
		ID: "topology.create.any-of-requisite", Level: Must, Spec: "TopologyRequirement",
		Title: "a place where nothing can be created does not keep a volume from another of requisite",
		Why:   "The volume must be accessible from one of requisite at least. A node without storage is no reason to fail.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			if v := c.volume(placed([]*csi.Topology{nowhere(here), here}, nil)); !accessible(v.created, here) {
				c.fail("accessible_topology that has "+requestJSON(here), "%s", requestJSON(v.created))
			}
		},
	},
	{
		ID: "topology.create.next-preferred", Level: Must, Spec: "TopologyRequirement",
		Title: "where the first of preferred cannot be satisfied the next one is tried",
		Why:   "preferred is tried from first to last, and the rest of requisite then. external-provisioner puts the selected node first.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			both := []*csi.Topology{nowhere(here), here}
			if v := c.volume(placed(both, both)); !accessible(v.created, here) {
				c.fail("accessible_topology that has "+requestJSON(here), "%s", requestJSON(v.created))
			}
		},
	},
	{
		ID: "topology.create.preferred-order", Level: Must, Spec: "TopologyRequirement",
		Title: "of two places the one that comes first in preferred is taken",
		Why:   "The first one is that of the node which the scheduler has chosen.",
		Needs: needs(createVolume, volumeTopology, nodeService, secondTopology),
		check: func(c *ruleRun) {
			places := []*csi.Topology{c.place(), {Segments: c.run.target.SecondTopology}}
			for range places {
				if v := c.volume(placed(places, places)); !accessible(v.created, places[0]) {
					c.fail("accessible_topology that has "+requestJSON(places[0]), "%s", requestJSON(v.created))
				}
				slices.Reverse(places)
			}
		},
	},
	{
		ID: "topology.create.all-of-requisite", Level: Must, Spec: "TopologyRequirement",
		Title: "a volume that is accessible from several places is so from as many of requisite as it has places",
		Why: "With as many places as requisite has, or more, it is accessible from all of requisite; with fewer, each of its places is another one of requisite. " +
			"The CO starts pods in all of them.",
		Needs: needs(createVolume, volumeTopology, nodeService, secondTopology),
		check: func(c *ruleRun) {
			here, there := c.place(), &csi.Topology{Segments: c.run.target.SecondTopology}
			for _, requisite := range [][]*csi.Topology{{here}, {there}, {here, there}} {
				v := c.volume(placed(requisite, nil)).created
				if reached, want := reaches(v, requisite), min(len(v.GetAccessibleTopology()), len(requisite)); reached < want {
					c.error(fmt.Sprintf("accessible_topology with %d of requisite %s", want, topologyText(requisite)), "%s", requestJSON(v))
				}
			}
		},
	},
	{
		ID: "topology.create.preferred-together", Level: Should, Spec: "TopologyRequirement",
		Title: "a volume that is accessible from two places is so from both that are preferred",
		Why:   "The combination of the preferred places is tried first, before any other of requisite.",
		Needs: needs(createVolume, volumeTopology, nodeService, secondTopology),
		check: func(c *ruleRun) {
			here, there := c.place(), &csi.Topology{Segments: c.run.target.SecondTopology}
			preferred := []*csi.Topology{here, there}
			v := c.volume(placed([]*csi.Topology{nowhere(here), here, there}, preferred)).created
			if len(v.GetAccessibleTopology()) > 1 && reaches(v, preferred) < 2 {
				c.fail("accessible_topology with "+topologyText(preferred), "%s", requestJSON(v))
			}
		},
	},
	{
		ID: "topology.snapshot.usable-from", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot that is requested for the topology of the node is usable from it, and for a place that does not exist it is not created",
		Why:   "The CO restores it where the pod is. Volumes from a snapshot are accessible from where it is usable.",
		Needs: needs(createVolume, createSnapshot, snapshotTopology, nodeService),
		check: func(c *ruleRun) {
			here, v := c.place(), c.volume()
			req := v.snapshotRequest()
			req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{here}, Preferred: []*csi.Topology{here}}
			s := c.snapshotOf(req)
			if !usable(s, here) {
				c.fail("accessible_topology that has "+requestJSON(here), "%s", requestJSON(s))
			}
			if restored := c.volume(from(snapshotSource(s.GetSnapshotId()))); !accessible(restored.created, here) {
				c.fail("a volume that is accessible from "+requestJSON(here), "%s", requestJSON(restored.created))
			}
			req = v.snapshotRequest()
			there := nowhere(here)
			req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{there}}
			if a := send(c, c.Controller.CreateSnapshot, req); a.Err == nil && !usable(a.Resp.GetSnapshot(), there) {
				a.wrong("an error: it cannot be usable from %s", requestJSON(there))
			}
		},
	},
	{
		ID: "topology.create.unsatisfiable", Level: Must, Spec: "CreateVolume",
		Title: "a volume in a place that does not exist is RESOURCE_EXHAUSTED",
		Why: "external-provisioner has the pod rescheduled after RESOURCE_EXHAUSTED. Another code makes it try the same " +
			"place forever, and OK means a volume that no pod can use.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			req := c.createRequest()
			placed([]*csi.Topology{nowhere(c.place())}, nil)(c, req)
			a := send(c, c.Controller.CreateVolume, req)
			if a.Err == nil && len(a.Resp.GetVolume().GetAccessibleTopology()) == 0 {
				c.excuse("volumes are accessible from everywhere")
			}
			a.wants(codes.ResourceExhausted, codes.InvalidArgument)
		},
	},
	{
		ID: "topology.create.nothing-left", Level: Should, Spec: "CreateVolume",
		Title: "a name that was refused for its topology can be used with another one",
		Why:   "The retry asks for the topology of another node. What the first call has left behind must not make it fail.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			req := c.createRequest()
			placed([]*csi.Topology{nowhere(here)}, nil)(c, req)
			if send(c, c.Controller.CreateVolume, req).Err == nil {
				c.excuse("volumes are accessible from everywhere")
			}
			req = proto.CloneOf(req)
			placed([]*csi.Topology{here}, nil)(c, req)
			send(c, c.Controller.CreateVolume, req).ok()
		},
	},
	{
		ID: "topology.create.conflict", Level: Must, Spec: "CreateVolume",
		Title: "a name that is taken by a volume of another place is not OK",
		Why:   "With OK the CO would get a volume that cannot be accessed from where it asked for.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			v := c.volume(placed([]*csi.Topology{here}, nil))
			if len(v.created.GetAccessibleTopology()) == 0 {
				c.excuse("volumes are accessible from everywhere")
			}
			req := proto.CloneOf(v.made)
			placed([]*csi.Topology{nowhere(here)}, nil)(c, req)
			send(c, c.Controller.CreateVolume, req).wants(codes.AlreadyExists, codes.ResourceExhausted, codes.InvalidArgument)
		},
	},
	{
		ID: "topology.create.preferred-not-requisite", Level: Should, Spec: "TopologyRequirement",
		Title: "a preferred place that is not one of requisite is INVALID_ARGUMENT",
		Why:   "All of preferred must be in requisite as well. A driver that reads only preferred creates the volume where it must not be.",
		Needs: needs(createVolume, volumeTopology, nodeService),
		check: func(c *ruleRun) {
			here := c.place()
			req := c.createRequest()
			placed([]*csi.Topology{nowhere(here)}, []*csi.Topology{here})(c, req)
			a := send(c, c.Controller.CreateVolume, req)
			if a.Err == nil && len(a.Resp.GetVolume().GetAccessibleTopology()) == 0 {
				c.excuse("volumes are accessible from everywhere")
			}
			a.wants(codes.InvalidArgument, codes.ResourceExhausted)
		},
	},
	{
		ID: "topology.create.empty", Level: Must, Spec: "TopologyRequirement",
		Title: "accessibility_requirements without requisite and preferred is INVALID_ARGUMENT",
		Why:   "One of the two is required. A driver that ignores it may create the volume where no pod can use it.",
		Needs: needs(createVolume, volumeTopology),
		check: func(c *ruleRun) {
			req := c.createRequest()
			placed(nil, nil)(c, req)
			send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "topology.list-agrees", Level: Should, Spec: "ListVolumes",
		Title: "ListVolumes and CreateVolume return the same accessible_topology",
		Why:   "The two responses contradict each other.",
		Needs: needs(createVolume, volumeTopology, listVolumes),
		check: func(c *ruleRun) {
			v := c.volume()
			e := c.entry(v)
			if !slices.EqualFunc(e.GetVolume().GetAccessibleTopology(), v.created.GetAccessibleTopology(), func(a, b *csi.Topology) bool { return proto.Equal(a, b) }) {
				c.fail("accessible_topology as in "+requestJSON(v.created), "%s", requestJSON(e.GetVolume()))
			}
		},
	},
	{
		ID: "topology.clone-place", Level: Must, Spec: "CreateVolume",
		Title: "a clone that is requested where its source cannot be copied to is not created elsewhere",
		Why:   "accessibility_requirements bind for a volume with a source as well. RESOURCE_EXHAUSTED makes the scheduler choose another node.",
		Needs: needs(createVolume, volumeTopology, cloneVolume, nodeService),
		check: func(c *ruleRun) {
			there := nowhere(c.place())
			req := c.createRequest()
			from(volumeSource(c.volume().id))(c, req)
			placed([]*csi.Topology{there}, nil)(c, req)
			a := send(c, c.Controller.CreateVolume, req)
			if a.Err == nil && len(a.Resp.GetVolume().GetAccessibleTopology()) == 0 {
				c.excuse("volumes are accessible from everywhere")
			}
			a.wants(codes.ResourceExhausted, codes.InvalidArgument)
		},
	},
	{
		ID: "topology.node-labels", Level: Should, Spec: "kubelet",
		Title: "topology keys are not labels that kubelet may not set",
		Why: "kubelet makes a label of each segment of NodeGetInfo. The API server refuses those below kubernetes.io and k8s.io, but for a few, and the node " +
			"is not registered.",
		Needs: needs(nodeService),
		check: func(c *ruleRun) {
			a := send(c, c.Node.NodeGetInfo, &csi.NodeGetInfoRequest{})
			for key := range a.ok().GetAccessibleTopology().GetSegments() {
				prefix, _, _ := strings.Cut(key, "/")
				if !reservedForKubernetes(prefix) || slices.Contains(kubeletLabels, prefix) || slices.Contains(kubeletLabels, key) {
					continue
				}
				a.wrong("keys of the driver's own domain, and not %q", key)
			}
		},
	},
}

// kubeletLabels are the domains, and the labels of others, that kubelet may set on its
// own Node (the admission plugin NodeRestriction).
var kubeletLabels = []string{
	"kubelet.kubernetes.io", "node.kubernetes.io", "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
	"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
	"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	"beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

func reservedForKubernetes(domain string) bool {
	return slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) })
}
