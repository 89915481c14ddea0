package csispec

// An Option configures [Validate].
type Option interface{ apply(config) config }

// config goes by value, so that it stays off the heap.
type config struct {
	// present and absent are the capabilities that the plugin certainly has and lacks.
	present, absent        features
	relativeVolumePath     bool
	emptyMutableParameters bool
	emptySnapshotIDs       bool
	inlineVolumes          bool
	largeSecrets           bool
	allowUnknown           bool
	refuseAlpha            bool
}

type option func(config) config

func (o option) apply(c config) config { return o(c) }

// WithCapabilities validates messages against the plugin's capabilities, with the rule
// "capability" and INVALID_ARGUMENT (INTERNAL for responses):
//
//   - accessibility_requirements and accessible_topology need
//     VOLUME_ACCESSIBILITY_CONSTRAINTS, those of snapshots
//     SNAPSHOT_ACCESSIBILITY_CONSTRAINTS; a single topology without segments,
//     or a requirement of such ones only, counts as not set;
//   - mutable_parameters need MODIFY_VOLUME, a volume_content_source
//     CREATE_DELETE_SNAPSHOT or CLONE_VOLUME;
//   - publish_context needs PUBLISH_UNPUBLISH_VOLUME, readonly of a
//     ControllerPublishVolumeRequest PUBLISH_READONLY;
//   - volume_mount_group needs VOLUME_MOUNT_GROUP, and the access modes
//     SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER need
//     SINGLE_NODE_MULTI_WRITER of the service that is called, except in a
//     ValidateVolumeCapabilitiesRequest, which asks whether they are supported;
//   - status of an entry of ListVolumesResponse is required with
//     LIST_VOLUMES_PUBLISHED_NODES, and staging_target_path, as with
//     [WithStageUnstageVolume], with STAGE_UNSTAGE_VOLUME.
//
// Fields that depend on a service of another process, whose list is nil, pass;
// c.Plugin is the same in every process and has to be set. csiserver passes this option
// with the capabilities that the driver reports.
func WithCapabilities(c Capabilities) Option {
	present, absent := c.split()
	return option(func(c config) config {
		c.present |= present
		c.absent = absent
		return c
	})
}

// WithStageUnstageVolume is [WithCapabilities] for STAGE_UNSTAGE_VOLUME only, for a caller
// that does not know the other capabilities of the plugin: WithCapabilities includes it.
// A NodePublishVolumeRequest then needs a staging_target_path; without one the code is
// FAILED_PRECONDITION, unless another field is invalid too.
func WithStageUnstageVolume() Option {
	return option(func(c config) config { c.present |= stageUnstage; return c })
}

// WithAlphaRejected rejects what CSI v1.13 declares alpha: fields and enum values with
// INVALID_ARGUMENT, requests of alpha calls with UNIMPLEMENTED.
func WithAlphaRejected() Option {
	return option(func(c config) config { c.refuseAlpha = true; return c })
}

// WithUnknownValuesAllowed accepts enum values that CSI v1.13 does not declare, and oneofs
// without a known field, as a container orchestrator has to in the
// responses of a plugin with a later version of CSI.
func WithUnknownValuesAllowed() Option {
	return option(func(c config) config { c.allowUnknown = true; return c })
}

// WithCSISanity accepts those requests which csi-sanity v5.6.0
// sends although the specification forbids them, because it expects the driver's
// response and not INVALID_ARGUMENT. It combines
// [WithRelativeVolumePathAllowed], [WithEmptyMutableParametersAllowed] and
// [WithEmptySnapshotIDsAllowed].
func WithCSISanity() Option {
	return option(func(c config) config {
		c.relativeVolumePath = true
		c.emptyMutableParameters = true
		c.emptySnapshotIDs = true
		return c
	})
}

// WithRelativeVolumePathAllowed accepts a relative volume_path in
// NodeGetVolumeStatsRequest and NodeExpandVolumeRequest. csi-sanity sends one
// and expects NOT_FOUND.
func WithRelativeVolumePathAllowed() Option {
	return option(func(c config) config { c.relativeVolumePath = true; return c })
}

// WithEmptyMutableParametersAllowed accepts a ControllerModifyVolumeRequest without
// mutable_parameters. csi-sanity sends one unless it is configured with parameters.
func WithEmptyMutableParametersAllowed() Option {
	return option(func(c config) config { c.emptyMutableParameters = true; return c })
}

// WithEmptySnapshotIDsAllowed accepts a DeleteVolumeGroupSnapshotRequest and a
// GetVolumeGroupSnapshotRequest without snapshot_ids. csi-sanity sends such requests.
func WithEmptySnapshotIDsAllowed() Option {
	return option(func(c config) config { c.emptySnapshotIDs = true; return c })
}

// WithInlineVolumesAllowed accepts a NodePublishVolumeRequest without staging_target_path
// for an inline ephemeral volume, even if the plugin reports STAGE_UNSTAGE_VOLUME: Kubernetes
// does not stage such a volume. It needs "Ephemeral" in the volumeLifecycleModes of the
// CSIDriver, and podInfoOnMount, for which kubelet marks the request by
// csi.storage.k8s.io/ephemeral in the volume_context.
func WithInlineVolumesAllowed() Option {
	return option(func(c config) config { c.inlineVolumes = true; return c })
}

// WithLargeSecretsAllowed accepts secrets of more than the 4 KiB that the specification
// allows for a map: Kubernetes passes a Secret as a whole, of up to 1 MiB, and of those that
// hold certificates many are larger.
func WithLargeSecretsAllowed() Option {
	return option(func(c config) config { c.largeSecrets = true; return c })
}
