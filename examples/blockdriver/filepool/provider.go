// Package filepool is a storage for the driver that needs no storage system: sparse image
// files in directories (pools), attached as loop devices. It serves tests, demonstrations
// and small clusters, and shows all that package storage has an interface for. To replace
// it, implement that package for your storage, name it in main, and delete this directory.
//
// The controller needs no privileges. The node needs Linux and CAP_SYS_ADMIN, for the loop
// devices. Controller and nodes see the same pools; only one controller at a time works on
// a pool, and hands it over when another one is asked.
package filepool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

// Provider is the storage.Provider of pools. Its settings are the flags -pool, -overcommit
// and -reserve, its commands init and fsck.
type Provider struct {
	pools   poolFlags
	limits  policy
	backend *filePools
	devices *devices
}

var (
	_ storage.Provider  = (*Provider)(nil)
	_ storage.Commander = (*Provider)(nil)
)

// New returns a provider without settings.
func New() *Provider { return &Provider{} }

// Flags adds the settings of the pools.
func (p *Provider) Flags(flags *flag.FlagSet) {
	flags.Var(&p.pools, "pool", "`directory` of the volumes (required), which the command init has made a pool; or name=directory,segment=value,...; repeat it, or part them by semicolons, for several")
	flags.Float64Var(&p.limits.overcommit, "overcommit", 10, "how many `times` its own size all volumes and snapshots of a pool may have together; 0: no limit")
	flags.Float64Var(&p.limits.reserve, "reserve", 5, "`percent` of a pool that stay free: nothing new is made of it, so that the volumes there can grow into it")
}

// Check returns what is wrong with the settings.
func (p *Provider) Check() error {
	if len(p.pools.texts) == 0 {
		return errNoPool
	}
	if err := p.pools.parse(); err != nil {
		return err
	}
	if err := p.checkTopology(nil); err != nil {
		return err
	}
	if !(p.limits.overcommit >= 0) {
		return fmt.Errorf("-overcommit %v: want 0 or more", p.limits.overcommit)
	}
	if !(p.limits.reserve >= 0 && p.limits.reserve <= 100) {
		return fmt.Errorf("-reserve %v: want 0 to 100", p.limits.reserve)
	}
	return nil
}

var errNoPool = fmt.Errorf("-pool (or %s) is required, for instance -pool /var/lib/blockdriver", envPool)

// envPool is the driver's variable for -pool, which the commands use as well.
const envPool = "CSIKIT_POOL"

func (p *Provider) checkTopology(node topology.Segments) error {
	segments := []topology.Segments{node}
	for _, c := range p.pools.list {
		segments = append(segments, c.Segments)
	}
	if err := topology.Validate(segments...); err != nil {
		return fmt.Errorf("-pool and -topology: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// Type returns a backend that does nothing.
func (p *Provider) Type() storage.Backend { return backend{} }

// HasTopology reports whether a pool has segments: all processes of the driver need the
// same pools.
func (p *Provider) HasTopology() bool {
	return slices.ContainsFunc(p.pools.list, func(c poolConfig) bool { return len(c.Segments) > 0 })
}

// OpenBackend opens the pools for a controller. One that another controller has, or that is
// not mounted yet, is opened when it is needed.
func (p *Provider) OpenBackend(ctx context.Context, env storage.Env) (storage.Backend, error) {
	m, err := openPools(ctx, p.pools.list, p.limits, env)
	if err != nil {
		return nil, err
	}
	p.backend = m
	return backend{m}, nil
}

// OpenDevices opens the pools for a node, and registers it there.
func (p *Provider) OpenDevices(ctx context.Context, env storage.NodeEnv) (storage.Devices, error) {
	if err := p.checkTopology(env.Topology); err != nil {
		return nil, err
	}
	d, err := openDevices(ctx, p.pools.list, p.limits.reserve, env)
	if err != nil {
		return nil, err
	}
	p.devices = d
	if p.backend != nil {
		p.backend.freezer = d
	}
	return d, nil
}

// Close releases the pools.
func (p *Provider) Close() error {
	var errs []error
	if p.devices != nil {
		errs = append(errs, p.devices.Close())
	}
	if p.backend != nil {
		errs = append(errs, p.backend.Close())
	}
	return errors.Join(errs...)
}
