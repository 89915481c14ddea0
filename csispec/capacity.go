package csispec

import (
	"fmt"
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A CapacityOption configures [RoundCapacity].
type CapacityOption interface{ apply(*capacityConfig) }

type capacityConfig struct{ defaultCapacity, maximum int64 }

type capacityOption func(*capacityConfig)

func (o capacityOption) apply(c *capacityConfig) { o(c) }

// WithDefaultCapacity sets the capacity in bytes for a range without required_bytes. It is
// reduced where limit_bytes or the maximum is lower, but not below the minimum. Without it
// the minimum is used.
func WithDefaultCapacity(bytes int64) CapacityOption {
	return capacityOption(func(c *capacityConfig) { c.defaultCapacity = bytes })
}

// WithMaximumCapacity sets the largest capacity in bytes that the storage supports.
// Without it, and with 0 or less, there is none.
func WithMaximumCapacity(bytes int64) CapacityOption {
	return capacityOption(func(c *capacityConfig) { c.maximum = bytes })
}

// RoundCapacity returns the capacity in bytes for a volume: the smallest multiple of
// granularity that is not below required_bytes and minimum. A required_bytes below minimum
// is rounded up to it. A nil range, or one without required_bytes, selects
// [WithDefaultCapacity]; limit_bytes of 0 is no limit. A minimum below 0 counts as 0, a
// granularity below 1 as 1. No argument makes it overflow.
//
// The error is a *[Violations] with the rule "capacity-range". It is OUT_OF_RANGE if there
// is no such multiple up to limit_bytes and the maximum, and INVALID_ARGUMENT for a
// negative required_bytes or limit_bytes.
func RoundCapacity(r *csi.CapacityRange, minimum, granularity int64, opts ...CapacityOption) (int64, error) {
	var c capacityConfig
	for _, o := range opts {
		o.apply(&c)
	}
	minimum, granularity = max(minimum, 0), max(granularity, 1)
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0:
		return 0, badCapacity(codes.InvalidArgument, "required_bytes", "is %d and must not be negative", required)
	case limit < 0:
		return 0, badCapacity(codes.InvalidArgument, "limit_bytes", "is %d and must not be negative", limit)
	case limit > 0 && limit < required:
		return 0, badCapacity(codes.OutOfRange, "limit_bytes", "is %d, below required_bytes %d", limit, required)
	}
	highest := int64(math.MaxInt64)
	if limit > 0 {
		highest = limit
	}
	if c.maximum > 0 {
		highest = min(highest, c.maximum)
	}
	highest -= highest % granularity

	wanted := max(required, minimum)
	if required == 0 {
		wanted = max(wanted, min(c.defaultCapacity, highest))
	}
	if wanted <= highest { // so is the next multiple, because highest is one
		if rest := wanted % granularity; rest > 0 {
			wanted += granularity - rest
		}
		return wanted, nil
	}
	rounded := fmt.Sprintf("the smallest capacity for required_bytes %d, a minimum of %d and multiples of %d bytes", required, minimum, granularity)
	switch {
	case c.maximum > 0 && (limit == 0 || c.maximum < limit):
		return 0, badCapacity(codes.OutOfRange, "required_bytes", "is too large: %s exceeds the maximum of %d", rounded, c.maximum)
	case limit > 0:
		return 0, badCapacity(codes.OutOfRange, "limit_bytes", "is %d, below %s: raise the limit", limit, rounded)
	}
	return 0, badCapacity(codes.OutOfRange, "required_bytes", "is too large: %s exceeds 63 bits", rounded)
}

func badCapacity(code codes.Code, field, format string, args ...any) error {
	return &Violations{Subject: "capacity_range", All: []Violation{{
		Field: field, Rule: "capacity-range", Code: code, Text: fmt.Sprintf(format, args...),
	}}}
}
