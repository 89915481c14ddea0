package driver

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// ability is what an optional file of this package adds to the driver: delete the file, and
// the driver does not have it.
type ability struct {
	// of reports whether the storage has the ability. It is asked about the Backend, and for
	// what a node does about the Devices.
	of         func(any) bool
	controller []csi.ControllerServiceCapability_RPC_Type
	node       []csi.NodeServiceCapability_RPC_Type
	// service adds the CSI service of the ability, if it has one of its own, which the plugin
	// reports as capability.
	service    func(storage.Backend) csiserver.Option
	capability csi.PluginCapability_Service_Type
}

// abilities is filled by the init functions of the optional files.
var abilities []ability

// implements is an ability's of: the type implements the interface T.
func implements[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

// servicesOf returns what serves the abilities of b, and the plugin capabilities that these
// services have: every process of a plugin has to report the same.
func servicesOf(b storage.Backend) (services []csiserver.Option, capabilities []csi.PluginCapability_Service_Type) {
	capabilities = append(capabilities, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	for _, a := range abilities {
		if a.service != nil && a.of(b) {
			services, capabilities = append(services, a.service(b)), append(capabilities, a.capability)
		}
	}
	return services, capabilities
}
