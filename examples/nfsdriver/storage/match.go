package storage

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
)

// Failures that have a kind of package csierr and a meaning of their own.
var (
	// ErrInUse: the volume is written to while a copy of it is made.
	ErrInUse = csierr.Precondition.New("in use")
	// ErrBadToken: the token is not one of this list. ABORTED, as the spec says.
	ErrBadToken = csierr.Busy.New("not a token of this list")
)

// Matches returns csierr.Conflict if v is not the volume that s describes, with all
// differences in one message. CreateVolume calls it for a volume that exists.
func (v Volume) Matches(s VolumeSpec) error {
	return conflict("volume "+v.ID, v.Differences(s))
}

// Differences lists what v and s disagree on.
func (v Volume) Differences(s VolumeSpec) []string {
	var d []string
	differ := func(what, has, wants string) {
		if has != wants {
			d = append(d, fmt.Sprintf("%s: the volume has %q, the request %q", what, has, wants))
		}
	}
	differ("name", v.Name, s.Name)
	differ("source", v.Source.String(), s.Source.String())
	if !s.Capacity.Contains(v.CapacityBytes) {
		d = append(d, fmt.Sprintf("capacity: the volume has %d bytes, the request is for %s", v.CapacityBytes, s.Capacity))
	}
	keys := map[string]string{}
	maps.Copy(keys, v.Parameters)
	maps.Copy(keys, s.Parameters)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		differ(fmt.Sprintf("parameters[%q]", key), v.Parameters[key], s.Parameters[key])
	}
	return d
}

func conflict(object string, differences []string) error {
	if len(differences) == 0 {
		return nil
	}
	return fmt.Errorf("%s %w: %s", object, csierr.Conflict, strings.Join(differences, "; "))
}

// SplitKeys separates the keys that Kubernetes' sidecars and kubelet add to parameters and
// attributes from the others.
func SplitKeys(m map[string]string) (own, kubernetes map[string]string) {
	own, kubernetes = map[string]string{}, map[string]string{}
	for key, value := range m {
		if csispec.IsKubernetesKey(key) {
			kubernetes[key] = value
		} else {
			own[key] = value
		}
	}
	return own, kubernetes
}
