// Package loopdev attaches image files to Linux loop devices and finds them
// again by the identity of the file, not by its name.
//
// A driver that keeps no state of its own can call [Attach] on every stage and
// [Find] and [Device.Detach] on every unstage: the kernel knows which
// device serves which inode, and that survives a restart of the driver, a renamed
// directory and a different mount namespace. No program is run.
//
// Devices are configured without autoclear, so that they live until Detach and
// not until the last close, with direct I/O where the file system of the
// image allows it (the page cache would otherwise hold every block twice), and
// with 512-byte logical blocks whatever the disk below has: a file system made on a
// device with small blocks cannot be mounted from one with larger ones.
//
// # When not to use it
//
// For images in a format other than raw (the kernel would serve the container
// format as data), for images with partitions (no partition scan is asked for), for
// encrypted loop devices, and for an image that several nodes attach at once:
// neither the kernel nor this package coordinates nodes. An image on a network file
// system can block every process that touches the device when the server goes away.
//
// # Concurrency
//
// All functions may be called from any number of goroutines and processes.
// Attach and Detach of one image are serialised by a flock(2) on the image, which
// is free again when they return; a driver must not hold one of its own on that
// file meanwhile. What uses a device between Find and Detach is the caller's to
// coordinate, as with a lock per volume.
//
// # Privileges and kernel
//
// Root of the initial user namespace (CAP_SYS_ADMIN), /sys, and a /dev in which
// the kernel's loop nodes appear: devtmpfs, or the host's /dev mounted into
// the container. Linux 5.8 for LOOP_CONFIGURE. On other systems every function
// returns [errors.ErrUnsupported].
package loopdev
