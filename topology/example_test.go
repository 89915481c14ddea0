package topology_test

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/topology"
)

// CreateVolume in the zone where the pod will run, or where there is room.
func ExampleChoose() {
	in := func(zone string) topology.Segments { return topology.Segments{"topology.example.com/zone": zone} }
	pools := []topology.Candidate{
		{Name: "pool-1", Segments: in("z1"), Free: 100 << 30},
		{Name: "pool-2", Segments: in("z2"), Free: 3 << 30},
	}
	req := &csi.TopologyRequirement{
		Requisite: []*csi.Topology{in("z1").Topology(), in("z2").Topology()},
		Preferred: []*csi.Topology{in("z2").Topology(), in("z1").Topology()},
	}
	for _, size := range []int64{1 << 30, 10 << 30, 200 << 30} {
		chosen, err := topology.Choose(req, size, pools)
		if err != nil {
			fmt.Println(status.Code(err), err)
			continue
		}
		fmt.Println(chosen[0].Name, topology.AccessibleTopology(chosen...)[0].Segments)
	}
	// Output:
	// pool-2 map[topology.example.com/zone:z2]
	// pool-1 map[topology.example.com/zone:z1]
	// ResourceExhausted choose a storage pool: no storage pool has enough capacity in an allowed topology: requested 200 GiB; pool-1 (topology.example.com/zone=z1) has 100 GiB free; pool-2 (topology.example.com/zone=z2) has 3 GiB free
}

// A volume that is mirrored between two zones.
func ExampleWithCopies() {
	var pools []topology.Candidate
	for _, zone := range []string{"z1", "z2", "z3"} {
		pools = append(pools, topology.Candidate{Name: "pool-" + zone, Segments: topology.Segments{"zone": zone}, Free: 10 << 30})
	}
	chosen, err := topology.Choose(&csi.TopologyRequirement{
		Preferred: []*csi.Topology{{Segments: map[string]string{"zone": "z3"}}},
	}, 1<<30, pools, topology.WithCopies(2))
	fmt.Println(chosen[0].Name, chosen[1].Name, err)
	// Output: pool-z3 pool-z1 <nil>
}

// NodeGetInfo from a flag: -topology topology.example.com/zone=z1
func ExampleParse() {
	segments, err := topology.Parse("topology.example.com/zone=z1,topology.example.com/rack=r3")
	fmt.Println(segments, err)
	_, err = topology.Parse("topology.example.com/zone=z1,Topology.example.com/rack=r3")
	fmt.Println(err)
	// Output:
	// topology.example.com/rack=r3,topology.example.com/zone=z1 <nil>
	// check topology: "Topology.example.com/rack" is not a topology key: need [lower-case domain/]name, each up to 63 letters, digits, '-', '_' and '.'; the prefix of "topology.example.com/zone" is not "Topology.example.com": a plugin must use a single prefix
}

// NodeGetInfo from the labels of the node, of which one is taken over.
func ExampleFromLabels() {
	segments, err := topology.FromLabels(map[string]string{
		"topology.kubernetes.io/zone": "z1",
		"kubernetes.io/os":            "linux",
	}, "topology.example.com/zone=topology.kubernetes.io/zone")
	fmt.Println(segments, err)
	// Output: topology.example.com/zone=z1 <nil>
}

// A CreateVolume that finds its volume there already.
func ExampleSatisfies() {
	req := &csi.TopologyRequirement{Requisite: []*csi.Topology{
		{Segments: map[string]string{"zone": "z1"}}, {Segments: map[string]string{"zone": "z2"}},
	}}
	fmt.Println(topology.Satisfies(req, topology.Segments{"zone": "z2"}))
	fmt.Println(topology.Satisfies(req, topology.Segments{"zone": "z3"}))
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleCapacity() {
	pools := []topology.Candidate{
		{Name: "ssd-1", Segments: topology.Segments{"zone": "z1"}, Free: 10 << 30},
		{Name: "ssd-2", Segments: topology.Segments{"zone": "z1"}, Free: 30 << 30, MaxVolume: 16 << 30},
		{Name: "ssd-3", Segments: topology.Segments{"zone": "z2"}, Free: 90 << 30},
	}
	answer := topology.Capacity(&csi.Topology{Segments: map[string]string{"zone": "z1"}}, pools)
	fmt.Println(answer.AvailableCapacity>>30, answer.MaximumVolumeSize.GetValue()>>30)
	// Output: 40 16
}

func ExampleCheckNode() {
	node := topology.Segments{"zone": "z2", "rack": "r1"}
	fmt.Println(topology.CheckNode(node, topology.Segments{"zone": "z2"}))
	fmt.Println(topology.CheckNode(node, topology.Segments{"zone": "z1"}))
	// Output:
	// <nil>
	// check the topology of the node: the volume is accessible from zone=z1, but the node has zone=z2
}

func ExampleDrift() {
	before := topology.Segments{"zone": "z1", "rack": "r1"}
	for _, change := range topology.Drift(before, topology.Segments{"zone": "z2", "rack": "r1"}) {
		fmt.Println(change)
	}
	// Output: zone changed from z1 to z2
}
