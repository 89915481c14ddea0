package topology_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/topology"
)

func TestAccessible(t *testing.T) {
	got := topology.AccessibleTopology(pools("a:zone=z1:1 b:zone=z2:1 c:zone=z1:1")...)
	if len(got) != 2 || got[0].Segments[zone] != "z1" || got[1].Segments[zone] != "z2" {
		t.Errorf("Accessible = %v", got)
	}
	if got := topology.AccessibleTopology(pools("a:zone=z1:1 b::1")...); got != nil {
		t.Errorf("with everywhere: %v, want nil", got)
	}
	if got := topology.AccessibleTopology(); got != nil {
		t.Errorf("of nothing: %v, want nil", got)
	}
}

func TestCapacity(t *testing.T) {
	const from = "a:zone=z1,host=n1:10 b:zone=z1,host=n2:20:15 c:zone=z2,host=n3:7 d::1 e:zone=z4:3:9"
	tests := []struct {
		at           string
		sum, largest int64
	}{
		{"", 41, 15},
		{"zone=z1", 31, 15},
		{"zone=z1,host=n1", 11, 10},
		{"zone=z2,host=n3", 8, 7},
		{"zone=z3", 1, 1},
		{"zone=z4", 4, 3},
		{"host=n2", 21, 15},
	}
	for _, tt := range tests {
		got := topology.Capacity(segs(tt.at).Topology(), pools(from))
		if got.AvailableCapacity != tt.sum*gib || got.MaximumVolumeSize.GetValue() != tt.largest*gib {
			t.Errorf("at %q: %v, want %d and %d GiB", tt.at, got, tt.sum, tt.largest)
		}
	}
	if got := topology.Capacity(&csi.Topology{}, pools(from)); got.AvailableCapacity != 41*gib {
		t.Errorf("without segments: %v, want all", got)
	}
	got := topology.Capacity(nil, []topology.Candidate{{Free: math.MaxInt64}, {Free: 5}, {Free: -3}})
	if got.AvailableCapacity != math.MaxInt64 || got.MaximumVolumeSize.GetValue() != math.MaxInt64 {
		t.Errorf("more than int64: %v", got)
	}
	if got := topology.Capacity(nil, nil); got.AvailableCapacity != 0 || got.MaximumVolumeSize == nil {
		t.Errorf("nothing: %v, want an explicit 0", got)
	}
}

func TestCheckNode(t *testing.T) {
	tests := []struct {
		name, node, volume, wrong string
	}{
		{"everywhere", "zone=z1", "", ""},
		{"the same", "zone=z1", "zone=z1", ""},
		{"the node knows more", "zone=z1,host=n1", "zone=z1", ""},
		{"one of two", "zone=z2,host=n1", "zone=z1 zone=z2", ""},
		{"another", "zone=z3", "zone=z1 zone=z2", "the volume is accessible from topology.example.com/zone=z1, but the node has topology.example.com/zone=z3; " +
			"from topology.example.com/zone=z2, but the node has topology.example.com/zone=z3"},
		{"the volume knows more", "zone=z1", "zone=z1,host=n1", "but the node has no topology.example.com/host"},
		{"two differences", "zone=z1", "zone=z2,host=n1", "but the node has no topology.example.com/host and topology.example.com/zone=z1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var volume []topology.Segments
			for term := range strings.FieldsSeq(tt.volume) {
				volume = append(volume, segs(term))
			}
			err := topology.CheckNode(segs(tt.node), volume...)
			if tt.wrong == "" {
				if err != nil {
					t.Error(err)
				}
			} else if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("err = %v, want FAILED_PRECONDITION with %s", err, tt.wrong)
			}
		})
	}
	if err := topology.CheckNode(topology.Segments{"Zone": "z1"}, topology.Segments{"zone": "z1"}); err != nil {
		t.Errorf("the case of a key: %v", err)
	}
}

// The text has to fit into an event of Kubernetes, which keeps 1024 bytes.
func TestCheckNodeOfManyTopologies(t *testing.T) {
	var volume []topology.Segments
	for i := range 500 {
		volume = append(volume, segs(fmt.Sprint("zone=z", i)))
	}
	err := topology.CheckNode(segs("zone=here"), volume...)
	if err == nil || len(err.Error()) > 1024 || !strings.HasSuffix(err.Error(), "; and 494 more") {
		t.Errorf("%d bytes: %v", len(err.Error()), err)
	}
}

func TestDrift(t *testing.T) {
	tests := []struct{ before, now, want string }{
		{"", "", "[]"},
		{"zone=z1", "zone=z1", "[]"},
		{"zone=z1", "zone=z2", "[topology.example.com/zone changed from z1 to z2]"},
		{"zone=z1", "", "[topology.example.com/zone=z1 was removed]"},
		{"", "zone=z1", "[topology.example.com/zone=z1 was added]"},
		{"zone=z1,rack=r1", "zone=z2,host=h", "[topology.example.com/host=h was added topology.example.com/rack=r1 was removed topology.example.com/zone changed from z1 to z2]"},
		{"zone=z1", "Zone=z1", "[topology.example.com/Zone=z1 was added topology.example.com/zone=z1 was removed]"},
	}
	for _, tt := range tests {
		before := segs(tt.before)
		if got := fmt.Sprint(topology.Drift(before, segs(tt.now))); got != tt.want {
			t.Errorf("from %q to %q: %s, want %s", tt.before, tt.now, got, tt.want)
		}
		if !before.Equal(segs(tt.before)) {
			t.Errorf("Drift changed its argument to %v", before)
		}
	}
	if topology.Drift(nil, nil) != nil {
		t.Error("no drift is not nil")
	}
}
