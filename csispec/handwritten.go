package csispec

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// The rules for more than one field, or with a grammar. The generated method of
// a message calls them after the rules for single fields.

func (w *walker) capacityRangeByHand(m *csi.CapacityRange) {
	switch required, limit := m.GetRequiredBytes(), m.GetLimitBytes(); {
	case required == 0 && limit == 0:
		w.add("", "capacity-range", "needs required_bytes or limit_bytes")
	case limit > 0 && required > limit:
		w.add("", "capacity-range", "required_bytes %d exceeds limit_bytes %d", required, limit)
	}
}

// volumeCapabilityAccessModeByHand checks the two modes that need a capability.
func (w *walker) volumeCapabilityAccessModeByHand(m *csi.VolumeCapability_AccessMode) {
	if w.absent&(controllerMultiWriter|nodeMultiWriter) == 0 {
		return
	}
	switch m.GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		side := controllerMultiWriter
		if strings.HasPrefix(string(w.subject.ProtoReflect().Descriptor().Name()), "Node") {
			side = nodeMultiWriter
		}
		if w.absent&side != 0 {
			w.gated("mode", side)
		}
	}
}

// nodePublishVolumeRequestByHand: FAILED_PRECONDITION is for a request that is well-formed
// otherwise, which Violations.GRPCStatus ensures.
func (w *walker) nodePublishVolumeRequestByHand(m *csi.NodePublishVolumeRequest) {
	if w.present&stageUnstage != 0 && m.GetStagingTargetPath() == "" && !(w.inlineVolumes && m.GetVolumeContext()[VolumeContextEphemeral] == "true") {
		w.addCode(codes.FailedPrecondition, "staging_target_path", "staging-path",
			"is empty; NodeStageVolume must come first, because the plugin reports STAGE_UNSTAGE_VOLUME. "+
				"Kubernetes does not stage an inline ephemeral volume, so the plugin does not support them: "+
				"in the pod, use a PersistentVolumeClaim or a generic ephemeral volume")
	}
}

func (w *walker) topologyRequirementByHand(m *csi.TopologyRequirement) {
	if len(m.GetRequisite()) == 0 && len(m.GetPreferred()) == 0 {
		w.add("", "required", "needs requisite or preferred")
	}
	if len(m.GetRequisite()) == 0 {
		return
	}
	// Most requirements have few topologies, spelled the same in both lists. But where a
	// segment is a node, provisioners send all nodes twice, and comparing each with each
	// takes half a second for 5000 of them.
	few := len(m.GetRequisite())*len(m.GetPreferred()) <= 64
	var requisite map[string]bool
	for i, p := range m.GetPreferred() {
		if few && slices.ContainsFunc(m.GetRequisite(), func(t *csi.Topology) bool {
			return maps.Equal(t.GetSegments(), p.GetSegments())
		}) {
			continue
		}
		if requisite == nil {
			requisite = make(map[string]bool, len(m.GetRequisite()))
			for _, t := range m.GetRequisite() {
				requisite[segmentsKey(t)] = true
			}
		}
		if !requisite[segmentsKey(p)] {
			w.add(w.index("preferred", i), "topology-preferred", "is not among requisite")
		}
	}
}

// segmentsKey returns equal keys for equal segments, whose keys compare without regard to
// case.
func segmentsKey(t *csi.Topology) string {
	entries := make([]string, 0, len(t.GetSegments()))
	for k, v := range t.GetSegments() {
		entries = append(entries, strconv.Quote(strings.ToLower(k))+strconv.Quote(v))
	}
	slices.Sort(entries)
	return strings.Join(entries, "")
}

// hasSegments reports whether a topology says anything. One without segments is
// everywhere, and counts as not set: for a node whose driver has no segments,
// external-provisioner's --enable-capacity sends GetCapacity with an
// accessible_topology that is set and empty, to every plugin, and a refusal leaves
// each WaitForFirstConsumer claim Pending
// (kubernetes-csi/external-provisioner, pkg/capacity/capacity.go, syncCapacity).
func hasSegments(t *csi.Topology) bool { return len(t.GetSegments()) > 0 }

// constrains reports whether a requirement excludes any place, or is malformed:
// one whose topologies all lack segments counts as not set, like hasSegments.
func constrains(r *csi.TopologyRequirement) bool {
	return r != nil && (len(r.GetRequisite())+len(r.GetPreferred()) == 0 ||
		slices.ContainsFunc(r.GetRequisite(), hasSegments) || slices.ContainsFunc(r.GetPreferred(), hasSegments))
}

func (w *walker) topologyByHand(m *csi.Topology) {
	if !goodSegments(m.GetSegments()) {
		w.segments(m.GetSegments())
	}
}

// goodSegments is a fast path without sorting for valid topologies of few segments.
func goodSegments(segments map[string]string) bool {
	if len(segments) > 8 { // comparing each with each takes too long
		return false
	}
	for k, v := range segments {
		if !topologyKey(k) || !topologyName(v) {
			return false
		}
		for other := range segments {
			if len(other) == len(k) && other != k && strings.EqualFold(other, k) {
				return false
			}
		}
	}
	return true
}

func (w *walker) segments(segments map[string]string) {
	folded := make(map[string]string, len(segments))
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		field := "segments[" + quote(k) + "]"
		if !topologyKey(k) {
			w.add(field, "topology-key", "is not a topology key: [lower-case domain/]name, each up to 63 letters, digits, '-', '_' and '.'")
		}
		if v := segments[k]; !topologyName(v) {
			w.add(field, "topology-value", "has an invalid value of %d bytes: need 1 to 63 letters, digits, '-', '_' and '.', letter or digit at both ends", len(v))
		}
		// Keys compare without regard to case.
		if other, dup := folded[strings.ToLower(k)]; dup {
			w.add(field, "topology-key", "differs from %s in case only", quote(other))
		}
		folded[strings.ToLower(k)] = k
	}
}

func topologyKey(k string) bool {
	prefix, name, found := strings.Cut(k, "/")
	if !found {
		return topologyName(k)
	}
	return prefix == strings.ToLower(prefix) && domain(prefix) && topologyName(name)
}

// topologyName is the grammar of the name part of a key and of a value.
func topologyName(s string) bool {
	return len(s) > 0 && len(s) <= 63 && alnum(s[0]) && alnum(s[len(s)-1]) && secretKey(s)
}

// domain is the grammar of plugin names and topology prefixes: labels of
// letters, digits and inner dashes, joined by dots, at most 63 bytes in all. RFC 1035
// also requires a letter first in each label; the specification's sentence
// allows a digit, and so does this.
func domain(s string) bool {
	if len(s) > 63 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || !alnum(label[0]) || !alnum(label[len(label)-1]) {
			return false
		}
		for i := range len(label) {
			if !alnum(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

func (w *walker) getPluginInfoResponseByHand(m *csi.GetPluginInfoResponse) {
	if name := m.GetName(); name != "" && len(name) <= 63 && !domain(name) {
		w.add("name", "plugin-name",
			"is %s: need a domain name such as csi.example.com, of letters, digits, '-' and '.'", quote(name))
	}
}

// volumeGroupSnapshotByHand checks the members of a group against the group.
func (w *walker) volumeGroupSnapshotByHand(m *csi.VolumeGroupSnapshot) {
	for i, s := range m.GetSnapshots() {
		if s.GetGroupSnapshotId() != m.GetGroupSnapshotId() {
			w.add(w.index("snapshots", i)+".group_snapshot_id", "group-snapshot",
				"is %s and must be the group's own, %s", quote(s.GetGroupSnapshotId()), quote(m.GetGroupSnapshotId()))
		}
		if m.GetReadyToUse() && !s.GetReadyToUse() {
			w.add(w.index("snapshots", i)+".ready_to_use", "group-snapshot", "is false, and ready_to_use of the group must be false then")
		}
	}
}

// volumeHealthByHand: status and reason identify a problem.
func (w *walker) volumeHealthByHand(m *csi.VolumeHealth) {
	type key struct {
		status csi.VolumeHealthErrorType
		reason string
	}
	all := m.GetHealthStatuses()
	if len(all) < 2 {
		return
	}
	seen := make(map[key]bool, len(all))
	for i, h := range all {
		k := key{h.GetStatus(), h.GetReason()}
		if seen[k] {
			w.duplicate(w.index("health_statuses", i), "status and reason")
		}
		seen[k] = true
	}
}

func (w *walker) volumeHealthVolumeHealthEntryByHand(m *csi.VolumeHealth_VolumeHealthEntry) {
	w.camelCase("reason", m.GetReason())
}

// nodeGetStorageHealthResponseByHand is quadratic: a node has few storage backends.
func (w *walker) nodeGetStorageHealthResponseByHand(m *csi.NodeGetStorageHealthResponse) {
	for i, h := range m.GetBackendHealth() {
		if slices.ContainsFunc(m.GetBackendHealth()[:i], func(o *csi.NodeGetStorageHealthResponse_StorageBackendHealth) bool {
			return o.GetStatus() == h.GetStatus() && o.GetReason() == h.GetReason() &&
				proto.Equal(o.GetVolumeCapability(), h.GetVolumeCapability())
		}) {
			w.duplicate(w.index("backend_health", i), "status, reason and volume_capability")
		}
	}
}

func (w *walker) nodeGetStorageHealthResponseStorageBackendHealthByHand(m *csi.NodeGetStorageHealthResponse_StorageBackendHealth) {
	w.camelCase("reason", m.GetReason())
}

func (w *walker) duplicate(field, what string) {
	w.add(field, "duplicate", "repeats the %s of an earlier entry", what)
}

// camelCase checks a machine-readable word: letters and digits, a capital first.
func (w *walker) camelCase(field, s string) {
	if s == "" || len(s) > stringMax { // reported already
		return
	}
	good := s[0] >= 'A' && s[0] <= 'Z'
	for i := range len(s) {
		good = good && alnum(s[i])
	}
	if !good {
		w.add(field, "camel-case", "is %s and must be a CamelCase word such as DiskFailing", quote(s))
	}
}
