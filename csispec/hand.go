package csispec

import (
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// handRules are the rules that take more than one field, or a grammar. Each
// gets the path of its message, "" or ending in a dot.
var handRules = map[protoreflect.FullName]func(w *walker, m proto.Message, path string){
	"csi.v1.CapacityRange":                capacityRange,
	"csi.v1.Topology":                     topology,
	"csi.v1.TopologyRequirement":          topologyRequirement,
	"csi.v1.VolumeCapability.MountVolume": mountVolume,
	"csi.v1.NodePublishVolumeRequest":     nodePublish,
	"csi.v1.GetPluginInfoResponse":        pluginInfo,
}

func capacityRange(w *walker, m proto.Message, path string) {
	r := m.(*csi.CapacityRange)
	field := strings.TrimSuffix(path, ".")
	switch required, limit := r.GetRequiredBytes(), r.GetLimitBytes(); {
	case required == 0 && limit == 0:
		w.add(field, "capacity-range", "needs required_bytes or limit_bytes")
	case limit > 0 && required > limit:
		w.add(field, "capacity-range", "requires %d bytes, above its limit of %d", required, limit)
	}
}

func mountVolume(w *walker, m proto.Message, path string) {
	size := 0
	for _, f := range m.(*csi.VolumeCapability_MountVolume).GetMountFlags() {
		size += len(f)
	}
	if size > flagsMax {
		w.add(path+"mount_flags", "size", "holds %d bytes, the limit is %d", size, flagsMax)
	}
}

// nodePublish runs after the rules for single fields; FAILED_PRECONDITION is
// the answer only to a request that is well-formed otherwise, which
// Violations.GRPCStatus sees to.
func nodePublish(w *walker, m proto.Message, path string) {
	if w.stageUnstage && m.(*csi.NodePublishVolumeRequest).GetStagingTargetPath() == "" {
		w.addCode(codes.FailedPrecondition, path+"staging_target_path", "staging-path",
			"is empty, but this plugin stages volumes: call NodeStageVolume first and send its path")
	}
}

func topologyRequirement(w *walker, m proto.Message, path string) {
	r := m.(*csi.TopologyRequirement)
	if len(r.GetRequisite()) == 0 && len(r.GetPreferred()) == 0 {
		w.add(strings.TrimSuffix(path, "."), "required", "needs requisite or preferred")
	}
	if len(r.GetRequisite()) == 0 {
		return
	}
	for i, p := range r.GetPreferred() {
		if !slices.ContainsFunc(r.GetRequisite(), func(t *csi.Topology) bool {
			return maps.Equal(t.GetSegments(), p.GetSegments())
		}) {
			w.add(path+index("preferred", i), "topology-preferred", "is not among requisite")
		}
	}
}

func topology(w *walker, m proto.Message, path string) {
	segments := m.(*csi.Topology).GetSegments()
	folded := make(map[string]string, len(segments))
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		field := path + "segments[" + quote(k) + "]"
		if !topologyKey(k) {
			w.add(field, "topology-key", "is not a topology key: [lower-case domain/]name, each up to 63 letters, digits, '-', '_' and '.'")
		}
		if v := segments[k]; !topologyName(v) {
			w.add(field, "topology-value", "has the value %s: need 1 to 63 letters, digits, '-', '_' and '.', letter or digit at both ends", quote(v))
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
	if len(s) == 0 || len(s) > 63 || !alnum(s[0]) || !alnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// domain is the notation of plugin names and topology prefixes: labels of
// letters, digits and inner dashes, joined by dots, 63 bytes in all. RFC 1035
// also wants a letter first in each label; the specification's own sentence
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

func pluginInfo(w *walker, m proto.Message, path string) {
	if name := m.(*csi.GetPluginInfoResponse).GetName(); name != "" && len(name) <= 63 && !domain(name) {
		w.add(path+"name", "plugin-name",
			"is %s: need a domain name such as csi.example.com, of letters, digits, '-' and '.'", quote(name))
	}
}
