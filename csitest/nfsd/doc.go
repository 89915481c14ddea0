// Package nfsd starts a real NFS server for tests of NFS clients: the kernel's, in its
// own network namespace, so that it can be stopped, disconnected, or lose its file
// system without affecting the machine's own network and NFS.
//
//	s := nfsd.Start(t)
//	source := s.Export("share", "rw,no_root_squash")
//	// mount source, then
//	s.Drop() // and test what blocks
//
// # When not to use it
//
// Server and client share one kernel: this tests how the client handles failures of the
// server, not its performance, nor the responses of other NFS servers. A client that
// writes more than fits into memory may deadlock with the server.
//
// # Privileges
//
// Root of the initial user namespace, modules nfsd, nfs and veth, and the programs of
// Debian's nfs-kernel-server, nfs-common, rpcbind, iproute2, iptables and e2fsprogs. A
// test that lacks one is skipped, by the gates of package gate.
package nfsd
