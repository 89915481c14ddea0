// Package csikit is the root of a set of importable building blocks for
// Container Storage Interface (CSI) drivers. The root package itself holds no
// code; import the block you need:
//
//	csiserver   a gRPC server on a unix socket: logging, metrics, recovery, validation, graceful stop, Identity and health built in
//	csispec     the rules of CSI v1.13: Validate a message, Redact it for a log
//	volumelock  locks with the keys and modes that each CSI call needs, as a table and as a gRPC interceptor
//	topology    segments, and selecting a topology by the specification's rules for requisite and preferred
//	nodeops     stage, publish, unpublish, unstage and expand a volume on a Linux node, and its statistics
//	nodeops/fastmount  the mount.Interface of k8s.io/mount-utils by system calls, for drivers that use it today
//	registration  registers a driver with kubelet without node-driver-registrar, and keeps it registered
//	nodelifecycle  removes a start-up taint once the driver is registered, and waits for the detach of a drained node's volumes
//	loopdev     loop devices, identified by the inode of their backing file
//	luks        encrypts volumes with LUKS2: format, open, close, grow, change of the passphrase
//	csierr      kinds of failure and the gRPC code that each becomes
//	blocking    calls that may block in the kernel: bounded in number, single-flight, listed until they return
//	breaker     circuit breakers for remote servers: one that does not respond delays no call for another
//	csitest     conformance and stress tests for a driver in any language; cmd/csicheck runs them from the shell
//	csitest/gate, csitest/crash, csitest/nfsd  helpers for a driver's tests: private mount namespaces, kills at the n-th system call, an NFS server that fails on demand
//
// No block takes over main, reads the environment or logs globally, and none
// imports another one, except that csiserver and csitest use csispec, that csiserver,
// nodeops, luks and breaker use csierr, and that nodeops, luks and breaker use blocking.
// examples/blockdriver and examples/nfsdriver are complete drivers assembled from them;
// examples/minimal is a small one, to be read first.
package csikit
