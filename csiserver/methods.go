package csiserver

import (
	"strings"

	"google.golang.org/grpc/codes"
)

// isCSI tells whether a method belongs to a service of CSI. Others on the same
// server, such as grpc.health, have rules of their own.
func isCSI(fullMethod string) bool { return strings.HasPrefix(fullMethod, "/csi.v1.") }

// shortName cuts the service off a full method name.
func shortName(fullMethod string) string {
	return fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]
}

// mutating tells whether a call may have changed something when it fails. It is
// an allow-list of names, as CSI names no two methods alike.
func mutating(fullMethod string) bool {
	switch shortName(fullMethod) {
	case "CreateVolume", "DeleteVolume",
		"ControllerPublishVolume", "ControllerUnpublishVolume",
		"ControllerExpandVolume", "ControllerModifyVolume",
		"CreateSnapshot", "DeleteSnapshot",
		"CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot",
		"NodeStageVolume", "NodeUnstageVolume",
		"NodePublishVolume", "NodeUnpublishVolume",
		"NodeExpandVolume":
		return true
	}
	return false
}

// outcomeUnknown is the code of a call of which nobody knows how far it got.
func outcomeUnknown(fullMethod string) codes.Code {
	if mutating(fullMethod) {
		return codes.Unavailable // kubelet takes INTERNAL for: nothing is left behind
	}
	return codes.Internal
}
