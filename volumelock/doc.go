// Package volumelock holds locks that are shaped like CSI: keys for volumes,
// targets, names and attachments, taken shared or exclusively, all or none, and
// without waiting. Who finds a key taken gets ABORTED with the name, the request
// id and the age of the call that holds it, as the CSI specification proposes for
// an operation that is pending already.
//
// [Table] is the lock table. [UnaryServerInterceptor] takes and returns the keys
// around each call of a gRPC server; which keys a call needs is [DefaultPolicy]'s
// decision, or your own [Policy]'s.
//
// # Parked keys
//
// A call may end, because its deadline has passed, while its work goes on: a
// mount on a dead server cannot be interrupted. The keys must not be free then.
// An error with a method Pending() <-chan struct{} tells so (package blocking
// has one), and the keys stay held, marked parked, until that channel closes. A
// retry of the same call passes them, so that it can join the work; so do
// NodeUnpublishVolume and NodeUnstageVolume, so that a forced unmount can act.
//
// # When not to use it
//
// The table lives in one process. It does not keep two replicas of a controller
// from each other (leader election does), nor a controller from a node plugin in
// another process (the CO's order of calls does), and after a restart it is
// empty. It is not a fair queue either: an optional wait is bounded, and who
// comes first after a release is not defined.
//
// # Concurrency, privileges, platforms
//
// All methods may be called at the same time. The only goroutines are one per
// parked call. An idle table keeps no entry. No privilege and no kernel version
// is needed; the package is plain Go for every platform.
package volumelock
