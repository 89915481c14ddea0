package csispec

import "github.com/container-storage-interface/spec/lib/go/csi"

// ControllerCapabilities returns the list for a ControllerGetCapabilitiesResponse, in the
// order of types.
func ControllerCapabilities(types ...csi.ControllerServiceCapability_RPC_Type) []*csi.ControllerServiceCapability {
	return mapAll(types, func(t csi.ControllerServiceCapability_RPC_Type) *csi.ControllerServiceCapability {
		return &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
		}}
	})
}

// GroupControllerCapabilities returns the list for a
// GroupControllerGetCapabilitiesResponse, in the order of types.
func GroupControllerCapabilities(types ...csi.GroupControllerServiceCapability_RPC_Type) []*csi.GroupControllerServiceCapability {
	return mapAll(types, func(t csi.GroupControllerServiceCapability_RPC_Type) *csi.GroupControllerServiceCapability {
		return &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: t},
		}}
	})
}

// NodeCapabilities returns the list for a NodeGetCapabilitiesResponse, in the order of
// types.
func NodeCapabilities(types ...csi.NodeServiceCapability_RPC_Type) []*csi.NodeServiceCapability {
	return mapAll(types, func(t csi.NodeServiceCapability_RPC_Type) *csi.NodeServiceCapability {
		return &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: t},
		}}
	})
}

func mapAll[T, M any](types []T, message func(T) M) []M {
	list := make([]M, 0, len(types))
	for _, t := range types {
		list = append(list, message(t))
	}
	return list
}
