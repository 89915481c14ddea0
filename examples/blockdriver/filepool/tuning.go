package filepool

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/csikit/csikit/csierr"
)

// The mutable parameters, which a VolumeAttributesClass sets, belong to the loop
// device. The node applies them when the volume is staged and published, and when
// kubelet asks for its usage, which it does every minute: no RPC informs a node that
// they have changed.
const (
	// readAheadKiB: how much is read ahead of a sequential reader. Large for
	// streams, 0 for random access.
	paramReadAhead = "readAheadKiB"
	// directIO: true reads and writes the image past the page cache of its file
	// system, false through it, where a volume that is read again and again by
	// O_DIRECT gains, at the price of holding blocks twice. True is a wish: where the
	// pool has no direct I/O for the image, the volume works without.
	paramDirectIO = "directIO"
)

// mutableParameters are the keys and what each may be.
var mutableParameters = map[string]func(value string) string{
	paramReadAhead: func(v string) string {
		if n, err := strconv.ParseUint(v, 10, 32); err != nil || n > 1<<20 {
			return "want 0 to 1048576"
		}
		return ""
	},
	paramDirectIO: func(v string) string {
		if v != "true" && v != "false" {
			return "want true or false"
		}
		return ""
	},
}

// checkMutable refuses all that is not understood, before anything is changed.
func checkMutable(parameters map[string]string) error {
	var bad []string
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		check, known := mutableParameters[key]
		if !known {
			bad = append(bad, strconv.Quote(key)+" is not known, use "+strings.Join(slices.Sorted(maps.Keys(mutableParameters)), " or "))
		} else if wrong := check(parameters[key]); wrong != "" {
			bad = append(bad, key+"="+strconv.Quote(parameters[key])+": "+wrong)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: mutable_parameters: %s", csierr.Invalid, strings.Join(bad, "; "))
	}
	return nil
}
