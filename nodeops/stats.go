package nodeops

import (
	"context"
	"time"

	"github.com/csikit/csikit/csierr"
)

// Stats is the capacity and usage of a volume.
type Stats struct {
	Block bool // a raw block volume: only TotalBytes is set

	// Source is the source of the mount, as in proc(5): a device, or a share such as
	// "server:/path". A driver can check by it that the requested volume is mounted. ""
	// for a raw block volume.
	Source string

	TotalBytes, AvailableBytes, UsedBytes    int64
	TotalInodes, AvailableInodes, UsedInodes int64 // all zero if the file system does not count inodes

	// Condition is the error that the file system has had: it is read-only after an error
	// or was shut down, or the superblock of an ext4 has recorded errors. "" for a healthy
	// one and for shares. StageFilesystem repairs and mounts it again, once it is not
	// published any more.
	Condition string

	Age time.Duration // 0: current; else the age of the values, because statfs hangs
}

// statsTimeout is how long a measurement may take before an older one is returned:
// kubelet requests stats every minute with a timeout of two.
const statsTimeout = 10 * time.Second

type measurement struct {
	stats Stats
	at    time.Time
}

// StatsRequest is the request of [Node.Stats].
type StatsRequest struct {
	VolumeID   string // for spans and errors only
	VolumePath string // absolute; where the volume is staged or published
}

// Stats returns capacity and usage of the volume that is staged or published at the path.
// If nothing is mounted at the path, the error is csierr.NotFound. If statfs hangs, as on a server
// that does not respond, Stats returns the last values for the path with their age, or
// without any the error of a call in flight.
func (n *Node) Stats(ctx context.Context, r StatsRequest) (_ Stats, err error) {
	const op = "stats"
	ctx, done := n.telemetry.operation(ctx, op, r.VolumeID, r.VolumePath)
	defer func() { done(err) }()
	if err := checkVolumePath(r.VolumePath); err != nil {
		return Stats{}, wrap(op, r.VolumeID, r.VolumePath, err)
	}
	patient, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	path, err := n.resolve(patient, n.measuring, r.VolumePath)
	if err != nil {
		return Stats{}, wrap(op, r.VolumeID, r.VolumePath, err)
	}
	n.mu.Lock()
	dropped := n.dropped
	n.mu.Unlock()
	// Not n.run: concurrent calls share one result, and Stats must not wait for other
	// operations on the volume. The suffix distinguishes the key from a path.
	v, _, err := n.measuring.Do(patient, path.path+" (stats)", func() (any, error) { return n.stats(path) })
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		if n.dropped != dropped { // perhaps of this path: no later call would drop it
			return v.(Stats), nil
		}
		if n.measured == nil {
			n.measured = make(map[string]measurement)
		}
		n.measured[path.path] = measurement{v.(Stats), now}
		return v.(Stats), nil
	}
	if last, known := n.measured[path.path]; known && isPending(err) {
		last.stats.Age = now.Sub(last.at)
		return last.stats, nil
	}
	return Stats{}, wrap(op, r.VolumeID, r.VolumePath, err)
}

// dropStats drops the last answer for a path at which no volume is mounted any more, and
// that of a measurement in flight. It is for use inside of run.
func (n *Node) dropStats(path resolvedPath) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropped++
	delete(n.measured, path.path)
	if len(n.measured) == 0 {
		n.measured = nil
	}
}

// checkVolumePath returns NOT_FOUND for a path that is not valid: no volume is mounted
// there, and the RPCs with a volume_path have that code for it.
func checkVolumePath(p string) error {
	if err := checkPath(p); err != nil {
		return &fault{kind: csierr.NotFound, err: err}
	}
	return nil
}

// MountedAt lists the paths in this mount namespace at which the file system on the
// device or its device node is mounted. [Node.Released] answers whether the device may be
// detached.
func (n *Node) MountedAt(ctx context.Context, d Device) ([]string, error) {
	v, _, err := n.teardown.Do(ctx, d.Path+" (mounts)", func() (any, error) { return n.mountedDevice(d) })
	if err != nil {
		return nil, wrap("find mounts of device", "", d.Path, err)
	}
	return v.([]string), nil
}
