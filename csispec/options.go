package csispec

// An Option changes how [Validate] judges a message.
type Option interface{ apply(*config) }

type config struct {
	stageUnstage           bool
	relativeVolumePath     bool
	emptyMutableParameters bool
	emptySnapshotIDs       bool
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// StageUnstage tells that the node plugin has the capability
// STAGE_UNSTAGE_VOLUME. A NodePublishVolumeRequest then needs a
// staging_target_path; one without is answered FAILED_PRECONDITION, but only
// if nothing else is wrong with it.
func StageUnstage() Option {
	return option(func(c *config) { c.stageUnstage = true })
}

// CSISanity lets those requests pass to the driver which csi-sanity v5.6.0
// sends although the specification forbids them, because it wants the driver's
// answer and not INVALID_ARGUMENT. It is the sum of
// [AllowRelativeVolumePath], [AllowEmptyMutableParameters] and
// [AllowEmptySnapshotIDs].
func CSISanity() Option {
	return option(func(c *config) {
		c.relativeVolumePath = true
		c.emptyMutableParameters = true
		c.emptySnapshotIDs = true
	})
}

// AllowRelativeVolumePath lets a relative volume_path pass in
// NodeGetVolumeStatsRequest and NodeExpandVolumeRequest. csi-sanity sends one
// and wants NOT_FOUND.
func AllowRelativeVolumePath() Option {
	return option(func(c *config) { c.relativeVolumePath = true })
}

// AllowEmptyMutableParameters lets a ControllerModifyVolumeRequest pass that
// modifies nothing. csi-sanity sends one unless it is given parameters.
func AllowEmptyMutableParameters() Option {
	return option(func(c *config) { c.emptyMutableParameters = true })
}

// AllowEmptySnapshotIDs lets a DeleteVolumeGroupSnapshotRequest and a
// GetVolumeGroupSnapshotRequest pass without their snapshot_ids. csi-sanity
// sends them so.
func AllowEmptySnapshotIDs() Option {
	return option(func(c *config) { c.emptySnapshotIDs = true })
}
