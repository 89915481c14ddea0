package nodeops

import (
	"context"
	"time"
)

// Stats is how full a volume is.
type Stats struct {
	Block bool // a raw block volume: only TotalBytes is known

	// Source is what is mounted there, as the kernel calls it: a device, or a share as in
	// "server:/path". By it a driver sees whether that is the volume that it was asked
	// for. "" for a raw block volume.
	Source string

	TotalBytes, AvailableBytes, UsedBytes    int64
	TotalInodes, AvailableInodes, UsedInodes int64 // all zero for a file system that does not count inodes

	Age time.Duration // 0: measured now; else how old the answer is, because measuring hangs
}

// statsTimeout is how long a measurement may take before an older one is good
// enough: kubelet asks every minute and drops the answer after two.
const statsTimeout = 10 * time.Second

type measurement struct {
	stats Stats
	at    time.Time
}

// StatsRequest asks how full a volume is.
type StatsRequest struct {
	VolumeID   string // for spans and errors only
	VolumePath string // absolute; where the volume is staged or published
}

// Stats measures the volume that is staged or published at the path. A path on
// which nothing is mounted is KindNotFound. Where measuring hangs, as on a dead
// device, the last answer for the path is given again, with its age; without one
// the error is that of work under way.
func (n *Node) Stats(ctx context.Context, r StatsRequest) (_ Stats, err error) {
	const op = "stats"
	ctx, done := n.telemetry.operation(ctx, op, r.VolumeID, r.VolumePath)
	defer func() { done(err) }()
	if err := checkVolumePath(r.VolumePath); err != nil {
		return Stats{}, wrap(op, r.VolumeID, r.VolumePath, err)
	}
	patient, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	key, err := n.key(patient, r.VolumePath)
	if err != nil {
		return Stats{}, wrap(op, r.VolumeID, r.VolumePath, err)
	}
	n.mu.Lock()
	forgotten := n.forgotten
	n.mu.Unlock()
	// Not n.run: a result is good for everybody who asks, and asking must not
	// wait for work on the volume. The suffix keeps the key apart from a path.
	v, _, err := n.blocking.Do(patient, key+" (stats)", func() (any, error) { return n.stats(r.VolumePath) })
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		if n.forgotten != forgotten { // perhaps this path: nobody would forget it again
			return v.(Stats), nil
		}
		if n.measured == nil {
			n.measured = make(map[string]measurement)
		}
		n.measured[key] = measurement{v.(Stats), now}
		return v.(Stats), nil
	}
	if last, known := n.measured[key]; known && isPending(err) {
		last.stats.Age = now.Sub(last.at)
		return last.stats, nil
	}
	return Stats{}, wrap(op, r.VolumeID, r.VolumePath, err)
}

// forget drops what was measured at a path that is no volume's any more, and what is
// being measured. It is for use inside of run.
func (n *Node) forget(path string) {
	path = spelling(path)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgotten++
	delete(n.measured, path)
	if len(n.measured) == 0 {
		n.measured = nil
	}
}

// checkVolumePath: a path that cannot be one is a place where no volume is,
// which is NOT_FOUND for the RPCs that look for one.
func checkVolumePath(p string) error {
	if err := checkPath(p); err != nil {
		return &fault{kind: KindNotFound, err: err}
	}
	return nil
}

// MountedAt lists the paths in this mount namespace at which the device shows:
// those of its file system and those of its node. A driver asks before it
// detaches a device.
func (n *Node) MountedAt(ctx context.Context, d Device) ([]string, error) {
	v, _, err := n.blocking.Do(ctx, d.Path+" (mounts)", func() (any, error) { return n.mountedDevice(d) })
	if err != nil {
		return nil, wrap("look for mounts of device", "", d.Path, err)
	}
	return v.([]string), nil
}
