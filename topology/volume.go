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

// AccessibleTopology returns accessible_topology for a volume in the chosen places: nil,
// which means everywhere, if one of them is accessible from everywhere.
func AccessibleTopology(chosen ...Candidate) []*csi.Topology {
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

// Capacity returns the response of GetCapacity for the places that are accessible from one
// topology; nil, or one without segments, selects all places. available_capacity is the sum
// of their free bytes, and maximum_volume_size the largest volume that one of them can hold.
// The scheduler of Kubernetes compares with maximum_volume_size: the sum would promise
// volumes that fit in no place.
func Capacity(at *csi.Topology, from []Candidate) *csi.GetCapacityResponse {
	wanted := canonical(FromTopology(at))
	var sum, largest int64
	for _, c := range from {
		if c.Free <= 0 || !canonical(c.Segments).compatible(wanted) {
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

// CheckNode returns nil if a node can access a volume: it has all the segments of one of
// the volume's topologies. Otherwise the [*Error], FAILED_PRECONDITION, lists the
// differences for each of them. A volume without topologies is accessible from
// everywhere.
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
				differ = append(differ, "no "+p.key)
			} else if value != p.value {
				differ = append(differ, p.key+"="+value)
			}
		}
		if len(differ) == 0 {
			return nil
		}
		why = append(why, fmt.Sprintf("from %s, but the node has %s", v, strings.Join(differ, " and ")))
	}
	if len(why) == 0 {
		return nil
	}
	return fail(codes.FailedPrecondition, "check the topology of the node", "the volume is accessible %s", several(why))
}

// Change is a changed segment of a node. The value of an added segment is empty in Before,
// that of a removed one in Now.
type Change struct{ Key, Before, Now string }

// String describes the change.
func (c Change) String() string {
	switch {
	case c.Before == "":
		return fmt.Sprintf("%s=%s was added", c.Key, c.Now)
	case c.Now == "":
		return fmt.Sprintf("%s=%s was removed", c.Key, c.Before)
	}
	return fmt.Sprintf("%s changed from %s to %s", c.Key, c.Before, c.Now)
}

// Drift returns the segments of a node that have changed since an earlier NodeGetInfo, in
// order of keys; nil if there are none. Log or report them before NodeGetInfo returns the
// new segments: the CO and existing volumes may have stored the old ones.
// Kubernetes keeps the values as labels of the node and refuses to register a plugin with
// another value until the label is deleted, and volumes stay bound to the old
// topology. Drift compares keys with their case, as labels are.
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
