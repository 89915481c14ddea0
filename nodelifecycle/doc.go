// Package nodelifecycle is what a node plugin does at both ends of a node's life, by
// Kubernetes' API: it removes a start-up taint once kubelet has registered the driver, and,
// when the node is drained, waits until the driver's volumes are detached.
//
// # Start-up taint
//
// A pod that is scheduled to a new node before the driver is registered fails to mount, and
// kubelet retries at growing intervals; a scheduler that does not know the node's volume limit
// yet places more pods than fit. So the node is created with a taint (kubelet's
// --register-with-taints, a node pool's or Karpenter's start-up taint), such as
//
//	csi.example.com/agent-not-ready:NoExecute
//
// and [Node.RemoveTaint] removes it. "Registered" means that the CSINode object lists the
// driver: kubelet writes name, topology keys and volume limit in one update, after NodeGetInfo.
//
// # Waiting for the detach
//
// When a drained node is shut down, its node plugin is terminated too. If that happens before
// kubelet has unmounted the volumes, nothing unmounts them any more: their
// VolumeAttachments stay, and pods on other nodes wait for six minutes until Kubernetes
// detaches by force. [Node.WaitForDetach] is for a preStop hook, during which the driver
// still serves; it returns immediately on a node that is not being drained, so that a
// rolling update does not wait.
//
// The container's terminationGracePeriodSeconds has to be longer than that wait and the driver's
// own shutdown together, because kubelet counts both. The driver has to register itself, as with
// package registration: a csi-node-driver-registrar beside it ends as soon as the pod is
// deleted, and kubelet unmounts nothing for a driver that is not registered. If kubelet's shutdownGracePeriodCriticalPods is
// shorter, it wins.
//
// # Rights
//
// The service account needs get and patch on nodes and get on csinodes (storage.k8s.io) for
// the taint, and get on nodes and list on volumeattachments (storage.k8s.io) for the detach. RBAC
// cannot restrict patch to the node on which the pod runs: with the token of one pod, every
// node can be changed. Grant it only where the taint is used, or restrict it with a
// ValidatingAdmissionPolicy.
//
// # When not to use it
//
// Outside Kubernetes. Without a start-up taint in the node pools, as then the first function has nothing to
// do. With drivers whose CSIDriver says attachRequired: false, as these
// have no VolumeAttachments, and the second function returns immediately. Not for a
// graceful shutdown of a node without a drain: kubelet itself waits there for the unmounts, in
// the order of priority classes.
//
// A drained node is recognised by its deletion, by spec.unschedulable and by the taints of
// kubectl cordon, Cluster Autoscaler and Karpenter. A node that is cordoned but keeps its pods
// looks the same, and a rolling update waits there for as long as the caller allows.
//
// After a reboot CSINode may list the driver from before: kubelet keeps the entry until
// it registers the driver again. A driver that registers itself sets Config.Registered, and
// the taint stays until then.
//
// The package imports only the standard library, not k8s.io/client-go, and runs on every system.
package nodelifecycle
