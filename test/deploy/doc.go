// Package deploy checks the manifests of the example drivers: it renders each overlay
// with kustomize, decodes each object strictly, validates it with the API server's own
// code, starts the driver with the arguments that its containers have, and checks
// for the mistakes that drivers in production have made. The objects of the Helm charts are
// compared with those of the overlays.
//
// A driver is a row in [drivers]; a mistake is a [rule].
package deploy
