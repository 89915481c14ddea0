package main

import (
	"errors"
	"fmt"
	"math"
	"syscall"
)

const (
	mib             = 1 << 20
	defaultCapacity = 1 << 30
)

// minimumSize has an entry for every access type on offer. mkfs.xfs refuses
// less than 300 MiB; mkfs.ext4 takes less than 16 MiB, but then the journal is
// a large part of it.
var minimumSize = map[string]int64{accessBlock: mib, "ext4": 16 * mib, "xfs": 300 * mib}

// chooseSize picks the size of a new volume: what is required, or
// defaultCapacity, in whole MiB.
func chooseSize(r CapacityRange, accessType string) (int64, error) {
	limit := r.Limit
	if limit == 0 {
		limit = math.MaxInt64
	}
	size := min(defaultCapacity, limit/mib*mib)
	if r.Required > 0 {
		var err error
		if size, err = roundUp(r.Required, limit); err != nil {
			return 0, err
		}
	}
	if least := minimumSize[accessType]; size < least {
		return 0, fmt.Errorf("%w: %d bytes are too small for %s; request and allow at least %d", errOutOfRange, size, accessType, least)
	}
	return size, nil
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
	limit := r.Limit
	if limit == 0 {
		limit = math.MaxInt64
	}
	return roundUp(r.Required, limit)
}

func roundUp(required, limit int64) (int64, error) {
	if required > math.MaxInt64-mib+1 {
		return 0, fmt.Errorf("%w: required_bytes %d is more than any volume can have", errOutOfRange, required)
	}
	size := (required + mib - 1) / mib * mib
	if size > limit {
		return 0, fmt.Errorf("%w: volumes have whole MiB, and required_bytes %d rounded up is %d, more than limit_bytes %d; raise the limit", errOutOfRange, required, size, limit)
	}
	return size, nil
}

// checkRoom refuses a volume of size bytes that can never fit, and one whose
// growth the pool has no room for now. Images are sparse and reserve nothing,
// so volumes that pass can still fill the pool together; a policy for
// over-commitment would count what all volumes may still grow to.
func (p *pool) checkRoom(size, growth int64) error {
	space := p.space
	if space == nil {
		space = p.statfs
	}
	total, free, err := space()
	switch {
	case err != nil:
		return err
	case size > total:
		return fmt.Errorf("%w: %d bytes are more than the whole pool (%d); request less or enlarge the pool", errOutOfRange, size, total)
	case growth > free:
		return fmt.Errorf("%w: the pool has %d bytes free, %d are needed; delete volumes or enlarge the pool", errFull, free, growth)
	}
	return nil
}

// withSpaceKind gives the errors that mean "no room" their kind. It is not for
// attach and detach, where RESOURCE_EXHAUSTED says that the node can take no
// more volumes.
func withSpaceKind(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w; delete volumes or enlarge the pool", errFull, err)
	case errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("%w: %w; the pool's file system cannot hold so large a file", errOutOfRange, err)
	}
	return err
}
