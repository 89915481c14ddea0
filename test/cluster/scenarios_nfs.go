//go:build linux

package main

import (
	"errors"
	"os"
	"strings"
	"time"
)

func nfsRegistered(s *space) error {
	return s.poll(s.ctx, time.Minute, "CSINode", func() error {
		out, err := s.kubectl("get", "csinode", "node1", "-o", "jsonpath={.spec.drivers[*].name}")
		if err == nil && !strings.Contains(out, "nfs.csikit.dev") {
			err = errors.New("has " + out)
		}
		return err
	})
}

// nfsUnreachable: the server of the class as shipped does not exist.
func nfsUnreachable(s *space) error {
	if err := s.apply(claim("data", "nfsdriver", "64Mi")); err != nil {
		return err
	}
	return s.event("data", "ProvisioningFailed", "nas.example.com")
}

func nfsVolumes(*space) error {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), "nfs4") {
		return errNotTested("the kernel has no NFS client; make test-vm tests them without Kubernetes")
	}
	return errNotTested("no NFS server is started here; make test-vm tests them without Kubernetes")
}
