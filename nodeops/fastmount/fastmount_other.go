//go:build !linux

package fastmount

import mount "k8s.io/mount-utils"

// New returns the fallback, or else what mount.New returns on this system.
func New(opts ...Option) mount.Interface {
	var c config
	for _, o := range opts {
		o.apply(&c)
	}
	if c.fallback != nil {
		return c.fallback
	}
	return mount.New("")
}
