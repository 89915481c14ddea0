package csispec_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRoundCapacity(t *testing.T) {
	const mib, most = 1 << 20, math.MaxInt64
	for _, tt := range []struct {
		name                 string
		required, limit      int64
		minimum, granularity int64
		opts                 []csispec.CapacityOption
		want                 int64
		code                 codes.Code
		text                 string
	}{
		{name: "exact", required: 4 * mib, minimum: mib, granularity: mib, want: 4 * mib},
		{name: "rounded up", required: 4*mib + 1, minimum: mib, granularity: mib, want: 5 * mib},
		{name: "to the minimum", required: 1, minimum: 16 * mib, granularity: mib, want: 16 * mib},
		{name: "to the minimum, rounded", required: 1, minimum: mib + 1, granularity: mib, want: 2 * mib},
		{name: "limit exact", required: 1, limit: mib, granularity: mib, want: mib},
		{name: "limit below the minimum", required: 1, limit: mib, minimum: 2 * mib, granularity: mib,
			code: codes.OutOfRange, text: "limit_bytes is 1048576, below the smallest capacity for required_bytes 1, a minimum of 2097152"},
		{name: "limit between multiples", required: mib + 1, limit: 2*mib - 1, granularity: mib, code: codes.OutOfRange, text: "raise the limit"},
		{name: "limit below required", required: 2, limit: 1, code: codes.OutOfRange, text: "limit_bytes is 1, below required_bytes 2"},
		{name: "limit only", limit: 5 * mib, minimum: mib, granularity: mib, want: mib},
		{name: "negative required", required: -1, code: codes.InvalidArgument, text: "required_bytes is -1"},
		{name: "negative limit", required: 1, limit: math.MinInt64, code: codes.InvalidArgument, text: "limit_bytes is -9"},
		{name: "nothing", want: 0},
		{name: "no granularity", required: most, granularity: math.MinInt64, minimum: -5, want: most},
		{name: "the largest multiple", required: most - mib, granularity: mib, want: most - (mib - 1)},
		{name: "overflow", required: most, granularity: mib, code: codes.OutOfRange, text: "exceeds 63 bits"},
		{name: "overflow by the minimum", required: 1, minimum: most, granularity: 2, code: codes.OutOfRange, text: "exceeds 63 bits"},
		{name: "overflow with a limit", required: most - 1, limit: most, granularity: most - 1, want: most - 1},
		{name: "default", minimum: mib, granularity: mib, opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1 << 30)}, want: 1 << 30},
		{name: "default, not needed", required: mib, granularity: mib, opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1 << 30)}, want: mib},
		{name: "default, rounded", granularity: mib, opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1)}, want: mib},
		{name: "default above the limit", limit: 3*mib + 7, minimum: mib, granularity: mib, opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1 << 30)}, want: 3 * mib},
		{name: "default above the limit, and that below the minimum", limit: 3, minimum: mib, granularity: mib,
			opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1 << 30)}, code: codes.OutOfRange, text: "raise the limit"},
		{name: "default below the minimum", minimum: mib, opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1)}, want: mib},
		{name: "maximum", required: mib, granularity: mib, opts: []csispec.CapacityOption{csispec.WithMaximumCapacity(mib)}, want: mib},
		{name: "above the maximum", required: mib + 1, granularity: mib, opts: []csispec.CapacityOption{csispec.WithMaximumCapacity(mib)},
			code: codes.OutOfRange, text: "exceeds the maximum of 1048576"},
		{name: "maximum below the default", granularity: mib, opts: []csispec.CapacityOption{csispec.WithDefaultCapacity(1 << 30), csispec.WithMaximumCapacity(5 * mib)}, want: 5 * mib},
		{name: "limit below the maximum", required: mib, limit: mib, minimum: 2 * mib, opts: []csispec.CapacityOption{csispec.WithMaximumCapacity(1 << 30)},
			code: codes.OutOfRange, text: "raise the limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := csispec.RoundCapacity(&csi.CapacityRange{RequiredBytes: tt.required, LimitBytes: tt.limit}, tt.minimum, tt.granularity, tt.opts...)
			if got != tt.want || status.Code(err) != tt.code {
				t.Fatalf("got %d, %v, want %d, %v", got, err, tt.want, tt.code)
			}
			if err == nil {
				return
			}
			var v *csispec.Violations
			if !errors.As(err, &v) || len(v.All) != 1 || v.All[0].Rule != "capacity-range" || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want a violation of capacity-range with %q", err, tt.text)
			}
		})
	}
	if got, err := csispec.RoundCapacity(nil, 3, 2); got != 4 || err != nil {
		t.Errorf("a nil range: %d, %v", got, err)
	}
}

// capacityModel is RoundCapacity by the sentences of its documentation, with numbers that
// cannot overflow. ok is false where there is no capacity.
func capacityModel(required, limit, minimum, granularity, defaultCapacity, maximum int64) (want *big.Int, ok bool) {
	num := big.NewInt
	floor := func(x *big.Int) *big.Int { // the largest multiple up to x
		return new(big.Int).Mul(new(big.Int).Div(x, num(granularity)), num(granularity))
	}
	ceil := func(x *big.Int) *big.Int {
		return new(big.Int).Neg(floor(new(big.Int).Neg(x)))
	}
	largest := func(a, b *big.Int) *big.Int {
		if a.Cmp(b) > 0 {
			return a
		}
		return b
	}
	minimum, granularity = max(minimum, 0), max(granularity, 1)
	var bounds []*big.Int
	bounds = append(bounds, num(math.MaxInt64))
	if limit > 0 {
		bounds = append(bounds, num(limit))
	}
	if maximum > 0 {
		bounds = append(bounds, num(maximum))
	}
	if required < 0 || limit < 0 {
		return nil, false
	}
	size := ceil(largest(num(required), num(minimum)))
	if required == 0 && defaultCapacity > 0 {
		d := ceil(num(defaultCapacity))
		for _, b := range bounds {
			if d.Cmp(b) > 0 {
				d = floor(b)
			}
		}
		size = largest(size, d)
	}
	for _, b := range bounds {
		if size.Cmp(b) > 0 {
			return nil, false
		}
	}
	return size, true
}

func checkCapacity(t *testing.T, required, limit, minimum, granularity, defaultCapacity, maximum int64) {
	t.Helper()
	got, err := csispec.RoundCapacity(&csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}, minimum, granularity,
		csispec.WithDefaultCapacity(defaultCapacity), csispec.WithMaximumCapacity(maximum))
	want, ok := capacityModel(required, limit, minimum, granularity, defaultCapacity, maximum)
	what := fmt.Sprintf("required %d, limit %d, minimum %d, granularity %d, default %d, maximum %d", required, limit, minimum, granularity, defaultCapacity, maximum)
	if !ok {
		code := codes.OutOfRange
		if required < 0 || limit < 0 {
			code = codes.InvalidArgument
		}
		if got != 0 || status.Code(err) != code {
			t.Fatalf("%s: got %d, %v, want %v", what, got, err, code)
		}
		return
	}
	if err != nil || want.Cmp(big.NewInt(got)) != 0 {
		t.Fatalf("%s: got %d, %v, want %v", what, got, err, want)
	}
}

// Random numbers, mostly near the ends of their range and near each other.
func TestRoundCapacityModel(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 200_000 {
		var n [6]int64
		base := rnd.Int64() >> rnd.IntN(63)
		for i := range n {
			switch rnd.IntN(7) {
			case 0:
				n[i] = 0
			case 1:
				n[i] = math.MaxInt64 - rnd.Int64N(3)
			case 2:
				n[i] = math.MinInt64 + rnd.Int64N(3)
			case 3:
				n[i] = rnd.Int64N(9) - 2
			case 4:
				n[i] = 1 << rnd.IntN(63)
			case 5:
				n[i] = base + rnd.Int64N(5) - 2 // may wrap around
			case 6:
				n[i] = rnd.Int64() >> rnd.IntN(63)
			}
		}
		checkCapacity(t, n[0], n[1], n[2], n[3], n[4], n[5])
	}
}

func FuzzRoundCapacity(f *testing.F) {
	f.Add(int64(math.MaxInt64), int64(0), int64(1<<20), int64(1<<20), int64(1<<30), int64(0))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(0), int64(1), int64(-1), int64(math.MinInt64), int64(5), int64(3))
	f.Fuzz(checkCapacity)
}
