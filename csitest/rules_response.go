package csitest

import (
	"cmp"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Rules that validate every recorded response, messages of streams included, with csispec.
var responseRules = []Rule{
	response("required", "required fields are set", "An object without its ID cannot be deleted."),
	response("size", "strings and maps are no larger than allowed", "A CO may truncate or refuse a larger value, and a truncated ID is another ID."),
	{
		ID: "response.enum", Level: Should, Spec: "csi.proto",
		Title: "enum values are defined by CSI",
		Why: "A CO ignores what it does not know. Only a driver for a newer CSI than this program's, or for an older one with " +
			"VOLUME_CONDITION, has a reason to send it.",
		checkCalls: eachCall(func(c *ruleRun, call *Call) {
			if !reportsCondition(call.Response) {
				breaches(c, call, "enum", "a value of CSI v1.13")
			}
		}),
	},
	response("oneof", "exactly one of the alternatives is set", "Neither, or both, leaves the CO to guess."),
	response("non-negative", "sizes are not negative", "A negative size becomes a huge one when it is converted to unsigned."),
	response("positive", "fields that must be positive are", "A block of no bytes makes a backup run forever."),
	response("timestamp", "timestamps are valid and not zero", "Retention deletes the oldest first, and 1970 is old."),
	response("plugin-name", "the plugin's name is a domain name", "The name is part of paths, labels and object names in Kubernetes."),
	response("topology-key", "topology keys are legal, and differ by more than case", "kubelet refuses to register a node with an illegal label."),
	response("topology-value", "topology values are legal", "kubelet refuses to register a node with an illegal label."),
	response("capability", "no field is set that needs a capability which is not reported", "A CO ignores what it does not expect: a volume in one zone is treated as accessible everywhere."),
	response("group-snapshot", "the snapshots of a group agree with it", "A group that is ready with members that are not is restored too early."),
	response("duplicate", "no entry is there twice", "The CO counts and compares."),
	response("camel-case", "reasons are CamelCase", "They are matched by programs."),
	response("metadata-type", "a stream keeps its block_metadata_type", "The reader has chosen how to read from the first message."),
	response("metadata-capacity", "a stream keeps its volume_capacity_bytes", "The reader has made the target by the first message."),
	response("metadata-order", "blocks of a stream ascend and do not overlap", "A reader that resumes at the end of the last block would miss what came late."),
	response("metadata-start", "a stream begins behind starting_offset", "A backup that resumes copies again what it has, or misses what it has not."),
	response("metadata-length", "blocks of FIXED_LENGTH have one length", "The reader computes offsets from it."),
	response("metadata-count", "a message has no more than max_results blocks", "The reader has made room for so many."),
	history("constant", "contexts, IDs and capabilities do not change",
		"A volume_context, a publish_context, the ID for a name, the capabilities of a version: a CO keeps and uses the first answer."),
	history("topology-prefix", "all topology keys have one prefix", "The prefix is how a CO knows whose key it is."),
}

func response(rule, title, why string) Rule {
	return Rule{
		ID: "response." + rule, Level: Must, Spec: "csi.proto", Title: title, Why: why,
		checkCalls: checkResponse(rule, title),
	}
}

func checkResponse(rule, want string) func(*ruleRun, []*Call) {
	return eachCall(func(c *ruleRun, call *Call) { breaches(c, call, rule, want) })
}

func breaches(c *ruleRun, call *Call, rule, want string) {
	for _, v := range call.Invalid {
		if v.Rule == rule {
			c.breach(call, want, v.Field+" "+v.Text)
		}
	}
}

// reportsCondition reports whether the response lists capabilities, VOLUME_CONDITION among them.
func reportsCondition(m proto.Message) bool {
	switch r := m.(type) {
	case *csi.ControllerGetCapabilitiesResponse:
		return slices.ContainsFunc(r.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool { return c.GetRpc().GetType() == conditionOfController })
	case *csi.NodeGetCapabilitiesResponse:
		return slices.ContainsFunc(r.GetCapabilities(), func(c *csi.NodeServiceCapability) bool { return c.GetRpc().GetType() == conditionOfNode })
	}
	return false
}

// history compares answers with those before. The calls are taken in the order in which
// they ended; one that overlapped with another of the same volume is left out.
func history(rule, title, why string) Rule {
	return Rule{
		ID: "response." + rule, Level: Must, Spec: "Volume", Title: title, Why: why,
		checkCalls: func(c *ruleRun, calls []*Call) {
			calls = slices.Clone(calls)
			slices.SortStableFunc(calls, func(a, b *Call) int { return cmp.Compare(a.End().UnixNano(), b.End().UnixNano()) })
			of := objects(calls)
			var h csispec.History
			for i, call := range calls {
				if call.Code() != codes.OK || call.Response == nil || !undoes(call) && overlaps(calls, of, i) {
					continue
				}
				for _, v := range violations(h.Observe(call.Request, call.Response)) {
					if v.Rule == rule && len(c.failures) < maxBreaches {
						c.breach(call, title, v.Field+" "+v.Text)
					}
				}
			}
		},
	}
}

// objects are what calls are about, in their order: a name, or the name of what has
// the ID.
func objects(calls []*Call) []string {
	names := map[string]string{}
	for _, c := range calls {
		if id := madeID(c); id != "" {
			names[id] = c.Volume
		}
	}
	all := make([]string, len(calls))
	for i, c := range calls {
		all[i] = cmp.Or(names[c.Volume], c.Volume)
	}
	return all
}

// overlaps checks the neighbours: calls in flight at the same time end close together.
func overlaps(calls []*Call, of []string, i int) bool {
	for j := max(0, i-16); j < min(len(calls), i+16); j++ {
		a, b := calls[i], calls[j]
		if i != j && of[i] == of[j] && of[i] != "" && a.Begin.Before(b.End()) && b.Begin.Before(a.End()) {
			return true
		}
	}
	return false
}

func madeID(c *Call) string {
	switch r := c.Response.(type) {
	case *csi.CreateVolumeResponse:
		return r.GetVolume().GetVolumeId()
	case *csi.CreateSnapshotResponse:
		return r.GetSnapshot().GetSnapshotId()
	case *csi.CreateVolumeGroupSnapshotResponse:
		return r.GetGroupSnapshot().GetGroupSnapshotId()
	}
	return ""
}

// undoes reports whether the call only ends what was: that counts however it overlaps.
func undoes(c *Call) bool {
	switch c.Request.(type) {
	case *csi.DeleteVolumeRequest, *csi.DeleteSnapshotRequest, *csi.DeleteVolumeGroupSnapshotRequest, *csi.ControllerUnpublishVolumeRequest:
		return true
	}
	return false
}
