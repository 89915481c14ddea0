// Package mountapi is the only user of the mount system calls in csikit: it
// reads the mount table, looks up what is mounted on one path, and attaches,
// verifies and detaches mounts without starting a program.
//
// A mount is made as a [Tree] that is attached nowhere, with all its attributes,
// and then attached atomically: it is never visible without them. That matters twice.
// A read-only bind is never writable, not even between two system calls. And where the
// target's mount is shared with other mount namespaces, as kubelet's directory is
// with a driver's container, they receive the mount as it is when it is attached and
// no later change: bind and then remount leaves the host's copy writable for good.
//
// # When not to use it
//
// For network file systems, whose mount helpers do more than mount(2), and for
// recursive binds.
//
// # Concurrency
//
// All functions are safe for concurrent use; the caller serializes calls that change
// the same path. A Tree belongs to one goroutine.
//
// # Privileges and kernel
//
// CAP_SYS_ADMIN in the user namespace that owns the mount namespace; reading
// needs none, but for /proc. Linux 4.11. Newer system calls are used where they
// exist; a seccomp filter that refuses one counts as an older kernel: see [Calls]. On other
// systems every function that would call the kernel returns errors.ErrUnsupported; the parsers
// work everywhere.
//
// Before Linux 5.12 (CloneTree) and 5.2 (NewTree) a Tree is kept in a private
// directory below os.TempDir(), which therefore has to be writable. A process that
// is killed between creating and closing a tree leaves it there until SweepScratches
// finds that its lock is free, or its mount namespace ends.
//
// Before Linux 5.8 a mount table that changes while it is read may lack mounts that have been
// there all the time: it is read until two reads agree.
package mountapi
