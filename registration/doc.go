// Package registration registers a CSI driver with kubelet from within the driver's
// process, in place of the node-driver-registrar sidecar, and keeps it registered.
//
// kubelet discovers plugins by their sockets in one directory, calls GetInfo on each,
// calls NodeGetInfo of a CSI driver and writes CSINode and the node's labels. A
// [Registrar] creates that socket once the driver answers and is ready, so that
// kubelet's first call succeeds, and puts it in place by one rename, so that
// kubelet sees one event. Twice a second it then reconciles the socket:
//
//   - If it was deleted, or its directory was, it is created again.
//   - If another process serves it (the old pod in a rolling update, or
//     node-driver-registrar), the Registrar stands by and takes over when that
//     process ends.
//   - A stale socket, whose process was killed, is replaced. A socket is stale if it
//     refuses connections or does not answer for two seconds.
//   - A file that is not a socket is never touched. When Serve ends, only the socket
//     with its own inode is removed: an old pod does not remove its successor's.
//
// A rejection by kubelet does not end Serve, because kubelet retries automatically.
// [Registrar.Status] reports the state with kubelet's message, and
// [Registrar.Check] is a readiness check for csiserver.ReadyCheck, not for liveness probes
// (see Registrar.Check).
//
// # What it cannot repair
//
// kubelet watches the directory that existed when kubelet started. If that directory
// is deleted and recreated, kubelet sees no driver of this node until it is
// restarted; the socket is in the new directory by then, and the Status and the log
// say so. If the directory itself is the mount of a container, the
// container cannot see the new one either, and the pod has to be restarted too:
// mount the parent, kubelet's root, to avoid that.
//
// kubelet never calls a socket that it does not watch. After two and a half minutes in
// AwaitingKubelet the Status says so and names the two directories to compare.
//
// # When not to use it
//
// Where the driver's process is restarted often and gaps in CSINode matter, the
// sidecar has one advantage: it stays registered for as long as its own process runs.
// In-process, each restart removes the driver from CSINode for one or two seconds, with
// either value of Config.OnShutdown. The sidecar and a Registrar may run side by side, for
// instance during a migration: they use the same file name, and the
// Registrar stands by while the sidecar runs.
//
// A controller plugin does not register. Nor does this package call the API
// server: package nodelifecycle removes a start-up taint and waits for the volumes of a
// drained node; labels and the CSIDriver object are the deployment's.
//
// # Privileges, systems
//
// The process needs write permission in the registration directory, which belongs
// to root; kubelet, which is root, connects to a socket of mode 0600. On SELinux a
// process in a container may have to be privileged for kubelet to connect. On Linux
// /proc has to be mounted, and any kernel that Go supports is sufficient; the registration
// directory must not be on a file system without RENAME_NOREPLACE, such as NFS. On
// other systems instances that start concurrently do not detect each other.
package registration
