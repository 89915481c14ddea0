// Package csikit is the root of a set of importable building blocks for
// Container Storage Interface (CSI) drivers. The root package itself holds no
// code; import the block you need:
//
//	csiserver   a gRPC server on a unix socket: logging, metrics, recovery, validation, graceful stop, Identity and health built in
//	csispec     the rules of CSI v1.13: Validate a message, Redact it for a log
//	volumelock  locks shaped like CSI, as a table and as a gRPC interceptor
//	topology    segments, and choosing a place as the specification words requisite and preferred
//	nodeops     stage, publish, unpublish, unstage, expand and measure a volume on a Linux node
//	nodeops/fastmount  the mount.Interface of k8s.io/mount-utils by system calls, for drivers that use it today
//	registration  registers a driver with kubelet, in the place of the sidecar, and keeps it registered
//	loopdev     loop devices found again by their backing file
//	blocking    calls that the kernel may block: bounded, single-flight, never lost
//	csitest     finds what is wrong with a driver, in any language; cmd/csicheck does it from the shell
//	csitest/gate, csitest/crash, csitest/nfsd  what a driver's tests need: private mount namespaces, kills at the n-th system call, an NFS server to break
//
// No block takes over main, reads the environment or logs globally, and none
// needs another one, but for csiserver and csitest using csispec, and nodeops using
// blocking. examples/blockdriver and examples/nfsdriver are complete drivers assembled
// from them.
package csikit
