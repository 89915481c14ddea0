package main

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
)

const (
	mib             = 1 << 20
	defaultCapacity = 1 << 30
)

// minimumSize has an entry for every access type on offer. mkfs.xfs refuses
// less than 300 MiB; mkfs.ext4 takes less than 16 MiB, but then the journal is
// a large part of it.
var minimumSize = map[string]int64{accessBlock: mib, "ext4": 16 * mib, "xfs": 300 * mib}

// chooseSize returns the size of a new volume: required_bytes, or defaultCapacity,
// in whole MiB and not below the minimum of its access type.
func chooseSize(r CapacityRange, accessType string) (int64, error) {
	size, err := roundCapacity(r, minimumSize[accessType], csispec.WithDefaultCapacity(defaultCapacity))
	if err != nil {
		return 0, fmt.Errorf("capacity for %s: %w", accessType, err)
	}
	return size, nil
}

// chooseCopySize picks the size of a volume that is created from a source of size
// bytes.
func chooseCopySize(r CapacityRange, accessType string, size int64) (int64, error) {
	if r.Limit != 0 && r.Limit < size {
		return 0, fmt.Errorf("%w: the source has %d bytes, more than limit_bytes %d; raise the limit", errOutOfRange, size, r.Limit)
	}
	r.Required = max(r.Required, size)
	return chooseSize(r, accessType)
}

// chooseGrownSize picks the size that a volume is to grow to; it is current if
// that is large enough.
func chooseGrownSize(r CapacityRange, current int64) (int64, error) {
	if r.Limit != 0 && current > r.Limit {
		return 0, fmt.Errorf("%w: the volume has %d bytes, more than limit_bytes %d, and volumes never shrink; raise the limit", errOutOfRange, current, r.Limit)
	}
	if current >= r.Required {
		return current, nil
	}
	return roundCapacity(r, 0)
}

func roundCapacity(r CapacityRange, minimum int64, opts ...csispec.CapacityOption) (int64, error) {
	size, err := csispec.RoundCapacity(&csi.CapacityRange{RequiredBytes: r.Required, LimitBytes: r.Limit}, minimum, mib, opts...)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errOutOfRange, err)
	}
	return size, nil
}

// room returns how large a new volume may be: what is free beyond the reserve and
// still may be promised.
func (b *fileBackend) room() (int64, error) {
	total, free, err := b.measure()
	if err != nil {
		return 0, err
	}
	return min(b.usable(total, free), b.promisable(total)), nil
}

// usable is what is free beyond the reserve.
func (b *fileBackend) usable(total, free int64) int64 {
	return free - int64(float64(total)*b.limits.reserve/100)
}

// promisable is what volumes and snapshots may still have beyond what those that
// are there have. Images are sparse: together they may be larger than the pool.
func (b *fileBackend) promisable(total int64) int64 {
	most := float64(total) * b.limits.overcommit
	if b.limits.overcommit == 0 || most >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(most) - b.promised.Load()
}

// checkRoom refuses what would have size bytes and can never fit, what would
// promise more than the pool may, and what needs more than is free now: a pool that
// is filled by new volumes breaks those that are in use.
func (b *fileBackend) checkRoom(size, promise, need int64) error {
	total, free, err := b.measure()
	if err != nil {
		return err
	}
	usable, promisable := b.usable(total, free), b.promisable(total)
	switch {
	case size > total:
		return fmt.Errorf("%w: %d bytes are more than the whole pool (%d); request less or enlarge the pool", errOutOfRange, size, total)
	case need > usable:
		return fmt.Errorf("%w: the pool has %d bytes free, %d of them its reserve, and %d are needed; delete volumes or enlarge the pool", errFull, free, free-usable, need)
	case promise > promisable:
		return fmt.Errorf("%w: the pool has %d bytes, promised %d and may promise %v times its size; delete volumes, enlarge the pool or raise -overcommit", errFull, total, b.promised.Load(), b.limits.overcommit)
	}
	_ = b.keepSpare() // the next one tries again
	return nil
}

// claim is checkRoom, and counts what is promised immediately, until release: of two
// concurrent calls only one gets the last of it. Call release when the new object is in
// the index, or its creation has failed.
func (b *fileBackend) claim(size, promise, need int64) (release func(), err error) {
	b.claims.Lock()
	defer b.claims.Unlock()
	if err := b.checkRoom(size, promise, need); err != nil {
		return nil, err
	}
	b.promised.Add(promise)
	return func() { b.promised.Add(-promise) }, nil
}

func (p *pool) at() string { return p.dir }

func (p *pool) measure() (total, free int64, err error) {
	if p.space != nil {
		return p.space()
	}
	return p.statfs()
}

// withSpaceKind sets the kind of errors that mean "no room". It is not for
// attach and detach, where RESOURCE_EXHAUSTED says that the node can take no
// more volumes.
func withSpaceKind(err error) error {
	switch {
	case isFull(err):
		return fmt.Errorf("%w: %w; delete volumes or enlarge the pool", errFull, err)
	case errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("%w: %w; the pool's file system cannot hold so large a file", errOutOfRange, err)
	}
	return err
}
