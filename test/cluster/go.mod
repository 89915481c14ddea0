// A Kubernetes cluster on one machine for tests of the manifests of the examples, as a module
// of its own: nothing of it reaches importers of csikit. The programs of the cluster are
// built from the modules in build/, whose requirements are not those of this one.
module github.com/csikit/csikit/test/cluster

go 1.26.0

require (
	github.com/container-storage-interface/spec v1.13.0
	github.com/csikit/csikit v0.0.0
	github.com/csikit/csikit/hack/images v0.0.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
)

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/csikit/csikit => ../..
	github.com/csikit/csikit/hack/images => ../../hack/images
)
