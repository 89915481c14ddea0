// Package volumelock holds locks that are shaped like CSI: keys for volumes,
// targets, names and attachments, taken shared or exclusively, all or none, and
// without waiting. Who finds a key taken gets ABORTED with the name, the request
// id and the age of the call that holds it, and for how long it has refused
// others, as the CSI specification proposes for an operation that is pending
// already.
//
// [Table] is the lock table. [Interceptor] acquires and releases the keys around each
// call and stream of a gRPC server; which keys a call needs is [DefaultPolicy]'s decision, or your own [Policy]'s.
//
// # The default policy
//
// A key is exclusive, or with a + shared. With a ± that depends on the request:
// an attachment is exclusive where the access mode limits the nodes that may
// write, a publish takes the volume exclusively where the mode allows one target
// on a node (SINGLE_NODE_WRITER, _READER_ONLY, _SINGLE_WRITER) or is unknown. A
// key whose ID the request does not have is left out.
//
//	CreateVolume                volume_name  +volume (source)  +snapshot (source)
//	DeleteVolume                volume
//	ControllerPublishVolume     +volume  ±volume_attach  volume_node
//	ControllerUnpublishVolume   +volume  ±volume_attach  volume_node
//	ControllerExpandVolume      volume
//	ControllerModifyVolume      volume
//	CreateSnapshot              snapshot_name  +volume (source)
//	DeleteSnapshot              snapshot
//	CreateVolumeGroupSnapshot   group_snapshot_name  +volume (each source)
//	DeleteVolumeGroupSnapshot   group_snapshot  snapshot (each member)
//	NodeStageVolume             node_volume
//	NodeUnstageVolume           node_volume
//	NodeExpandVolume            node_volume
//	NodePublishVolume           ±node_volume  target_path
//	NodeUnpublishVolume         +node_volume  target_path
//
// All others take nothing and never wait: probes, capabilities, lists, statistics,
// health, capacity and validation. So the pods of one shared volume come and go
// side by side, while a stage excludes them and a delete excludes who copies from
// what it deletes. The controller's keys for a volume and the node's are apart
// (see [Kind]).
//
// # Parked keys
//
// A call may end, because its deadline has passed, while its work goes on: a
// mount on a dead server cannot be interrupted. The keys must not be free then.
// An error with a method Pending() <-chan struct{} tells so (package blocking
// has one), alone or wrapped with others in one, and the keys stay held, marked
// parked, until that channel closes. A
// retry of the same call passes them, so that it can join the work; so do
// NodeUnpublishVolume and NodeUnstageVolume, so that a forced unmount can act.
//
// # When not to use it
//
// The table lives in one process. It does not keep two replicas of a controller
// from each other (leader election does), nor a controller from a node plugin in
// another process (the CO's order of calls does), and after a restart it is
// empty. Nor is it for waiting long: calls that wait ([WithWait],
// [Table.AcquireWait]) are served in order of arrival, but each time a key is
// returned all of them are looked at. Some hundreds are fine.
//
// # Concurrency, privileges, platforms
//
// All methods may be called at the same time. The only goroutines are one per
// parked call. To take and return free keys allocates nothing, and calls for
// different keys do not queue for one mutex. An idle table keeps no entry and a
// few KiB of empty buckets, also after a burst. No privilege and no kernel
// version is needed; the package is plain Go for every platform.
package volumelock
