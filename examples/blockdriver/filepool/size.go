package filepool

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/csikit/csikit/csierr"
)

const (
	mib             = 1 << 20
	defaultCapacity = 1 << 30
)

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
		return fmt.Errorf("%w: %d bytes are more than the whole pool (%d); request less or enlarge the pool", csierr.OutOfRange, size, total)
	case need > usable:
		return fmt.Errorf("%w: the pool has %d bytes free, %d of them its reserve, and %d are needed; delete volumes or enlarge the pool", csierr.NoSpace, free, free-usable, need)
	case promise > promisable:
		return fmt.Errorf("%w: the pool has %d bytes, promised %d and may promise %v times its size; delete volumes, enlarge the pool or raise -overcommit", csierr.NoSpace, total, b.promised.Load(), b.limits.overcommit)
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
		return fmt.Errorf("%w: %w; delete volumes or enlarge the pool", csierr.NoSpace, err)
	case errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("%w: %w; the pool's file system cannot hold so large a file", csierr.OutOfRange, err)
	}
	return err
}
