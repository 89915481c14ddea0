// Package volumelock is a lock table for the RPCs of CSI: keys for volumes,
// targets, names and attachments, taken shared or exclusively, all or none, and
// without waiting. A call that finds a key taken returns ABORTED with the name, the
// request id and the age of the call that holds it, and for how long the key has been
// contended, as the CSI specification proposes for an operation that is pending
// already.
//
// [Table] is the lock table. [Interceptor] acquires and releases the keys around each
// call and stream of a gRPC server; which keys a call needs is defined by [DefaultPolicy],
// or your own [Policy].
//
// # The default policy
//
// A key is exclusive, unless marked: + means shared, ± means shared or exclusive,
// depending on the request. ControllerPublishVolume takes attachments exclusively where
// the access mode limits the nodes that may write, ControllerUnpublishVolume where it
// detaches from all nodes; NodePublishVolume takes volume_on_node exclusively where the
// mode allows one target on a node (SINGLE_NODE_WRITER, _READER_ONLY, _SINGLE_WRITER) or
// is unknown. A key whose ID is empty in the request is omitted.
//
//	CreateVolume                volume_name  +volume (source)  +snapshot (source)
//	DeleteVolume                volume
//	ControllerPublishVolume     +volume  ±attachments  attachment
//	ControllerUnpublishVolume   +volume  ±attachments  attachment
//	ControllerExpandVolume      volume
//	ControllerModifyVolume      volume
//	CreateSnapshot              snapshot_name  +volume (source)
//	DeleteSnapshot              snapshot
//	CreateVolumeGroupSnapshot   group_snapshot_name  +volume (each source)
//	DeleteVolumeGroupSnapshot   group_snapshot  snapshot (each member)
//	NodeStageVolume             volume_on_node
//	NodeUnstageVolume           volume_on_node
//	NodeExpandVolume            volume_on_node
//	NodePublishVolume           ±volume_on_node  target_path
//	NodeUnpublishVolume         +volume_on_node  target_path
//
// All others take no key and never wait: probes, capabilities, lists, statistics,
// health, capacity and validation. So the pods of one shared volume are published and
// unpublished concurrently, while a stage excludes them and a delete excludes copies of
// the volume or snapshot that it deletes. The controller's keys for a volume and the
// node's are of different kinds (see [Kind]).
//
// A target_path key is the cleaned text of the path, which is lexical; see
// [DefaultPolicy].
//
// # Parked keys
//
// A call may return, because its deadline has passed, while its work is still in flight:
// a mount from an unreachable server cannot be interrupted. Its keys must not be freed
// then. If the call returns an error that has, or wraps, a method
// Pending() <-chan struct{} (package blocking has one), the keys stay held, marked
// parked, until that channel closes. A
// retry of the same call passes them, so that it can join the work; so do
// NodeUnpublishVolume and NodeUnstageVolume, so that a forced unmount can act.
//
// # When not to use it
//
// The table is local to one process. It does not exclude two replicas of a controller
// (leader election does), nor a controller and a node plugin in
// another process (the CO's order of calls does), and after a restart it is
// empty. Nor is it for long queues: calls that wait ([WithWait],
// [Table.AcquireWait]) are served in order of arrival, but each release of a key checks
// all of them. Some hundreds are fine.
//
// # Concurrency, privileges, platforms
//
// All methods are safe for concurrent use. The only goroutines are one per
// parked call. Taking and releasing free keys allocates nothing, and calls for
// different keys do not queue for one mutex. An idle table keeps no entry and a
// few KiB of empty buckets, even after a burst. It needs no privileges and no particular
// kernel or platform.
package volumelock
