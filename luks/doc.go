// Package luks encrypts volumes on a Linux node with LUKS2: it formats a device that is proven
// blank, opens it as a device of device-mapper, closes it, lets it grow, and replaces its
// passphrase. What it opens is staged as any other device, for instance by package nodeops.
//
// Every operation is idempotent and can be interrupted at any point, by a kill of the process or
// of cryptsetup: a repeated call continues, also on another node.
//
//   - A device is formatted only if it is blank, by the same tests as in nodeops; a mark on it
//     records that until the format is complete.
//   - The header has the volume's ID as its label: the header of another volume is refused.
//   - The name of the mapping follows from the volume's ID, so that Close and Find need
//     neither the device nor a record. A mapping of that name that is on another device, or
//     of another program, is refused and never closed.
//   - A call that fails closes what it has opened, and only that.
//   - Passphrases reach cryptsetup as its standard input and as inherited memory files: they
//     are in no argument, environment, log, error or directory.
//
// In NodeStageVolume, call [Mapper.Open] and stage Mapping.Path; if the stage fails with a
// final code, call [Mapper.Close], which is refused while the mapping is in use; it also removes
// a mapping that an earlier attachment left on a device that is gone. In
// NodeUnstageVolume, unmount and call Close, whether or not anything was mounted. In
// NodeExpandVolume, call [Mapper.Resize] before the file system grows.
//
// # When not to use it
//
// If the storage encrypts, or the key must not be on the node. Not for LUKS1 or volumes without
// a header. Not to detect changes of the encrypted data: there is no integrity protection. A
// snapshot has the passphrases that the volume had then; a change does not reach it. Discards
// are not passed on, since they show on the storage which blocks are in use: a thin volume does
// not shrink. A volume that is expanded between its first Open and the creation of its file
// system is not blank where it has grown: nodeops refuses it until an operator zeroes the
// mapping (blkdiscard -z). A storage that returns zeros for data while it is not healthy
// (longhorn/longhorn#13668) cannot be told from a blank one: if the driver knows that a volume
// was staged before, it sets OpenRequest.MustHoldData.
//
// # Codes
//
// A wrong passphrase is UNAUTHENTICATED, as the specification has it for secrets that are not
// valid. That is final for kubelet, which is right since nothing is left open; the pod's start
// is repeated with the secret that kubelet reads again. See [Error] for the others.
//
// # Concurrency
//
// A [Mapper] is safe for concurrent use and runs one operation per volume at a time. If ctx
// ends, the program is killed, and the caller gets DEADLINE_EXCEEDED or CANCELLED; one that
// hangs in the kernel stays in flight, and the next call for the volume waits for it.
// Two processes that open one volume at the same time exclude each other by the locks of the
// kernel: one gets csierr.Busy.
//
// # Privileges, kernel and programs
//
// CAP_SYS_ADMIN, and CAP_IPC_LOCK so that cryptsetup's keys are not swapped;
// /dev/mapper/control, and /sys. dm_mod and dm_crypt are loaded in
// the kernel. A writable /run for the locks of cryptsetup, and the host's /dev or a writable one:
// the node of a mapping is created without udev. cryptsetup 2.1 or later and dmsetup;
// blkid (util-linux). The default key derivation needs 64 MiB of memory for each call. A
// volume has at least 64 MiB, of which the headers take 16. On other systems every operation
// returns errors.ErrUnsupported.
package luks
