// Package nodeops stages, publishes, unpublishes, unstages, expands and measures
// volumes on a Linux node: what the node half of a CSI driver does between the
// RPC and the kernel.
//
// Every operation is idempotent: it compares what is mounted with what is wanted
// (device number, root, file system type and flags) and returns success, or an error
// that lists each difference. A mount at the path does not count as success by itself: it
// has to be the requested one.
//
//   - A device is formatted only when it is proven blank: read in this process at
//     every offset where a file system, partition table or volume manager has its
//     signature, and found blank by blkid too. A device that cannot be read, holds
//     anything else or is in use is refused and never written to. For storage that shows
//     what an earlier volume has left, see StageFilesystemRequest.NeverUsed.
//   - An interrupted mkfs is repeated, also on another node: a mark on the device
//     records that it was blank before. Without an intact mark, leftovers of mkfs are
//     treated as data, and an operator decides. mkfs does not discard the device;
//     for that, run fstrim or mount with "discard".
//   - A read-only publication is read-only from creation, never writable first; a
//     read-only raw block publication makes the device itself refuse writes.
//   - Publish refuses to bind a staging path on which nothing is mounted, so a pod
//     never writes to the node's root disk instead of its volume.
//   - Teardown reads only the mount table, never opens what it unmounts, and removes
//     paths only by unlink and rmdir: it cannot delete data.
//   - Stage and publish replace a corrupted or stale mount (ESTALE, ENOTCONN, EIO: its
//     server or device is gone). They never unmount a healthy one.
//   - Mounts are created by system calls. The only programs run are mkfs, fsck, blkid,
//     the tools that grow a file system, and the mount helpers of network file systems,
//     which are killed with all their children on timeout.
//
// A path is resolved once per operation, to an open directory and a name in it: the path
// that is locked is the path that is checked, mounted and unmounted, whatever is renamed or
// replaced by a symlink meanwhile. Publish and unpublish of a file system read neither the
// mount table (Linux 6.13) nor a directory, so that their cost does not depend on the number
// of mounts and pods.
//
// An operation that blocks in the kernel does not block the caller: when ctx ends first,
// the caller gets DEADLINE_EXCEEDED while the operation stays in flight; the next call
// for the same path joins it. See [Error] for what each error means to a CO.
//
// # When not to use it
//
// In a process that cannot see the CO's mounts (a container needs the kubelet
// directory with Bidirectional propagation); for two volumes on one device, since a
// device is assumed to be one volume; for shares that are staged, since PublishShare
// mounts each target separately.
//
// # Two pods of one node
//
// Exclusive refuses a second target path, as the specification has it for the access modes of
// csispec.IsSinglePublish. Two pods of one node may share a claim that is ReadWriteOnce, and
// kubelet sends SINGLE_NODE_WRITER for it to a plugin without the capability
// SINGLE_NODE_MULTI_WRITER: the second pod would never start. A plugin that sets Exclusive
// by access mode reports that capability, in the controller and the node service. Then
// kubelet sends SINGLE_NODE_MULTI_WRITER for ReadWriteOnce, and SINGLE_NODE_SINGLE_WRITER for
// ReadWriteOncePod.
//
// # Mount groups
//
// The capability VOLUME_MOUNT_GROUP is for file systems with a mount option for the group of
// all files, such as gid= of cifs: a driver passes volume_mount_group to PublishShare as that
// mount flag. ext4, xfs and btrfs have none, so StageFilesystem takes no group. A driver for
// these does not claim the capability; kubelet then applies fsGroup itself, to all files, which
// a driver cannot do for the next pod with another group.
//
// # Concurrency
//
// A [Node] is safe for concurrent use. It runs one operation per path at a time,
// but does not know which paths belong to one volume: callers serialize stage and
// publish of a volume, as package volumelock does. Of two processes that mount at one path,
// such as an old instance that hangs in the kernel and its successor, one mounts; the other
// gets csierr.Busy, or finds the mount.
//
// # Observability
//
// Logs, spans and metrics go to the providers in [Config]. The log has a warning before
// each mkfs and each unmount that the CO did not request, and every command line at debug
// level. The metrics are csikit.nodeops.operation.duration (seconds, by op and gRPC
// code), csikit.nodeops.formats (mkfs runs), csikit.nodeops.parked and
// csikit.nodeops.parked.oldest (calls that hang in the kernel; alert on the latter to
// find a server that does not respond). [Node.InFlight] lists these calls by path.
//
// # Privileges
//
// CAP_SYS_ADMIN; read and write access to the block devices; CAP_SYS_RESOURCE to
// grow a mounted ext4. Linux 4.18; before 5.12, mounts are made in a private directory below
// os.TempDir(), which has to be writable, and what a process that was killed leaves there is
// removed by the next operation. On other systems every operation returns
// errors.ErrUnsupported.
//
// Programs: blkid (util-linux), and for the file system types that are used:
// mke2fs, e2fsck and resize2fs (e2fsprogs) for ext4; mkfs.xfs, xfs_repair and
// xfs_growfs (xfsprogs) for xfs; mkfs.btrfs and btrfs (btrfs-progs) for btrfs;
// mount.<type> for shares, such as mount.nfs (nfs-common).
//
// # xfs
//
// The new size of an xfs that was grown while mounted is only in its log until the
// kernel writes the superblock, up to half a minute later. If the machine crashes before
// that, or a snapshot has a point in time before that, Linux may be unable to replay the
// log (6.12 can more often than earlier releases, commit 6a18765b54e2; 6.18 not always):
// staging is csierr.Internal with "structure needs cleaning" until an operator runs
// xfs_repair. StageFilesystem and Expand therefore have the superblock written before
// they return. A race window remains while they run: a driver that takes snapshots of
// mounted volumes takes them at another time, or checks the snapshot for this state, as
// xfs.go of examples/blockdriver/filepool does.
//
// # btrfs
//
// A volume is a whole btrfs on one device: a btrfs on several devices is refused, and so
// are the mount options subvol, subvolid and device. Devices have to be in /dev, and /sys
// has to be mounted. The minimum size is 109 MiB, but one smaller than 256 MiB can only
// grow to 256 MiB or more. A copy, such as a restored snapshot, can be mounted on the node
// of its source from Linux 6.7 on; before, that is csierr.Precondition. btrfs does not count
// inodes. The kernel discards freed blocks automatically if the device supports it (Linux
// 6.2); the mount option nodiscard disables that.
package nodeops
