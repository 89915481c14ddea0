// Package kubelet holds tests of package registration against the code of kubelet:
// its plugin manager, which watches for sockets, and its CSI plugin, which calls
// NodeGetInfo and writes CSINode and the labels of the node. Only the API server is
// a fake.
package kubelet
