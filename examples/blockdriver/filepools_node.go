package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/csikit/csikit/blocking"
)

// nodePools is what the node plugin has of the pools.
type nodePools struct {
	*poolSet[*pool]
	reserve float64 // percent below which a pool is full
}

var _ volumes = nodePools{}

func newNodePools(cfg config, work *blocking.Group, log *slog.Logger) nodePools {
	return nodePools{&poolSet[*pool]{configs: cfg.pools.list, work: work, log: log}, cfg.reserve}
}

// openAll opens the pools, has each thawed, and tells it that the node is there. What is
// not there yet is opened and thawed when it is.
func (n nodePools) openAll(ctx context.Context, cfg config, thaw func(*pool, *slog.Logger) error) error {
	n.open = func(c poolConfig) (*pool, error) {
		p, err := openPool(c.Dir)
		if err != nil {
			return nil, err
		}
		p.name, p.segments = c.Name, c.Segments
		if err := p.lockNode(cfg.nodeID, n.log); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		if err := thaw(p, n.log); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		if err := p.RegisterNode(cfg.nodeID, cfg.maxVolumes, cfg.topology); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		return p, nil
	}
	if err := n.start(ctx); err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}

// nodeHolder is the content of nodes/<node>.lock.
type nodeHolder struct {
	Host string `json:"host"`
	Boot string `json:"boot"` // the running kernel
}

// lockNode makes sure that no other machine is this node: two that had the same ID
// would both be allowed to mount a volume, and destroy it. The lock dies with its
// holder; one that is on this machine, such as a predecessor of which a thread still
// hangs in the kernel, uses the same loop devices and does no harm.
func (p *pool) lockNode(nodeID string, log *slog.Logger) error {
	if !nodeIDPattern.MatchString(nodeID) {
		return nil // RegisterNode says what is wrong
	}
	f, err := p.nodes.OpenFile(nodeID+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fail("lock node", nodeID, "%w", err)
	}
	self := thisMachine()
	err = lockFile(f)
	if errors.Is(err, errBusy) {
		var holder nodeHolder
		data, readErr := io.ReadAll(f)
		if readErr = errors.Join(readErr, json.Unmarshal(data, &holder), f.Close()); readErr == nil && holder.Boot == self.Boot {
			log.Warn("another process on this machine is the same node", "node_id", nodeID)
			return nil
		}
		return fail("lock node", nodeID, "host %q has the same node ID and runs: give one of them another -node-id", holder.Host)
	}
	if err == nil {
		var data []byte
		if data, err = json.Marshal(self); err == nil {
			_, err = f.WriteAt(data, 0)
			err = errors.Join(err, f.Truncate(int64(len(data))))
		}
	}
	if err != nil {
		return fail("lock node", nodeID, "%w", errors.Join(err, f.Close()))
	}
	p.nodeLock = f
	return nil
}

func thisMachine() nodeHolder {
	host, _ := os.Hostname()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte(host)
	}
	return nodeHolder{host, strings.TrimSpace(string(boot))}
}

func (n nodePools) Close() error {
	var errs []error
	for _, p := range n.here() {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// volume returns the pool that has the volume.
func (n nodePools) volume(ctx context.Context, op, id string) (*pool, error) {
	if !volumeIDPattern.MatchString(id) {
		return nil, fail(op, id, "%w", errNotFound)
	}
	return n.holder(ctx, op, id, func(p *pool) bool {
		_, err := p.volumes.Lstat(id + extMetadata)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

func (n nodePools) FindVolume(ctx context.Context, id string) (v Volume, image string, err error) {
	p, err := n.volume(ctx, "read volume", id)
	if err != nil {
		return v, "", err
	}
	if v, err = p.ReadVolume(id); err != nil {
		return v, "", err
	}
	image, err = p.ImagePath(id)
	return v, image, err
}

func (n nodePools) CheckImage(ctx context.Context, v Volume) error {
	p, err := n.volume(ctx, "check image of volume", v.ID)
	if err != nil {
		return err
	}
	return p.CheckImage(v)
}

func (n nodePools) ImagePaths(id string) (images []string) {
	for _, c := range n.configs {
		if image, err := (&pool{dir: c.Dir}).ImagePath(id); err == nil {
			images = append(images, image)
		}
	}
	return images
}
