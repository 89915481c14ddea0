// Package nfsd provides tests of NFS clients with a real server to break: the kernel's, in
// its own network namespace, so that it can be stopped, disconnected, or lose its file
// system while the machine's own network and NFS stay as they are.
//
//	s := nfsd.Start(t)
//	source := s.Export("share", "rw,no_root_squash")
//	// mount source, then
//	s.Drop() // and see what hangs
//
// # When not to use it
//
// Server and client share one kernel: this shows what the client does when it is left
// alone, not how fast it is, nor what another maker's server answers. A client that
// writes more than the memory holds may wait for itself.
//
// # Privileges
//
// Root of the initial user namespace, modules nfsd, nfs and veth, and the programs of
// Debian's nfs-kernel-server, nfs-common, rpcbind, iproute2, iptables and e2fsprogs. A
// test that lacks one is skipped, by the gates of package gate.
package nfsd
