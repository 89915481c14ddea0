// Package fastmount is a mount.Interface (k8s.io/mount-utils) that mounts by
// system calls instead of starting mount(8), for drivers that use mount-utils
// today. One line changes:
//
//	mounter := mount.New("")    // before
//	mounter := fastmount.New()  // after
//
// It also goes where mount-utils wants a mounter:
//
//	mount.SafeFormatAndMount{Interface: fastmount.New(), Exec: exec.New()}
//	mount.CleanupMountPoint(target, fastmount.New(), true)
//
// What it does without mount(8), and the advantages:
//
//   - Bind mounts (bind, rbind). A read-only bind is attached read-only, atomically: it
//     is never writable, is not left behind writable when a later step fails,
//     and is read-only on the host as well, which shares kubelet's directory with
//     the driver's container and does not receive a remount. For rbind, "ro" and the
//     other attributes apply to the top mount only, as in mount(8).
//   - remount, which changes the named options and keeps all others; and
//     bind,remount, which changes the mount at target instead of stacking another
//     (where nothing is mounted, it binds).
//   - ext2, ext3, ext4, xfs and btrfs on a block device, and tmpfs. The error of a
//     failed mount contains the kernel's message.
//   - shared, slave, private, unbindable and their recursive forms, with any of these.
//   - Unmount, the mount-point checks, List and GetMountRefs. The checks are exact
//     for bind mounts and do not wait for a server (stale mounts).
//
// Everything else goes, unchanged, to the mounter of [WithFallback], which
// starts mount(8): network and FUSE file systems, any type that has a
// /sbin/mount.TYPE, a type to be guessed, LABEL= and UUID=, images that need a
// loop device, options that only mount(8) knows (loop, user, X-mount.*, ...),
// flags for mount(8) itself, and system calls that this kernel lacks.
//
// # Where it differs from mount-utils
//
// On purpose, and verified by a test that runs both on the kernel:
//
//   - An option that a bind mount inherits is never dropped: mount-utils loses
//     nosymfollow.
//   - Mount with bind and remount changes the mount at target. mount-utils first
//     binds once more on top of it.
//   - A remount keeps the mount's other attributes. mount-utils resets them when
//     the source is given (remount,rw loses nosuid).
//   - List and GetMountRefs return decoded paths ("a b"); mount-utils returns the
//     kernel's escapes (a\040b), which no other call accepts.
//   - nofail does not turn a missing device into success.
//   - No program is run to unmount, so a umount.TYPE helper is not called, and
//     /run/mount/utab is not written.
//   - Nothing is logged, except by mount-utils as the fallback. Mount and Unmount
//     return an [*Error], which unwraps to the errno.
//
// As with mount-utils: symlinks are followed in source and target; Unmount of a
// path that exists and is not mounted is success (CanSafelySkipMountPointCheck
// says so), Unmount of a missing path is an error (fs.ErrNotExist); on a
// stack of mounts it removes the top one; a write-protected device is mounted
// read-only when the call did not ask for it; the same file system twice on
// one target is EBUSY, other mounts stack.
//
// # When not to use it
//
// In new code: package nodeops compares the existing mount with the requested one,
// where this interface only reports whether there is a mount. Never for calls that
// must be cancellable: the interface has no context.
//
// # Concurrency
//
// A mounter is safe for concurrent use. The caller serializes calls for the same target.
//
// # Privileges and kernel
//
// CAP_SYS_ADMIN in the user namespace of the mount namespace; none for the
// checks. Linux 5.12; before, remounts and rbind go to the fallback, and the rest
// works by mount(2). On other systems New returns what mount.New returns there.
package fastmount
