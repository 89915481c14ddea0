// Package registration registers a CSI driver with kubelet from within the driver,
// in the place of the node-driver-registrar sidecar, and keeps it registered.
//
// kubelet finds plugins by their sockets in one directory, asks each one who it is,
// calls NodeGetInfo of a CSI driver and writes CSINode and the node's labels. A
// [Registrar] makes that socket once the driver answers and is ready, so that
// kubelet's first question succeeds, and puts it in place by one rename, so that
// kubelet sees one event. Then it looks twice a second whether the socket still is
// its own:
//
//   - One that was deleted, or went away with its directory, is made again.
//   - Where another process answers, it stands by and takes over when that ends: the
//     old pod in a rolling update, or node-driver-registrar.
//   - A dead one, whose process was killed, is replaced. Dead is what refuses
//     connections, or does not answer for two seconds.
//   - What is no socket is never touched, nor a socket of another inode than its own
//     when Serve ends: an old pod does not take its successor's socket away.
//
// A refusal by kubelet ends nothing, because kubelet tries again by itself.
// [Registrar.Status] tells where things stand, with kubelet's words, and
// [Registrar.Check] is a check of readiness, which csiserver.ReadyCheck takes. It is
// none of liveness: see there.
//
// # What it cannot mend
//
// kubelet watches the directory that was there when kubelet started. If somebody
// deletes it and makes it anew, kubelet sees no driver of this node until it is
// restarted; the socket is in the new directory by then, and the Status and the log
// say what is missing. If the directory itself is the mount of a container, the
// container cannot see the new one either, and the pod has to be restarted too:
// mount the parent, kubelet's root, to do without that.
//
// kubelet has never called a socket that it does not watch. A Status of Offered for
// more than two and a half minutes says so and names the two directories to compare.
//
// # When not to use it
//
// Where the driver's process is restarted often and gaps in CSINode matter, the
// sidecar has one advantage: it is registered for as long as its own process runs.
// In-process each restart takes the driver out for one or two seconds, with either
// value of [Shutdown]. The sidecar and a Registrar may run side by side, for
// instance while a fleet changes over: they use the same file name, and the
// Registrar stands by while the sidecar runs.
//
// A controller plugin does not register. Nor does this package talk to the API
// server: labels, taints to be removed from a node, the CSIDriver object and
// VolumeAttachments of a node that is shut down are the vendor's, or belong to the
// deployment.
//
// # Privileges, systems
//
// The process needs write permission in the registration directory, which belongs
// to root; kubelet, which is root, connects to a socket of mode 0600. On SELinux a
// process in a container may have to be privileged for kubelet to connect. On Linux
// /proc has to be mounted, and any kernel that Go supports will do; the registration
// directory must not be on a file system without RENAME_NOREPLACE, such as NFS. On
// other systems two instances that start in the same moment are not told apart.
package registration
