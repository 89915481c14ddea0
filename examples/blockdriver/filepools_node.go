package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

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

// openAll opens the pools, has each thawed, and registers the node in it. What is
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

// lockNode ensures that no other machine has this node ID: two machines with one ID
// would both be allowed to mount a volume, and destroy it. The kernel drops the lock
// with its holder. A holder on this machine, such as a predecessor that has not ended yet
// or has a thread blocked in the kernel, uses the same loop devices and does no harm: then
// the lock is taken when it is free.
func (p *pool) lockNode(nodeID string, log *slog.Logger) error {
	if !nodeIDPattern.MatchString(nodeID) {
		return nil // RegisterNode returns the error
	}
	l := &nodeLock{pool: p, nodeID: nodeID, taken: make(chan struct{})}
	err := p.whenFull(func() (err error) {
		l.file, err = openToLock(p.nodes, nodeID+".lock", os.O_CREATE)
		return err
	})
	if err != nil {
		return fail("lock node", nodeID, "%w", err)
	}
	switch err = l.try(); {
	case errors.Is(err, errBusy):
		log.Warn("another process on this machine has the same node ID", "node_id", nodeID)
		waiting, stop := context.WithCancel(context.Background())
		l.stop = stop
		l.wait.Go(func() { l.await(waiting, log) })
	case err != nil:
		return fail("lock node", nodeID, "%w", errors.Join(err, l.file.Close()))
	}
	p.nodeLock = l
	return nil
}

// nodeLock is the lock on nodes/<node>.lock, or the wait for it.
type nodeLock struct {
	pool   *pool
	nodeID string
	file   *os.File
	stop   context.CancelFunc // nil: no wait
	wait   sync.WaitGroup
	taken  chan struct{} // closed when a wait has ended with the lock

	mu    sync.Mutex
	other error // another machine has the lock
}

const nodeLockLook = 500 * time.Millisecond

// try returns errBusy when a process on this machine has the lock.
func (l *nodeLock) try() error {
	self := thisMachine()
	err := lockFile(l.file)
	if errors.Is(err, errBusy) {
		var holder nodeHolder
		data, readErr := l.pool.nodes.ReadFile(l.nodeID + ".lock")
		if readErr == nil {
			readErr = json.Unmarshal(data, &holder)
		}
		if readErr == nil && holder.Boot == self.Boot {
			return errBusy
		}
		return fmt.Errorf("%w: host %q has the same node ID and runs: set another -node-id for one of them", errUnreachable, holder.Host)
	}
	if err != nil {
		return err
	}
	data, err := json.Marshal(self)
	if err != nil {
		return err
	}
	if has, err := l.pool.nodes.ReadFile(l.nodeID + ".lock"); err == nil && bytes.Equal(has, data) {
		return nil
	}
	return l.pool.whenFull(func() error {
		_, err := l.file.WriteAt(data, 0)
		return errors.Join(err, l.file.Truncate(int64(len(data))))
	})
}

// await tries until it has the lock, or until ctx ends. While another machine has it,
// which was faster, nothing is staged here.
func (l *nodeLock) await(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(nodeLockLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := l.try()
		other := err
		if errors.Is(err, errBusy) {
			other = nil
		}
		l.mu.Lock()
		if other != nil && l.other == nil {
			log.Error("cannot lock the node record: nothing is staged", "node_id", l.nodeID, "error", other)
		}
		l.other = other
		l.mu.Unlock()
		if err == nil {
			log.Info("the other process with this node ID has ended", "node_id", l.nodeID)
			close(l.taken)
			return
		}
	}
}

// check returns why this process must not be the node. A nil lock is a controller's.
func (l *nodeLock) check() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.other
}

func (l *nodeLock) Close() error {
	if l.stop != nil {
		l.stop()
		l.wait.Wait()
	}
	return l.file.Close()
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

// volume returns the pool that has the volume. One that does not answer costs the volumes
// of the others nothing but the wait: it is returned, with why it is not known to have the
// volume, if no other one has.
func (n nodePools) volume(ctx context.Context, op, id string) (*pool, error) {
	if !volumeIDPattern.MatchString(id) {
		return nil, fail(op, id, "%w", errNotFound)
	}
	silent := n.silent(ctx)
	found, err := n.holder(ctx, op, id, func(p *pool) bool {
		if silent[p.at()] != nil {
			return false
		}
		_, err := p.volumes.Lstat(id + extMetadata)
		return !errors.Is(err, fs.ErrNotExist)
	})
	if errors.Is(err, errNotFound) {
		for _, p := range n.here() {
			if why := silent[p.at()]; why != nil {
				return p, why
			}
		}
	}
	return found, err
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
