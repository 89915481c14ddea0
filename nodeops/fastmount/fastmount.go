package fastmount

import mount "k8s.io/mount-utils"

// An Option configures New.
type Option interface{ apply(*config) }

type config struct{ fallback mount.Interface }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithFallback sets the mounter for calls that need mount(8). The default is
// mount.NewWithoutSystemd(""), created at its first use. A driver that runs as a
// systemd service, not in a container, and mounts FUSE file systems wants
// mount.New(""), which starts their daemons in a scope of their own.
func WithFallback(m mount.Interface) Option {
	return optionFunc(func(c *config) { c.fallback = m })
}
