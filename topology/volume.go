package topology

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Accessible returns accessible_topology of a volume in the chosen places: nil,
// which is everywhere, if one of them is accessible from everywhere.
func Accessible(chosen ...Candidate) []*csi.Topology {
	var list []*csi.Topology
	seen := map[string]bool{}
	for _, c := range chosen {
		if len(c.Segments) == 0 {
			return nil
		}
		if text := c.Segments.String(); !seen[text] {
			seen[text] = true
			list = append(list, c.Segments.Topology())
		}
	}
	return list
}

// Capacity answers GetCapacity for one topology, nil or one without segments for
// all of them: the free bytes of all places that are accessible from it, and as the maximum volume size
// the most that one of them takes. The latter is what the scheduler of Kubernetes
// compares with; the sum alone would promise volumes that fit nowhere.
func Capacity(at *csi.Topology, from []Candidate) *csi.GetCapacityResponse {
	wanted := canonical(Of(at))
	var sum, largest int64
	for _, c := range from {
		if c.Free <= 0 || !canonical(c.Segments).matches(wanted) {
			continue
		}
		sum += min(c.Free, math.MaxInt64-sum)
		if c.MaxVolume == 0 {
			largest = max(largest, c.Free)
		} else {
			largest = max(largest, min(c.Free, c.MaxVolume))
		}
	}
	return &csi.GetCapacityResponse{AvailableCapacity: sum, MaximumVolumeSize: wrapperspb.Int64(largest)}
}

// CheckNode returns nil if a node reaches a volume: all the segments of one of the
// volume's topologies are the node's. Otherwise the [*Error], FAILED_PRECONDITION,
// says for each of them what is different. A volume without topologies is reached
// from everywhere.
func CheckNode(node Segments, volume ...Segments) error {
	at := map[string]string{}
	for key, value := range node {
		at[strings.ToLower(key)] = value
	}
	var why []string
	for _, v := range volume {
		var differ []string
		for _, p := range canonical(v) {
			value, found := at[p.key]
			if !found {
				differ = append(differ, fmt.Sprintf("the node has no %s", p.key))
			} else if value != p.value {
				differ = append(differ, fmt.Sprintf("%s of the node is %s", p.key, value))
			}
		}
		if len(differ) == 0 {
			return nil
		}
		why = append(why, fmt.Sprintf("not through %s, since %s", v, strings.Join(differ, " and ")))
	}
	if len(why) == 0 {
		return nil
	}
	return fail(codes.FailedPrecondition, "reach the volume from this node", "%s", several(why))
}

// Change is a segment of a node that is not what it was. A value that is not there
// is empty.
type Change struct{ Key, Before, Now string }

// String says what has changed.
func (c Change) String() string {
	switch {
	case c.Before == "":
		return fmt.Sprintf("%s=%s is new", c.Key, c.Now)
	case c.Now == "":
		return fmt.Sprintf("%s=%s is gone", c.Key, c.Before)
	}
	return fmt.Sprintf("%s was %s and is %s", c.Key, c.Before, c.Now)
}

// Drift compares what NodeGetInfo said about a node with what it would say now,
// in order of keys; nil if that is the same. Report it before you answer: a CO may
// have written down the first answer, and so have volumes. Kubernetes keeps the
// values as labels of the node and refuses to register a plugin that brings
// another value, until somebody deletes the label; a volume stays bound to what
// the node no longer is. Here keys are compared with their case, as labels are.
func Drift(before, now Segments) []Change {
	var changes []Change
	keys := maps.Clone(before)
	if keys == nil {
		keys = Segments{}
	}
	maps.Copy(keys, now)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] != now[key] {
			changes = append(changes, Change{key, before[key], now[key]})
		}
	}
	return changes
}
