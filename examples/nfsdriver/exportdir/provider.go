// Package exportdir stores a volume as a directory on an NFS export that the controller
// mounts for its own work, and snapshots and clones as copies: it needs nothing on the server
// but the export.
package exportdir

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/volumelock"
)

// Provider implements storage.Provider.
type Provider struct {
	known    []share.Export
	inline   []share.Export
	mountDir string

	backend *backend
	mounts  *nfsMounts
	client  *share.Client

	// Without a server, tests set the file system type of mounts, and a directory in which
	// the shares are.
	fsType string
	local  string
}

// New returns the storage, whose settings are flags.
func New() *Provider { return &Provider{fsType: "nfs"} }

// Flags implements storage.Provider.
func (p *Provider) Flags(fs *flag.FlagSet) {
	fs.Func("exports", "the only `exports` that volumes may be on, as in \"nas:/srv/a nas:/srv/b,port=2050\"; enables the list RPCs, and interrupted deletions resume at start (default: any export, no list RPCs)", func(s string) (err error) {
		p.known, err = share.ParseExports(s)
		return err
	})
	fs.Func("inline-exports", "the `exports` that inline volumes of pods may name, in the form of -exports: the author of a pod may mount all of such an export (default: none)", func(s string) (err error) {
		p.inline, err = share.ParseExports(s)
		return err
	})
	fs.StringVar(&p.mountDir, "mount-dir", "/run/nfsdriver", "`directory` where the controller mounts exports for its own work; no other process may use it")
}

// Check implements storage.Provider.
func (p *Provider) Check() error {
	if !filepath.IsAbs(p.mountDir) {
		return fmt.Errorf("-mount-dir %q: want an absolute path", p.mountDir)
	}
	return nil
}

// Type implements storage.Provider: only known exports can be listed.
func (p *Provider) Type() storage.Backend { return p.typed(nil) }

func (p *Provider) typed(b *backend) storage.Backend {
	if p.known != nil {
		return &lister{b}
	}
	return b
}

// LockPolicy implements storage.Locker.
func (p *Provider) LockPolicy(fullMethod string, req any) []volumelock.Request {
	return share.LockPolicy(fullMethod, req)
}

// OpenBackend implements storage.Provider.
func (p *Provider) OpenBackend(ctx context.Context, env storage.Env) (storage.Backend, error) {
	var mounts mounter = localDirs(p.local)
	p.findClient(env)
	if p.local == "" {
		ops, err := nodeops.New(nodeops.Config{
			Logger: env.Logger, MeterProvider: env.Meters,
			Unmount:        nodeops.UnmountWait,       // never by force: that aborts requests of pods that have the same export mounted
			HelperTimeout:  env.ServerTimeout * 2 / 3, // the helper is killed before the call to the server times out
			UnmountTimeout: env.ServerTimeout / 3,
			// Calls for one server must not keep those for others waiting.
			Blocking: &blocking.Group{Limit: 1000},
		})
		if err != nil {
			return nil, err
		}
		if p.mounts, err = newNFSMounts(ctx, p.mountDir, p.fsType, env.ServerTimeout, ops, env.Logger); err != nil {
			return nil, err
		}
		mounts = p.mounts
	}
	exports := newExports(mounts, time.Minute, env.Logger)
	exports.lockTimeout = env.ServerTimeout * 2 / 3 // before the call times out, because the server does respond
	p.backend = newBackend(env.Servers, exports, p.known, env.Logger)
	if p.fsType != "nfs" {
		p.backend.server = withoutProbe
	}
	p.backend.Recover()
	return p.typed(p.backend), nil
}

// OpenMounts implements storage.Provider.
func (p *Provider) OpenMounts(_ context.Context, env storage.Env) (storage.Mounts, error) {
	p.findClient(env)
	return &share.Mounts{Known: p.known, Inline: p.inline, FSType: p.fsType}, nil
}

// findClient asks the kernel once whether it can mount what the driver will: the controller
// mounts exports too.
func (p *Provider) findClient(env storage.Env) {
	if p.client == nil && p.local == "" {
		p.client = share.NewClient(p.fsType, env.Logger)
	}
}

// DebugSections implements storage.Debugger. Without a client for the file system /readyz
// fails, and /healthz and Probe do not: a restart would not help.
func (p *Provider) DebugSections() (sections []csiserver.HealthSection) {
	if p.client != nil {
		sections = append(sections, csiserver.ReadyCheck(p.fsType, p.client.Check))
	}
	if p.backend != nil {
		sections = append(sections, csiserver.DebugTable("exports", p.backend.exports.Snapshot))
	}
	return sections
}

// Close implements storage.Provider.
func (p *Provider) Close() error {
	if p.backend != nil {
		p.backend.Close()
		p.backend.exports.Close()
	}
	if p.mounts != nil {
		return p.mounts.Close()
	}
	return nil
}
