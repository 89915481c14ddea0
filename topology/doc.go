// Package topology is about where a volume is and who reaches it, as the CSI
// specification words it: the segments of a node ([Segments]), what a CO asks for
// ([Choose], [Satisfies]), what a plugin reports ([Accessible], [Capacity]), and
// why a node does not reach a volume ([CheckNode]) or has moved ([Drift]).
//
// # Which topologies match
//
// A volume or a place is accessible from a topology when one is a part of the
// other: a place in zone=z1 is accessible from zone=z1,rack=r3, and a place in
// zone=z1,rack=r3 is taken for zone=z1, since a storage class may name fewer keys
// than nodes have. No segments means everywhere. Keys compare without regard to
// case, as the specification has it, values as they are.
//
// For a node that is too much: it reaches a volume only if all the segments of
// one of the volume's topologies are its own, which is [CheckNode].
//
// # When not to use it
//
// A plugin whose volumes are reached from everywhere needs no topology: it does
// not set VOLUME_ACCESSIBILITY_CONSTRAINTS and leaves the fields empty. The
// package knows nothing of Kubernetes: it reads no labels by itself and does not
// schedule. It reserves nothing either: two calls at the same time may choose the
// last free bytes of one place. Who loses asks again without that place, or
// answers RESOURCE_EXHAUSTED.
//
// # Concurrency, privileges, platforms
//
// Pure functions that change none of their arguments, but for [Segments.Set].
// They may be called at the same time, need nothing and run everywhere.
package topology
