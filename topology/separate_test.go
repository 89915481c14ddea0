package topology_test

import (
	"testing"

	"github.com/csikit/csikit/topology"
)

// A zone and a rack in it are one place for two copies, as long as another zone has room.
func TestCopiesAreInSeparateTopologies(t *testing.T) {
	zone1 := topology.Candidate{Name: "z1", Segments: topology.Segments{"zone": "z1"}, Free: 300}
	rack1 := topology.Candidate{Name: "z1/r1", Segments: topology.Segments{"zone": "z1", "rack": "r1"}, Free: 200}
	zone2 := topology.Candidate{Name: "z2", Segments: topology.Segments{"zone": "z2"}, Free: 100}
	for _, tt := range []struct {
		from []topology.Candidate
		want [2]string
	}{
		{[]topology.Candidate{zone1, rack1, zone2}, [2]string{"z1", "z2"}},
		{[]topology.Candidate{zone2, rack1, zone1}, [2]string{"z1", "z2"}},
		{[]topology.Candidate{zone1, rack1}, [2]string{"z1", "z1/r1"}}, // nowhere else
	} {
		got, err := topology.Choose(nil, 10, tt.from, topology.WithCopies(2))
		if err != nil || len(got) != 2 || got[0].Name != tt.want[0] || got[1].Name != tt.want[1] {
			t.Errorf("got %v, %v, want %v", got, err, tt.want)
		}
	}
}
