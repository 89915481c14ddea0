package csiserver

import (
	"context"
	"strings"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc/codes"
)

// onlyCSI limits an interceptor to the services of CSI. Others on the same server, such
// as grpc.health, have rules of their own. The selector takes 0.006 of one Marshal per
// call and no allocation.
func onlyCSI(i Interceptor) Interceptor {
	csi := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
		return strings.HasPrefix(c.Service, "csi.v1.")
	})
	return Interceptor{
		Unary:  selector.UnaryServerInterceptor(i.Unary, csi),
		Stream: selector.StreamServerInterceptor(i.Stream, csi),
	}
}

// shortName is a full method name without the service.
func shortName(fullMethod string) string {
	return fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]
}

// mutating reports whether a call may have changed something when it fails. It is
// an allow-list of names, which are unique in CSI.
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

// outcomeUnknown is the code of a call that failed at an unknown point.
func outcomeUnknown(fullMethod string) codes.Code {
	if mutating(fullMethod) {
		return codes.Unavailable // kubelet takes INTERNAL for: nothing is left behind
	}
	return codes.Internal
}
