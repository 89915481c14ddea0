package csispec

import "strings"

// KubernetesPrefix begins the keys that the sidecars and kubelet add to the maps of a
// request. A storage class may use other keys with this prefix, which external-provisioner
// evaluates and removes from CreateVolume.
const KubernetesPrefix = "csi.storage.k8s.io/"

// Parameters of CreateVolume, and with --extra-modify-metadata of external-resizer
// mutable_parameters of ControllerModifyVolume. external-provisioner adds them with
// --extra-create-metadata.
const (
	ParameterPVCName      = KubernetesPrefix + "pvc/name"      // PersistentVolumeClaim
	ParameterPVCNamespace = KubernetesPrefix + "pvc/namespace" // of the claim
	ParameterPVName       = KubernetesPrefix + "pv/name"       // PersistentVolume that will be created
)

// Parameters of CreateSnapshot and CreateVolumeGroupSnapshot. csi-snapshotter, the sidecar
// of external-snapshotter, adds them with --extra-create-metadata.
const (
	ParameterSnapshotName      = KubernetesPrefix + "volumesnapshot/name"        // VolumeSnapshot
	ParameterSnapshotNamespace = KubernetesPrefix + "volumesnapshot/namespace"   // of the VolumeSnapshot
	ParameterSnapshotContent   = KubernetesPrefix + "volumesnapshotcontent/name" // VolumeSnapshotContent

	ParameterGroupSnapshotName      = KubernetesPrefix + "volumegroupsnapshot/name"        // VolumeGroupSnapshot
	ParameterGroupSnapshotNamespace = KubernetesPrefix + "volumegroupsnapshot/namespace"   // of the VolumeGroupSnapshot
	ParameterGroupSnapshotContent   = KubernetesPrefix + "volumegroupsnapshotcontent/name" // VolumeGroupSnapshotContent
)

// Entries of volume_context of NodePublishVolume. kubelet adds those of the pod if the
// CSIDriver object has podInfoOnMount.
const (
	VolumeContextPodName            = KubernetesPrefix + "pod.name"
	VolumeContextPodNamespace       = KubernetesPrefix + "pod.namespace"
	VolumeContextPodUID             = KubernetesPrefix + "pod.uid"
	VolumeContextServiceAccountName = KubernetesPrefix + "serviceAccount.name"
	// VolumeContextEphemeral is "true" for a CSI ephemeral inline volume, which is neither
	// created by CreateVolume nor staged, else "false".
	VolumeContextEphemeral = KubernetesPrefix + "ephemeral"
	// VolumeContextServiceAccountTokens holds the tokens of tokenRequests in the CSIDriver
	// object, as JSON. It is a secret, which [Redact] masks; from Kubernetes 1.35 on, with
	// serviceAccountTokenInSecrets it is an entry of secrets instead.
	VolumeContextServiceAccountTokens = KubernetesPrefix + "serviceAccount.tokens"
	// VolumeContextProvisionerIdentity is added by external-provisioner to the volume_context
	// of every volume that it provisions.
	VolumeContextProvisionerIdentity = "storage.kubernetes.io/csiProvisionerIdentity"
)

// IsKubernetesKey reports whether a key of parameters or of volume_context belongs to
// Kubernetes and not to the driver: one that begins with [KubernetesPrefix] or
// storage.kubernetes.io/. A driver that rejects unknown parameters ignores these.
func IsKubernetesKey(key string) bool {
	return strings.HasPrefix(key, KubernetesPrefix) || strings.HasPrefix(key, "storage.kubernetes.io/")
}
