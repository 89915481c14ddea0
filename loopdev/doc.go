// Package loopdev attaches image files to Linux loop devices and finds them
// again by the identity of the file, not by its name.
//
// A stateless driver can call [Attach] on every stage and [Find] and [Device.Detach] on
// every unstage: the kernel knows which device serves which inode, also after a restart of
// the driver, with a renamed directory and in another mount namespace. No program is run.
//
// Devices are configured without autoclear, so that they persist until Detach and not until
// the last close; with direct I/O if the file system of the image supports it (the page
// cache would otherwise hold every block twice); and with 512-byte logical blocks whatever
// the disk below has: a file system created with small blocks cannot be mounted on a device
// with larger ones.
//
// # When not to use it
//
// For images in a format other than raw (the kernel would serve the container
// format as data), for images with partitions (there is no partition scan), for encrypted
// loop devices, and for an image that several nodes attach at the same time: neither the
// kernel nor this package coordinates nodes. If an image is on a network file system whose
// server does not respond, every process that accesses the device blocks.
//
// # Concurrency
//
// All functions may be called from any number of goroutines and processes.
// Attach and Detach of one image are serialised by a flock(2) on the image, which is
// released when they return; a driver must not hold another flock on that file meanwhile.
// The caller coordinates the use of a device between Find and Detach, for instance with a
// lock per volume.
//
// # Privileges and kernel
//
// Root of the initial user namespace (CAP_SYS_ADMIN), /sys, and a /dev in which
// the kernel's loop nodes appear: devtmpfs, or the host's /dev mounted into
// the container. Linux 4.18; before 5.8, which has LOOP_CONFIGURE, a device is configured in
// steps, and a process that is killed meanwhile leaves a device that the next Attach uses. On
// other systems every function returns [errors.ErrUnsupported].
package loopdev
