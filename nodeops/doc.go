// Package nodeops stages, publishes, unpublishes, unstages, expands and measures
// volumes on a Linux node: what the node half of a CSI driver does between the
// RPC and the kernel.
//
// Every operation is idempotent because it compares what is mounted with what is
// wanted: device number, root, file system type and flags. The answer is success
// (it is so already, or it was made so), or an error that lists each difference.
// That something, anything, is mounted at a path is never taken for success.
//
//   - A device is formatted only when it is proven blank: read in this process at
//     every place where a file system, partition table or volume manager announces
//     itself, and found blank by blkid as well. A device that cannot be read, holds
//     something else or is in use is an error and is never written.
//   - A mkfs that is cut off at any moment is made again, on another node as well: a
//     mark on the device says that it was blank before. Without a whole mark, what a
//     mkfs left is data, and an operator decides. mkfs does not discard the device;
//     for that, run fstrim or mount with "discard".
//   - A read-only publication is read-only from its first moment; a read-only raw
//     block publication makes the device itself refuse writes.
//   - Publish refuses to bind a staging path on which nothing is mounted, so a pod
//     never writes to the node's root disk instead of its volume.
//   - Teardown decides from the mount table, never opens what it tears down, and
//     removes paths by unlink and rmdir alone: it cannot delete data.
//   - A mount that is dead, because its server or device is gone, is known by what it
//     answers and made anew; a living one is never unmounted by stage or publish.
//   - Mounts are made by system calls; no program is started but mkfs, fsck, blkid
//     and the tools that grow a file system, and for network file systems their mount
//     helpers, which are killed with all their children when they take too long.
//
// Work that the kernel blocks does not block the caller: when ctx ends first, the
// caller gets DEADLINE_EXCEEDED and the work goes on; the next call for the same
// path joins it. See [Error] for what each error means to a CO.
//
// # When not to use it
//
// In a process that cannot see the CO's mounts (a container needs the kubelet
// directory with Bidirectional propagation); for two volumes on one device, since a
// device is taken to be one volume; for shares that are staged, since PublishShare
// mounts each target by itself.
//
// # Concurrency
//
// A [Node] is safe for concurrent use. It runs one operation per path at a time,
// but knows nothing of two paths that belong to one volume: callers keep stage
// and publish of a volume apart, as package volumelock does.
//
// # What it tells
//
// Logs, spans and metrics go where [Config] says. The log has a warning before each
// mkfs and each unmount that was not asked for, and at debug level every command
// line. The metrics are csikit.nodeops.operation.duration (seconds, by op and gRPC
// code), csikit.nodeops.formats (mkfs runs), csikit.nodeops.parked and
// csikit.nodeops.parked.oldest (work that hangs in the kernel; an alert on the latter
// finds the dead server). [Node.InFlight] lists that work by path.
//
// # Privileges
//
// CAP_SYS_ADMIN; read and write access to the block devices; CAP_SYS_RESOURCE to
// grow a mounted ext4. Linux 5.12. On other systems every operation returns
// errors.ErrUnsupported.
//
// Programs: blkid (util-linux), and for the file system types that are used:
// mke2fs, e2fsck and resize2fs (e2fsprogs) for ext4; mkfs.xfs, xfs_repair and
// xfs_growfs (xfsprogs) for xfs; mkfs.btrfs and btrfs (btrfs-progs) for btrfs;
// mount.<type> for shares, such as mount.nfs (nfs-common).
//
// # xfs
//
// The new size of an xfs that has grown while mounted stands in its log alone until the
// kernel writes the superblock, which by itself it does up to half a minute later. What
// is left if the machine dies before that, or is in a snapshot that is cut before that,
// Linux may be unable to replay (6.12 can more often than those before it, commit
// 6a18765b54e2, and 6.18 not always): staging is KindInternal with "structure needs
// cleaning", until an operator runs xfs_repair. StageFilesystem and Expand therefore have
// the superblock written before they return. What remains is a moment while they run:
// who cuts snapshots of mounted volumes does so at another time, or looks into the cut
// whether it fell there, as filepool_xfs.go of examples/blockdriver does.
//
// # btrfs
//
// A volume is the whole of one btrfs on one device: of more devices it is refused,
// and so are the mount options subvol, subvolid and device. Devices have to be in
// /dev, and /sys has to be mounted. The least size is 109 MiB, but what is smaller
// than 256 MiB grows only to 256 MiB and more. A copy, such as a restored snapshot,
// is mounted beside its source from Linux 6.7 on; before, that is KindPrecondition.
// There are no inodes to count. The kernel discards what is freed on its own where
// the device takes discards (Linux 6.2); the mount option nodiscard keeps it from that.
package nodeops
