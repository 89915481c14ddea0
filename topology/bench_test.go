package topology_test

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csikit/csikit/topology"
)

// A cluster whose nodes each have a pool, and external-provisioner without
// --strict-topology: it sends all of them.
func BenchmarkChoose(b *testing.B) {
	for _, nodes := range []int{3, 100, 1000, 5000} {
		var from []topology.Candidate
		var all []*csi.Topology
		for i := range nodes {
			c := topology.Candidate{
				Name: fmt.Sprint("pool-", i), Free: int64(i+1) << 30,
				Segments: topology.Segments{zone: fmt.Sprint("z", i%3), host: fmt.Sprint("node-", i)},
			}
			from = append(from, c)
			all = append(all, c.Segments.Topology())
		}
		half := nodes / 2
		req := &csi.TopologyRequirement{Requisite: all, Preferred: append(all[half:len(all):len(all)], all[:half]...)}
		for _, copies := range []int{1, 3} {
			b.Run(fmt.Sprintf("%d nodes, %d copies", nodes, copies), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := topology.Choose(req, 1<<20, from, topology.WithCopies(copies)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := topology.Parse(zone + "=z1," + rack + "=r3," + host + "=node-7"); err != nil {
			b.Fatal(err)
		}
	}
}
