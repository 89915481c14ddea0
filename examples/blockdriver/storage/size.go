package storage

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
)

// MinimumSizes has the access types on offer, and the smallest volume of each in bytes.
// mkfs.xfs refuses less than 300 MiB; mkfs.ext4 accepts less than 16 MiB, but then the
// journal takes a large part of it. Package nodeops supports btrfs as well; to offer it,
// whose clones need Linux 6.7, add it here.
var MinimumSizes = map[string]int64{AccessBlock: 1 << 20, "ext4": 16 << 20, "xfs": 300 << 20}

// DefaultFSType is used when the request names no file system.
const DefaultFSType = "ext4"

// CapacityRange is in bytes; 0 is no bound.
type CapacityRange struct {
	Required, Limit int64
}

// Contains reports whether a volume of size bytes satisfies the range.
func (r CapacityRange) Contains(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// String returns the range for messages, such as "1048576 to any bytes".
func (r CapacityRange) String() string {
	if r.Limit == 0 {
		return fmt.Sprintf("%d or more bytes", r.Required)
	}
	return fmt.Sprintf("%d to %d bytes", r.Required, r.Limit)
}

// Size returns the size of a new volume: what is required, or normal bytes if the request
// leaves it open, as a multiple of unit, and no less than the access type needs. For a copy,
// sourceSize is the least; else it is 0. Without such a size the error is csierr.OutOfRange.
func (s VolumeSpec) Size(normal, unit, sourceSize int64) (int64, error) {
	r := s.Capacity
	if r.Limit != 0 && r.Limit < sourceSize {
		return 0, fmt.Errorf("%w: the source has %d bytes, more than limit_bytes %d; raise the limit", csierr.OutOfRange, sourceSize, r.Limit)
	}
	r.Required = max(r.Required, sourceSize)
	return r.round(s.minimum(), unit, csispec.WithDefaultCapacity(normal))
}

// GrownSize returns the size that a volume is to grow to, as a multiple of unit; it is its
// present size if that is large enough. Volumes never shrink: a lower limit_bytes is
// csierr.OutOfRange.
func (v Volume) GrownSize(r CapacityRange, unit int64) (int64, error) {
	if r.Limit != 0 && v.CapacityBytes > r.Limit {
		return 0, fmt.Errorf("%w: the volume has %d bytes, more than limit_bytes %d, and volumes never shrink; raise the limit", csierr.OutOfRange, v.CapacityBytes, r.Limit)
	}
	if v.CapacityBytes >= r.Required {
		return v.CapacityBytes, nil
	}
	return r.round(0, unit)
}

func (r CapacityRange) round(minimum, unit int64, opts ...csispec.CapacityOption) (int64, error) {
	size, err := csispec.RoundCapacity(&csi.CapacityRange{RequiredBytes: r.Required, LimitBytes: r.Limit}, minimum, unit, opts...)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", csierr.OutOfRange, err)
	}
	return size, nil
}
