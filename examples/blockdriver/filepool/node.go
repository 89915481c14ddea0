package filepool

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

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// devices is the storage.Devices of the pools. It reads the records of the volumes from the
// disk, so that a node needs no controller in its process, nor one that is up.
type devices struct {
	*poolSet[*pool]
	reserve float64 // percent below which a pool is full
	env     storage.NodeEnv
}

// openDevices opens the pools, thaws what a predecessor has left frozen in each, and registers
// the node in it. What is not there yet is opened when it is.
func openDevices(ctx context.Context, configs []poolConfig, reserve float64, env storage.NodeEnv) (*devices, error) {
	d := &devices{&poolSet[*pool]{configs: configs, work: env.Work, log: env.Logger}, reserve, env}
	d.open = d.openPool
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *devices) openPool(c poolConfig) (*pool, error) {
	p, err := openPool(c.Dir)
	if err != nil {
		return nil, err
	}
	p.name, p.segments = c.Name, c.Segments
	if err = p.lockNode(d.env.NodeID, d.log); err == nil {
		err = d.thawLeftovers(p)
	}
	if err == nil {
		err = p.RegisterNode(d.env.NodeID, d.env.MaxVolumes, d.env.Topology)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
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
		return csierr.Errorf("lock node", nodeID, "%w", err)
	}
	switch err = l.try(); {
	case errors.Is(err, csierr.Busy):
		log.Warn("another process on this machine has the same node ID", "node_id", nodeID)
		waiting, stop := context.WithCancel(context.Background())
		l.stop = stop
		l.wait.Go(func() { l.await(waiting, log) })
	case err != nil:
		return csierr.Errorf("lock node", nodeID, "%w", errors.Join(err, l.file.Close()))
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

// try returns csierr.Busy when a process on this machine has the lock.
func (l *nodeLock) try() error {
	self := thisMachine()
	err := lockFile(l.file)
	if errors.Is(err, csierr.Busy) {
		var holder nodeHolder
		data, readErr := l.pool.nodes.ReadFile(l.nodeID + ".lock")
		if readErr == nil {
			readErr = json.Unmarshal(data, &holder)
		}
		if readErr == nil && holder.Boot == self.Boot {
			return csierr.Busy
		}
		return fmt.Errorf("%w: host %q has the same node ID and runs: set another -node-id for one of them", storage.ErrNotAccessible, holder.Host)
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
		if errors.Is(err, csierr.Busy) {
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

// Close releases the pools, and with them the node ID.
func (d *devices) Close() error {
	var errs []error
	for _, p := range d.here() {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// holding returns the pool that has the volume. One that does not answer costs the volumes
// of the others nothing but the wait: it is returned, with why it is not known to have the
// volume, if no other one has.
func (d *devices) holding(ctx context.Context, op, id string) (*pool, error) {
	if !volumeIDPattern.MatchString(id) {
		return nil, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	silent := d.silent(ctx)
	found, err := d.holder(ctx, op, id, func(p *pool) bool {
		if silent[p.at()] != nil {
			return false
		}
		_, err := p.volumes.Lstat(id + extMetadata)
		return !errors.Is(err, fs.ErrNotExist)
	})
	if errors.Is(err, csierr.NotFound) {
		for _, p := range d.here() {
			if why := silent[p.at()]; why != nil {
				return p, why
			}
		}
	}
	return found, err
}

// find returns the volume and its pool, or csierr.NotFound.
func (d *devices) find(ctx context.Context, id string) (*pool, volume, error) {
	p, err := d.holding(ctx, "read volume", id)
	if err != nil {
		return nil, volume{}, err
	}
	v, err := p.ReadVolume(id)
	return p, v, err
}

// images returns where the image of a volume may be or have been; nothing for what is no
// volume ID.
func (d *devices) images(id string) (images []string) {
	if volumeIDPattern.MatchString(id) {
		for _, c := range d.configs {
			images = append(images, (&pool{dir: c.Dir}).image(id))
		}
	}
	return images
}
