package csispec

// An Option changes how [Validate] judges a message.
type Option interface{ apply(config) config }

// config goes by value, so that it stays off the heap.
type config struct {
	// present and absent are what the plugin is known to have and to lack.
	present, absent        features
	relativeVolumePath     bool
	emptyMutableParameters bool
	emptySnapshotIDs       bool
	allowUnknown           bool
	refuseAlpha            bool
}

type option func(config) config

func (o option) apply(c config) config { return o(c) }

// WithCapabilities judges messages by what the plugin can do, with the rule
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
//     SINGLE_NODE_MULTI_WRITER of the service that is called, but in a
//     ValidateVolumeCapabilitiesRequest, which asks just that;
//   - status of an entry of ListVolumesResponse is required with
//     LIST_VOLUMES_PUBLISHED_NODES, and staging_target_path as by
//     [StageUnstage] with STAGE_UNSTAGE_VOLUME.
//
// What depends on a service of another process, as told by a nil list, passes;
// c.Plugin is the same in every process and has to be given.
func WithCapabilities(c Capabilities) Option {
	present, absent := c.split()
	return option(func(c config) config {
		c.present |= present
		c.absent = absent
		return c
	})
}

// StageUnstage tells that the node plugin has the capability
// STAGE_UNSTAGE_VOLUME. A NodePublishVolumeRequest then needs a
// staging_target_path; one without is answered FAILED_PRECONDITION, but only
// if nothing else is wrong with it.
func StageUnstage() Option {
	return option(func(c config) config { c.present |= stageUnstage; return c })
}

// RefuseAlpha refuses what CSI v1.13 calls alpha: fields and enum values with
// INVALID_ARGUMENT, requests of alpha calls with UNIMPLEMENTED.
func RefuseAlpha() Option {
	return option(func(c config) config { c.refuseAlpha = true; return c })
}

// AllowUnknown lets enum values pass that CSI v1.13 does not declare, and oneofs
// without an arm that it knows, as a container orchestrator has to when it reads
// the answers of a plugin that is ahead of it.
func AllowUnknown() Option {
	return option(func(c config) config { c.allowUnknown = true; return c })
}

// CSISanity lets those requests pass to the driver which csi-sanity v5.6.0
// sends although the specification forbids them, because it wants the driver's
// answer and not INVALID_ARGUMENT. It is the sum of
// [AllowRelativeVolumePath], [AllowEmptyMutableParameters] and
// [AllowEmptySnapshotIDs].
func CSISanity() Option {
	return option(func(c config) config {
		c.relativeVolumePath = true
		c.emptyMutableParameters = true
		c.emptySnapshotIDs = true
		return c
	})
}

// AllowRelativeVolumePath lets a relative volume_path pass in
// NodeGetVolumeStatsRequest and NodeExpandVolumeRequest. csi-sanity sends one
// and wants NOT_FOUND.
func AllowRelativeVolumePath() Option {
	return option(func(c config) config { c.relativeVolumePath = true; return c })
}

// AllowEmptyMutableParameters lets a ControllerModifyVolumeRequest pass that
// modifies nothing. csi-sanity sends one unless it is given parameters.
func AllowEmptyMutableParameters() Option {
	return option(func(c config) config { c.emptyMutableParameters = true; return c })
}

// AllowEmptySnapshotIDs lets a DeleteVolumeGroupSnapshotRequest and a
// GetVolumeGroupSnapshotRequest pass without their snapshot_ids. csi-sanity
// sends them so.
func AllowEmptySnapshotIDs() Option {
	return option(func(c config) config { c.emptySnapshotIDs = true; return c })
}
