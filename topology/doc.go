// Package topology implements the topology rules of the CSI specification: the segments
// of a node ([Segments], for NodeGetInfo), the choice of a place for a new volume by
// requisite and preferred topologies and free capacity ([Choose]), the check of an
// existing volume against accessibility_requirements ([Satisfies]),
// accessible_topology and GetCapacity ([AccessibleTopology], [Capacity]), whether
// a node can access a volume ([CheckNode]), and changes of a node's segments ([Drift]).
//
// # Compatible topologies
//
// A volume or a place is accessible from a topology when one of the two contains all
// segments of the other: a place in zone=z1 is accessible from zone=z1,rack=r3, and a
// place in zone=z1,rack=r3 is accepted for zone=z1, because a storage class may name
// fewer keys than nodes have. No segments means everywhere. Keys compare without regard
// to case, as the specification requires, values exactly.
//
// A node needs more: it can access a volume only if it has all the segments of one of the
// volume's topologies. [CheckNode] checks that, and [Segments.Matches] compares one topology.
//
// # When not to use it
//
// A plugin whose volumes are accessible from everywhere needs no topology: it does
// not set VOLUME_ACCESSIBILITY_CONSTRAINTS and leaves the fields empty. The
// package does not use Kubernetes: it reads no labels from the API server and does not
// schedule. It reserves nothing: two concurrent calls may choose the
// last free bytes of one place. The call that fails to allocate them chooses again
// without that place, or returns RESOURCE_EXHAUSTED.
//
// # Concurrency, privileges, platforms
//
// All functions are pure and safe for concurrent use; only [Segments.Set] changes its
// receiver. They need no privileges and run on every platform.
package topology
