module github.com/csikit/csikit/test/fastmount

go 1.26.0

require (
	github.com/csikit/csikit v0.0.0
	github.com/csikit/csikit/nodeops/fastmount v0.0.0
	golang.org/x/sys v0.49.0
	k8s.io/mount-utils v0.37.2
	k8s.io/utils v0.0.0-20260707023825-cf1189d6abe3
)

require (
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/moby/sys/mountinfo v0.7.2 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
)

replace (
	github.com/csikit/csikit => ../..
	github.com/csikit/csikit/nodeops/fastmount => ../../nodeops/fastmount
)
