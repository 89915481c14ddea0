module github.com/csikit/csikit/nodeops/fastmount

go 1.24.0

require (
	golang.org/x/sys v0.20.0
	k8s.io/mount-utils v0.28.0
	k8s.io/utils v0.0.0-20230406110748-d93618cff8a2
)

require (
	github.com/go-logr/logr v1.2.4 // indirect
	github.com/moby/sys/mountinfo v0.6.2 // indirect
	k8s.io/klog/v2 v2.100.1 // indirect
)
