package csiserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
)

// sunPathMax is the longest path that fits into a socket address with the
// terminating zero: 107 bytes on Linux.
const sunPathMax = len(syscall.RawSockaddrUnix{}.Path) - 1

// parseEndpoint splits an endpoint into what package net calls network and
// address.
func parseEndpoint(endpoint string) (network, address string, err error) {
	switch {
	case endpoint == "":
		return "", "", errors.New("the endpoint is empty: set one such as unix:///csi/csi.sock")
	case strings.HasPrefix(endpoint, "tcp://"):
		return parseTCP(strings.TrimPrefix(endpoint, "tcp://"))
	case strings.HasPrefix(endpoint, "unix://"):
		path := strings.TrimPrefix(endpoint, "unix://")
		if !filepath.IsAbs(path) {
			return "", "", fmt.Errorf("the socket needs an absolute path, with three slashes: unix:///%s", path)
		}
		return parseUnix(path)
	case strings.HasPrefix(endpoint, "unix:"):
		return parseUnix(strings.TrimPrefix(endpoint, "unix:"))
	default:
		return parseUnix(endpoint)
	}
}

func parseUnix(path string) (network, address string, err error) {
	if !filepath.IsAbs(path) {
		return "", "", errors.New("not an endpoint: use unix:///path/csi.sock or an absolute path")
	}
	// Cleaning would change where the path leads: ".." behind a symbolic link.
	switch filepath.Base(path[len(socketDir(path)):]) {
	case ".", "..":
		return "", "", errors.New("the path names a directory: add the name of the socket, as in csi.sock")
	}
	if strings.ContainsRune(path, 0) {
		return "", "", errors.New("the path contains a zero byte")
	}
	if len(path) > sunPathMax {
		return "", "", fmt.Errorf("the path is %d bytes long and a socket address holds %d: use a shorter one", len(path), sunPathMax)
	}
	return "unix", path, nil
}

// socketDir is the directory of path, as the kernel finds it.
func socketDir(path string) string {
	dir, _ := filepath.Split(path)
	return dir
}

// parseTCP accepts only the loopback: CSI has no authentication, and any client of the
// endpoint can mount file systems on this node.
func parseTCP(hostport string) (network, address string, err error) {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return "", "", err
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return "", "", fmt.Errorf("tcp is for tests and needs a loopback address, not %q: use a unix socket", host)
	}
	return "tcp", hostport, nil
}
